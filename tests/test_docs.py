"""Links of the pages lead to files, and their examples print what the pages say."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline import Plan, Request, Scheduler, StepResult
from paceline.cli.main import main

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
ADRS = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))
PAGES = sorted(
    page
    for page in [
        *ROOT.glob("*.md"),
        *(page for part in ("docs", "tests", "benchmarks") for page in (ROOT / part).rglob("*.md")),
    ]
    if "site-packages" not in page.parts
)

FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
# In these words a sentence hides who does what.
UNCLEAR = re.compile(
    r"\b(told|tells of|nobody|somebody|whoever|anybody|everybody|lest|mended|cards?)\b",
    re.IGNORECASE,
)
SOURCE_FILE = re.compile(r"`((?:[\w-]+/)+\w+\.(?:py|cu|c))`")
SECTIONS = ["Context", "Decision", "Consequences", "Rejected"]

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
every_adr = pytest.mark.parametrize("adr", ADRS, ids=lambda adr: adr.stem)


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(text: str) -> list[tuple[str, str]]:
    """The fenced blocks of a page, in order: language and content."""
    return [(language, content) for language, content in FENCED.findall(text)]


def links(text: str) -> list[str]:
    """What a page links to within the repository, without the part after #."""
    targets = [target.partition("#")[0] for target in LINK.findall(FENCED.sub("", text))]
    return [target for target in targets if target and "://" not in target]


def headings(text: str, level: int) -> list[str]:
    return re.findall(rf"^{'#' * level} (.+)$", FENCED.sub("", text), re.MULTILINE)


def tables(text: str) -> list[list[list[str]]]:
    """The cells of every table, without its head."""
    found = re.findall(r"(?:^\|.*\|\n)+", FENCED.sub("", text), re.MULTILINE)
    rows = [[line.strip("| ").split("|") for line in table.splitlines()[2:]] for table in found]
    return [[[cell.strip() for cell in row] for row in table] for table in rows]


# -- links ------------------------------------------------------------------


def test_there_are_pages() -> None:
    names = {str(page.relative_to(ROOT)) for page in PAGES}
    assert {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/architecture.md"} <= names
    assert {"docs/glossary.md", "docs/adr/README.md"} <= names


@every_page
def test_links_lead_to_a_file(page: Path) -> None:
    assert [to for to in links(read(page)) if not (page.parent / to).exists()] == []


def test_links_are_found() -> None:
    text = "[a](b.md#c) [d](https://e.f) [g](#h)\n```\n[i](j.md)\n```\n[k](../l)"
    assert links(text) == ["b.md", "../l"]


# -- language ---------------------------------------------------------------


def prose(text: str) -> str:
    """A page without its code: fenced blocks, inline code and targets of links."""
    return re.sub(r"`[^`]*`|\]\([^)]*\)", " ", FENCED.sub("", text))


@every_page
def test_pages_use_the_words_of_the_field(page: Path) -> None:
    found = [line for line in prose(read(page)).splitlines() if UNCLEAR.search(line)]
    assert found == [], "name the request, the client, the step or the GPU"


def test_code_is_no_prose() -> None:
    assert prose("a `told` [b](nobody.md)\n```\nwhoever\n```\n").split() == ["a", "[b"]


@every_page
def test_pages_name_source_files_that_exist(page: Path) -> None:
    if page.stem.startswith("add-a-"):
        return  # it names files that its reader creates
    named = SOURCE_FILE.findall(FENCED.sub("", read(page)))
    folders = [ROOT, ROOT / "src" / "paceline"]
    assert [name for name in named if not any((one / name).exists() for one in folders)] == []


# -- examples ---------------------------------------------------------------


def examples(page: Path) -> Iterator[tuple[str, str]]:
    """Each Python block of a page, with the block of text that follows it."""
    found = blocks(read(page))
    for (language, content), (next_language, said) in zip(
        found, [*found[1:], ("", "")], strict=True
    ):
        if language == "python":
            assert next_language == "text", "a Python block is followed by what it prints"
            yield content, said


def test_the_scheduler_alone_prints_what_the_guide_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = ROOT / "docs" / "guides" / "scheduler.md"
    found = list(examples(page))
    assert found
    for code, said in found:
        exec(compile(code, str(page), "exec"), {})
        assert capsys.readouterr().out == said


@pytest.mark.parametrize("page", ["README.md", "docs/guides/python.md"])
def test_examples_with_a_model_run(
    page: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the oracle: the calls are those of the page, the tokens are not those of a model."""
    monkeypatch.setattr("paceline.llm.FACTORY", "tests.engine.support:build")
    found = [code for language, code in blocks(read(ROOT / page)) if language == "py"]
    assert found
    names: dict[str, object] = {}
    for code in found:
        exec(compile(code, page, "exec"), names)
    assert "ended (" in capsys.readouterr().out  # what `explain` prints


def test_the_picture_is_what_play_draws(capsys: pytest.CaptureFixture[str]) -> None:
    (picture,) = [said for _, said in blocks(read(README)) if said.startswith("$ paceline play\n")]
    assert main(["play", "--fast", "--no-color", "--width", "100"]) == 0
    drawn = iter(capsys.readouterr().out.splitlines())
    for line in picture.splitlines()[1:]:
        assert line == "…" or line in drawn, f"play does not draw, or not in this order: {line}"


def test_every_promise_names_tests_that_exist() -> None:
    page = ROOT / "docs" / "promises.md"
    (table,) = tables(read(page))
    assert len(table) >= 11
    for promise, *held_by in table:
        tests = links(" ".join(held_by))
        assert tests, f"nothing holds: {promise}"
        for test in tests:
            assert re.fullmatch(r"\.\./tests/.*test_\w+\.py", test), f"no test: {test}"
            assert (page.parent / test).is_file(), f"missing: {test}"


def test_the_figures_of_the_readme_are_those_of_the_comparison() -> None:
    compared = read(ROOT / "docs" / "comparison.md")
    (speed,) = tables(read(README))
    assert len(speed) == 3
    for row in speed:
        for figure in re.findall(r"\d[\d,.]*(?= (?:µs|ms|tokens/s|/|to))", " ".join(row[1:])):
            assert figure in compared, f"the comparison does not have {figure}: {row}"


# -- decisions --------------------------------------------------------------


def test_decisions_are_numbered_without_a_gap() -> None:
    assert [int(adr.name[:4]) for adr in ADRS] == list(range(1, len(ADRS) + 1))


@every_adr
def test_a_decision_has_its_number_and_its_four_sections(adr: Path) -> None:
    (title,) = headings(read(adr), 1)
    assert title.startswith(f"{adr.name[:4]}: ")
    assert headings(read(adr), 2) == SECTIONS


def test_the_index_lists_every_decision_once() -> None:
    listed = links(read(ROOT / "docs" / "adr" / "README.md"))
    assert listed == [adr.name for adr in ADRS]


# -- the architecture -------------------------------------------------------


def test_the_worked_example_counts_as_the_scheduler_does() -> None:
    text = read(ROOT / "docs" / "architecture.md")
    (table,) = [table for table in tables(text) if table[0][0] == "plan 1"]
    scheduler = Scheduler.create(
        max_num_batched_tokens=8, max_num_seqs=1, block_size=4, num_speculative_tokens=2
    )
    prompt = list(range(12))
    scheduler.submit(Request(id="a", prompt=prompt, max_tokens=7), now=0.0)  # pyright: ignore[reportArgumentType]
    columns = scheduler.state.table
    plans: dict[str, Plan] = {}
    for call, row, *counters, _ in table:
        verb, step = call.split()
        if verb == "plan":
            plan = plans[step] = scheduler.plan(now=0.0)
            count, drafts = int(plan.rows.count[0]), int(plan.rows.drafts[0])
            width = f"{count - drafts} + {drafts}" if drafts else f"{count}"
            assert row == f"{width} from {int(plan.start[0])}", call
        else:
            sampled = {"a": range(int(row.split()[0]))} if row else {}
            scheduler.commit(plans[step], StepResult.of(plans[step], sampled), now=0.0)
        now = [int(column[0]) for column in (columns.known, columns.planned, columns.computed)]
        assert [int(counter) for counter in counters] == now, call
    assert scheduler.idle
