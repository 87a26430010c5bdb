"""The files of the page fit each other, the messages and the wheel; this needs no browser."""

import re
from pathlib import Path

import msgspec
import pytest

from paceline.engine.live import frames

FOLDER = Path(frames.__file__).parents[2] / "server" / "live" / "page"
MODULES = sorted(FOLDER.glob("*.js"))
PAGE = (FOLDER / "index.html").read_text(encoding="utf-8")
LINES_PER_FILE = 400
SENT = ("StreamStart", "StreamStatus", "Frame", "RequestLife")


def structs() -> dict[str, type[msgspec.Struct]]:
    """The messages that a page gets, and their parts."""
    own = {name: one for name, one in vars(frames).items() if isinstance(one, type)}
    found: dict[str, type[msgspec.Struct]] = {}
    pending = list(SENT)
    while pending:
        name = pending.pop()
        found[name] = own[name]
        for field in msgspec.structs.fields(own[name]):
            pending += [
                part
                for part in re.findall(r"\w+", str(field.type))
                if part in own.keys() - found.keys()
            ]
    return found


@pytest.mark.parametrize("name", sorted(structs()))
def test_the_page_knows_the_fields_of_a_message(name: str) -> None:
    text = re.sub(r"\n \*", " ", (FOLDER / "messages.js").read_text(encoding="utf-8"))
    fields = [field.name for field in msgspec.structs.fields(structs()[name])]
    if name == "Seat":  # a list in JSON
        assert f"[{', '.join(fields)}]" in text
        return
    known = re.search(rf"@typedef \{{\{{([^}}]*)\}}\}} {name}\b", text)
    assert known, f"messages.js does not know {name}"
    assert re.findall(r"(\w+):", known[1]) == fields


def test_the_page_knows_every_cell() -> None:
    text = (FOLDER / "messages.js").read_text(encoding="utf-8")
    cells = [
        frames.VACANT, frames.IDLE, frames.PREFILL, frames.AGAIN,
        frames.CACHED, frames.DECODE, frames.DRAFTS, frames.PREEMPTED,
    ]  # fmt: skip
    for cell in cells:
        assert re.search(rf'^  "?{re.escape(cell.decode())}"?: {{.*weight', text, re.MULTILINE)
    for kind in frames.BLOCK_KINDS.decode():
        assert re.search(rf"^  {kind}: {{ name: \"\w+\", words", text, re.MULTILINE)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_a_module_is_small_and_finds_what_it_names(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LINES_PER_FILE
    assert text.startswith("// "), "the first line says what the module is for"
    for name in re.findall(r'(?:from|import) "\./([^"]+)"', text):
        assert (FOLDER / name).is_file(), name
    for name in re.findall(r'byId\("([\w-]+)"\)', text):
        assert f'id="{name}"' in PAGE, name


def test_nothing_is_loaded_from_elsewhere() -> None:
    for path in (*MODULES, *FOLDER.glob("*.css"), FOLDER / "index.html"):
        assert "//" not in re.sub(r"^\s*//.*|\s// .*", "", path.read_text("utf-8"), flags=re.M), (
            path
        )
    for name in re.findall(r'(?:src|href)="([^"#]+)"', PAGE):
        assert (FOLDER / name).is_file(), name
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*src=)", PAGE), (
        "the policy forbids it"
    )


def test_what_others_wrote_comes_with_its_licence() -> None:
    assert "MIT" in (FOLDER / "vendor" / "uPlot.LICENSE").read_text(encoding="utf-8")
