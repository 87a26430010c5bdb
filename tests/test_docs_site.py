"""The documentation site builds without warnings and without a network, and has every page."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NO_NETWORK = """
import socket, sys

def refuse(*_, **__):
    raise OSError("the build must not use the network")

socket.socket.connect = socket.getaddrinfo = refuse
from mkdocs.__main__ import cli

cli(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-c", NO_NETWORK, "build", "--strict", "--site-dir", str(folder)]
    quiet = {"NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"}
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=ROOT, env=os.environ | quiet
    )
    assert done.returncode == 0, done.stderr
    return folder


def text_of(page: Path) -> str:
    return re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8"))


def test_every_page_is_in_the_site_and_in_its_navigation(site: Path) -> None:
    home = (site / "index.html").read_text(encoding="utf-8")
    pages = [
        page.relative_to(ROOT / "docs").with_suffix("").as_posix()
        for page in (ROOT / "docs").rglob("*.md")
    ]
    assert len(pages) > 40
    for page in (*pages, "benchmarks", "changelog", "contributing", "recorded-decisions"):
        name = page.removesuffix("README")
        assert (site / name / "index.html").is_file(), page
        assert f'href="{name.rstrip("/")}/"' in home, f"not in the navigation: {page}"


def test_links_to_files_of_the_repository_lead_to_copies(site: Path) -> None:
    promises = (site / "promises" / "index.html").read_text(encoding="utf-8")
    target = "files/tests/property/test_schedules.py"
    assert f'href="../{target}"' in promises
    assert (site / target).read_bytes() == (ROOT / target.removeprefix("files/")).read_bytes()
    home = (site / "index.html").read_text(encoding="utf-8")
    assert 'href="guides/serving/"' in home
    assert 'href="changelog/#not-there-yet"' in home


def test_links_in_code_are_left_alone(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert "](files/" not in text_of(page), page


@pytest.mark.parametrize(
    "name",
    [
        "LLM.generate",
        "LLM.chat",
        "LLM.close",
        "LLM.explain",
        "LLM.reset_prefix_cache",
        "AsyncLLM.generate",
        "AsyncLLM.shutdown",
        "SamplingParams",
        "Scheduler.plan",
        "Scheduler.commit",
        "Request",
    ],
)
def test_the_reference_has_the_public_classes(site: Path, name: str) -> None:
    page = (site / "api" / "index.html").read_text(encoding="utf-8")
    assert re.search(rf'id="paceline\.[\w.]+\.{re.escape(name)}"', page)


def test_the_reference_names_every_sampling_parameter(site: Path) -> None:
    from dataclasses import fields

    from paceline import Request, SamplingParams

    said = text_of(site / "api" / "index.html")
    for one in (*fields(SamplingParams), *fields(Request)):
        assert re.search(rf"\b{one.name}\b", said), one.name


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    loaded = re.compile(r"<(?:script|img|iframe)[^>]+src=\W?https?:|<link[^>]+href=\W?https?:")
    for page in site.rglob("*.html"):
        found = loaded.findall(page.read_text(encoding="utf-8"))
        assert not found, f"{page}: {found}"
