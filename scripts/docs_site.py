"""Builds the site from the Markdown of the whole repository, with the links that GitHub follows.

Pages link to files by relative path, also to files outside of docs/. mkdocs knows only the files in
docs/, so this hook adds the others: Markdown as pages, other files that a page links to unchanged.
"""

import re
from pathlib import Path
from posixpath import dirname, normpath, relpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
OUTSIDE = {  # pages outside of docs/, and their names in the site
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "examples/README.md": "examples.md",
    "benchmarks/README.md": "benchmarks.md",
    "tests/recorded/README.md": "recorded-decisions.md",
}
SOURCE = {name: path for path, name in OUTSIDE.items()}
FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(\[[^\]]*\]\()([^)\s#]+)([^)\s]*\))")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace patterns in the navigation by the pages that are not listed yet."""
    for section in config.nav or []:
        (title,) = section
        if isinstance(section[title], list):
            section[title] = expanded(section[title], Path(config.docs_dir))
    return config


def expanded(pages: list[str], folder: Path) -> list[str]:
    found: list[str] = []
    for page in pages:
        matching = sorted(folder.glob(page)) if "*" in page else [folder / page]
        names = [one.relative_to(folder).as_posix() for one in matching]
        found += [name for name in names if name not in found]
    return found


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, name in OUTSIDE.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / path)))
    wanted: set[str] = set()
    for page in files.documentation_pages():
        here = repository_path(page.src_uri)
        targets = [one[2] for part in prose(page.content_string) for one in LINK.finditer(part)]
        wanted |= {
            normpath(f"{dirname(here)}/{to}".lstrip("/")) for to in targets if "://" not in to
        }
    for path in sorted(wanted - OUTSIDE.keys()):
        if not path.startswith("docs/") and (ROOT / path).is_file():
            name = site_name(path)
            files.append(File.generated(config, name, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Let links lead to where their targets are in the site."""
    uri = page.file.src_uri
    here = repository_path(uri)

    def moved(found: re.Match[str]) -> str:
        before, to, after = found.groups()
        if "://" in to:
            return found[0]
        target = site_name(normpath(f"{dirname(here)}/{to}".lstrip("/")))
        return f"{before}{relpath(target, dirname(uri) or '.')}{after}"

    parts = FENCED.split(markdown)
    return "".join(part if part.startswith("```") else LINK.sub(moved, part) for part in parts)


def prose(markdown: str) -> list[str]:
    """The text outside of fenced blocks."""
    return [part for part in FENCED.split(markdown) if not part.startswith("```")]


def repository_path(uri: str) -> str:
    return SOURCE.get(uri, f"docs/{uri}")


def site_name(path: str) -> str:
    """Where a file of the repository is in the site."""
    if path in OUTSIDE:
        return OUTSIDE[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else f"files/{path}"
