"""One server and one browser for all tests of the page."""

import os
import shutil
from collections.abc import Iterator

import pytest

from playwright.sync_api import Page, sync_playwright

from tests.browser.site import Site, site

NAMES = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a browser; without one the tests are skipped, except in CI."""
    found = os.environ.get("PACELINE_BROWSER") or next(filter(None, map(shutil.which, NAMES)), "")
    if not found and os.environ.get("CI"):
        pytest.fail(f"CI has to test the page, and there is no browser: none of {', '.join(NAMES)}")
    if not found:
        pytest.skip("no browser; `apt-get install chromium` gets one")
    return found


@pytest.fixture(scope="session")
def served(chromium: str) -> Iterator[Site]:
    with site() as running:
        yield running


@pytest.fixture(scope="session")
def page(chromium: str, served: Site) -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": 1440, "height": 1000})
        opened.set_default_timeout(30_000)
        yield opened
        browser.close()
