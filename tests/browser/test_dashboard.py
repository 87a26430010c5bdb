"""The page as a user meets it, from the key to the end of the server, in one sitting."""

import re
from collections.abc import Callable
from time import monotonic

import pytest
from playwright.sync_api import Page, expect

from tests.browser.site import KEY, PATIENCE_S, Site

FEW = 8  # requests; there are always more while the load lasts
# How many pixels of the slots have the colour of a state.
PIXELS = """state => {
  const canvas = document.getElementById("slots");
  const swatch = document.querySelector(`.swatch.cell-${state}`);
  const wanted = getComputedStyle(swatch).backgroundColor.match(/\\d+/g).map(Number);
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let found = 0;
  for (let i = 0; i < data.length; i += 4)
    found += wanted.every((value, j) => data[i + j] === value);
  return found;
}"""


def figure(page: Page, name: str) -> str:
    """The number of a tile."""
    return page.locator(f"#tiles > div:has(dt:text-is('{name}')) dd span").inner_text()


def until(page: Page, reached: Callable[[], bool]) -> None:
    """Playwright's own wait evaluates text in the page, which the page's policy forbids."""
    give_up = monotonic() + PATIENCE_S
    while not reached():
        assert monotonic() < give_up
        page.wait_for_timeout(50)


def frames(page: Page) -> int:
    """Those that the page has."""
    return int(page.get_attribute("#scrub", "max") or 0) + 1


class Told:
    """What the browser said and loaded."""

    def __init__(self, page: Page) -> None:
        self.errors: list[str] = []
        self.urls: set[str] = set()
        page.on(
            "console", lambda one: self.errors.append(one.text) if one.type == "error" else None
        )
        page.on("pageerror", lambda error: self.errors.append(error.message))
        page.on("request", lambda request: self.urls.add(request.url))


@pytest.fixture(scope="module")
def told(page: Page) -> Told:
    return Told(page)


def test_it_asks_for_the_key(page: Page, served: Site, told: Told) -> None:
    page.goto(f"{served.url}/dashboard")
    expect(page.locator("#key-dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#key-dialog")).to_be_hidden()
    page.click("#ask-key")
    expect(page.locator("#key-dialog")).to_be_visible()
    for key, wrong in (("not the key", True), ("ключ", True), (KEY, False)):
        page.fill("#key", key)
        page.keyboard.press("Enter")
        if wrong:
            expect(page.locator("#key-wrong")).to_be_visible()
    expect(page.locator("#state")).to_have_text("Live, idle")
    expect(page.locator("#key-dialog")).to_be_hidden()
    assert all("401" in error for error in told.errors), "the browser complains of the key alone"
    told.errors.clear()
    assert all(url.startswith(served.url) for url in told.urls), "it loads from nowhere else"


def test_it_follows_200_requests(page: Page, served: Site, told: Told) -> None:
    served.do(served.engine.pause("all"))
    answers = served.load(200)
    until(page, lambda: figure(page, "Waiting") == "200")
    assert page.locator("#queue tbody tr").count() > FEW
    before = frames(page)
    served.do(served.engine.resume())
    until(page, lambda: int(figure(page, "Running")) > FEW)
    assert re.search(r"waits for \w+", page.inner_text("#queue-reason"))
    assert page.inner_text("#state") == "Live"
    rates = "#tiles dd span, #charts figure:first-child .legend b"
    shown = page.locator(rates).evaluate_all("found => found.map(one => one.textContent)")
    assert shown[0] == shown[-1], "the tile and the chart have the same tokens per second"
    running = re.search(r"^(\d+) of 32 taken", page.inner_text("#slots-note"))
    assert running is not None
    until(page, lambda: page.evaluate(PIXELS, "decode") > page.evaluate(PIXELS, "prefill") > 0)
    tenants = page.locator("#tenants tbody tr td:first-child").all_inner_texts()
    assert sorted(tenants) == ["batch", "chat", "research"]
    assert answers.result() == [200] * 200
    expect(page.locator("#state")).to_have_text("Live, idle")
    assert figure(page, "Running") == "0"
    until(page, lambda: figure(page, "Generated") == "0")  # once the last second was idle
    assert figure(page, "ITL, p50") != "–"
    assert frames(page) > before + 2
    assert not told.errors


def test_bars_cover_no_panel(page: Page) -> None:
    """A picture of the whole page has every bar where it is before the page is scrolled."""
    bars, panels = (page.locator(one).bounding_box() for one in (".bars", "#panels"))
    assert bars is not None
    assert panels is not None
    assert bars["y"] == 0
    assert bars["y"] + bars["height"] <= panels["y"]
    for name in ("#scrub", "#find"):
        inner = page.locator(name).bounding_box()
        assert inner is not None
        assert inner["y"] + inner["height"] <= bars["height"]


def test_it_goes_back_in_time(page: Page) -> None:
    page.keyboard.press("Home")
    expect(page.locator("#state")).to_have_text("Paused")
    assert figure(page, "Running") == "0", "the page was opened before the load came"
    for _ in range(frames(page)):
        page.keyboard.press("ArrowRight")
        page.wait_for_timeout(20)
        if int(figure(page, "Running")) > FEW:
            break
    assert int(figure(page, "Running")) > FEW
    shown = page.inner_text("#moment")
    page.wait_for_timeout(700)
    assert page.inner_text("#moment").split(" ")[0] == shown.split(" ")[0], "it stands still"


def test_a_request_tells_its_life(page: Page) -> None:
    page.keyboard.press("v")
    row = page.locator("#slots-table tbody tr .link").first
    request = row.get_attribute("data-id") or ""
    row.click()
    life = page.locator("#life")
    expect(life.locator("h2")).to_have_text(request)
    expect(life.locator("#life-state")).to_contain_text("finished")
    phases = life.locator("#life-phases tbody tr td:first-child").all_inner_texts()
    assert {"waiting", "prefill", "decode"} <= set(phases)
    sentences = " ".join(life.locator("#life-sentences li").all_inner_texts())
    assert "tokens of prompt" in sentences
    assert re.search(r"admitted in step \d+", sentences)
    assert re.search(r"ended \(length\) with \d+ tokens known", sentences)
    expect(life.locator("#life-prompt")).to_be_hidden()
    page.keyboard.press("Escape")
    expect(life).to_be_hidden()
    assert page.evaluate("document.activeElement.dataset.id") == request, "the focus comes back"
    page.keyboard.press("v")
    page.fill("#find-id", "nonsense")
    page.keyboard.press("Enter")
    expect(page.locator("#life-trouble")).to_contain_text("no request 'nonsense' is known")
    page.click("#life-close")


def test_keys_and_themes(page: Page) -> None:
    page.focus("#panels")
    page.keyboard.press("?")
    expect(page.locator("#help-dialog kbd").first).to_be_visible()
    page.keyboard.press("Escape")
    colours = set[str]()
    for _ in range(2):
        page.keyboard.press("t")
        colours.add(page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))
    assert len(colours) == 2
    page.set_viewport_size({"width": 400, "height": 800})
    page.keyboard.press("/")
    expect(page.locator("#find-id")).to_be_focused()
    page.set_viewport_size({"width": 1440, "height": 1000})
    page.focus("#slots")
    page.keyboard.press("ArrowDown")
    expect(page.locator("#said")).to_contain_text("Slot 0")
    page.keyboard.press("s")
    expect(page.locator("#said")).to_contain_text("tokens per second")
    page.keyboard.press("End")
    expect(page.locator("#state")).to_have_text("Live, idle")


def test_it_survives_a_restart_of_the_core(page: Page, served: Site) -> None:
    served.kill_core()
    expect(page.locator("#banner")).to_contain_text("Engine 0")
    expect(page.locator("#banner")).to_be_hidden()
    assert served.load(8).result() == [200] * 8
    until(page, lambda: "steps 1 to" in page.inner_text("#slots-note"))
    page.keyboard.press("Home")
    expect(page.locator("#state")).to_have_text("Paused")
    page.keyboard.press("End")


def test_it_says_when_the_server_is_gone(page: Page, served: Site) -> None:
    served.stop()
    expect(page.locator("#banner")).to_contain_text("The server stopped answering; trying again")
    expect(page.locator("#state")).to_have_text("Not connected")
