import pytest

from paceline.hub.repository_files import RepositoryName


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
