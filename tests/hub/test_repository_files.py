"""Names of repositories, and the file that is chosen in one."""

import pytest

from paceline.hub.repository_files import FetchError, RepositoryName, choose_gguf

FILES = [
    "README.md",
    "model-Q4_K_M.gguf",
    "model-Q4_K_S.gguf",
    "model-f16.gguf",
    "big/model-Q8_0-00001-of-00002.gguf",
    "big/model-Q8_0-00002-of-00002.gguf",
]


def choose(wanted: str, files: list[str] | None = None) -> str:
    return choose_gguf(RepositoryName("owner/name", None, wanted), files or FILES)


@pytest.mark.parametrize(
    ("wanted", "file"),
    [
        ("Q4_K_M", "model-Q4_K_M.gguf"),
        ("q4_k_s", "model-Q4_K_S.gguf"),
        ("F16", "model-f16.gguf"),
        ("model-f16.gguf", "model-f16.gguf"),
    ],
)
def test_a_file_is_chosen_by_its_name_or_a_part_of_it(wanted: str, file: str) -> None:
    assert choose(wanted) == file


def test_an_exact_name_wins_over_a_part_of_another() -> None:
    assert choose("a.gguf", ["a.gguf", "b/a.gguf.gguf", "x-a.gguf"]) == "a.gguf"


@pytest.mark.parametrize(
    ("wanted", "complaint"),
    [
        ("Q5_0", "has no GGUF file 'Q5_0'; choose one of: big/model"),
        ("4", "has no GGUF file '4'"),
        ("model", "'model' names several files of owner/name; choose one of"),
        ("Q8_0", "one part of a split model"),
    ],
)
def test_a_name_that_chooses_no_single_file_is_refused(wanted: str, complaint: str) -> None:
    with pytest.raises(FetchError, match=complaint):
        choose(wanted)


def test_a_repository_without_gguf_files_is_named() -> None:
    with pytest.raises(FetchError, match=r"owner/name has no \.gguf file"):
        choose("Q4_0", ["config.json"])


def test_a_long_list_is_cut() -> None:
    files = [f"model-{number}.gguf" for number in range(20)]
    with pytest.raises(FetchError, match=r"and 8 more$"):
        choose("none", files)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("owner/name", RepositoryName("owner/name")),
        ("o/n.1-b_2", RepositoryName("o/n.1-b_2")),
        ("owner/name@v1", RepositoryName("owner/name", "v1")),
        ("owner/n@refs/pr/1", RepositoryName("owner/n", "refs/pr/1")),
        ("owner/n:Q4_K_M", RepositoryName("owner/n", None, "Q4_K_M")),
        ("owner/n@v1:a/b.gguf", RepositoryName("owner/n", "v1", "a/b.gguf")),
    ],
)
def test_names_of_repositories(text: str, name: RepositoryName) -> None:
    assert RepositoryName.parse(text) == name
    assert str(name) == text


@pytest.mark.parametrize(
    "text", ["name", "/name", "a/b/c", "../x", "a/..", "a/b@", "a/b:", "a b/c", "./x"]
)
def test_names_of_no_repository(text: str) -> None:
    assert RepositoryName.parse(text) is None
