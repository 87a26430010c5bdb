"""One server and one browser for all tests of the page."""

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.browser.site import Site, site

NAMES = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome")
TIMEOUT_MS = 30_000


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a browser; without one the tests are skipped, except in CI."""
    found = os.environ.get("PACELINE_BROWSER") or next(filter(None, map(shutil.which, NAMES)), "")
    if not found and os.environ.get("CI"):
        pytest.fail(f"CI tests the page in a browser, and finds none of {', '.join(NAMES)}")
    if not found:
        pytest.skip("no browser is installed: scripts/browser installs one")
    return found


@pytest.fixture(scope="session")
def served(chromium: str) -> Iterator[Site]:
    with site() as running:
        yield running


# It ends with this folder: while it lasts, its event loop counts as running in this thread, and
# tests of other folders could not run theirs.
@pytest.fixture(scope="package")
def browser(chromium: str) -> Iterator[Browser]:
    expect.set_options(timeout=TIMEOUT_MS)
    with sync_playwright() as playwright:
        # The tests may run as root, for whom chromium has no sandbox.
        launched = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def page(browser: Browser, served: Site) -> Iterator[Page]:
    opened = browser.new_page(viewport={"width": 1440, "height": 1000})
    opened.set_default_timeout(TIMEOUT_MS)
    yield opened
    opened.close()
