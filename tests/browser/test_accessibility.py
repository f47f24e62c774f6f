"""axe-core finds no serious fault on any page of the console, in both themes and on a small screen.

Only a browser can tell: contrast follows from both themes' colours, and names and roles from what Vue renders.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from support.console import console
from support.needs import missing
from support.showcase import Showcase, pages, showcase

from firstline.console.theme import COOKIE

AXE = Path(__file__).parents[2] / ".venv-browser" / "node_modules" / "axe-core" / "axe.min.js"
PATIENT_MS = 60_000
_RUN = """async () => (await axe.run(document, {resultTypes: ['violations']})).violations
  .filter(each => ['serious', 'critical'].includes(each.impact))
  .map(each => `${each.id}: ${each.nodes.map(node => node.target + ' ' + node.failureSummary).slice(0, 3)}`)"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium")
    if chromium is None or not AXE.exists():
        missing("chromium or axe-core is not installed: `make chromium .venv-browser/stamp`")
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium)
        yield found
        found.close()


@pytest.fixture(scope="module")
def fleet(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Showcase]:
    with showcase(tmp_path_factory.mktemp("showcase")) as found:
        yield found


@pytest.fixture(scope="module")
def url(fleet: Showcase, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with console(fleet.gateway.url, fleet.key, tmp_path_factory.mktemp("console") / "log") as found:
        yield found


def faults(page: Page, url: str, path: str) -> list[str]:
    """Returns axe-core's serious findings on a page, and whether it is wider than the screen."""
    page.goto(url + path)
    page.locator(".content").wait_for()
    page.locator(".loading").wait_for(state="hidden")
    page.wait_for_function("() => getComputedStyle(document.querySelector('h1')).fontWeight === '600'")
    page.evaluate(AXE.read_text())
    found: list[str] = page.evaluate(_RUN)
    width = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    return found + ([f"{width} pixels too wide"] if width > 0 else [])


@pytest.mark.parametrize(("theme", "width"), [("light", 400), ("dark", 1280)])
def test_no_page_has_a_serious_fault(browser: Browser, url: str, fleet: Showcase, theme: str, width: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900})
    context.set_default_timeout(PATIENT_MS)
    context.add_cookies([{"name": COOKIE, "value": theme, "url": url}])
    page = context.new_page()
    found = {path: faults(page, url, path) for path in pages(fleet).values()}
    context.close()
    assert {path: each for path, each in found.items() if each} == {}
