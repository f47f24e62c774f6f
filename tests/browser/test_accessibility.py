"""axe-core finds no serious fault on any page of the console, in both themes, and each fits a small screen.

Only a browser can tell: contrast follows from both themes' colours, and names and roles from what Vue renders.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page
from support.console import console
from support.needs import missing
from support.showcase import Showcase, pages, showcase

AXE = Path(__file__).parents[2] / ".venv-browser" / "node_modules" / "axe-core" / "axe.min.js"
PATIENT_MS = 60_000
_RUN = """async () => (await axe.run(document, {resultTypes: ['violations']})).violations
  .filter(each => ['serious', 'critical'].includes(each.impact))
  .map(each => `${each.id}: ${each.nodes.map(node => node.target + ' ' + node.failureSummary).slice(0, 3)}`)"""
# What the page holds that overflows it, though the page hides it.
_WIDER = """() => [...document.querySelectorAll('main *, header *')].filter(
  each => each.getBoundingClientRect().right > innerWidth + 1 && getComputedStyle(each).clipPath === 'none'
  && !each.closest('thead')).map(each => 'too wide: ' + each.outerHTML.slice(0, 120))"""

_WIDER_TABLES = """() => [...document.querySelectorAll('.rows')].filter(each => {
  const content = each.querySelector('.q-table__middle'); return content.scrollWidth > content.clientWidth
  }).map(each => 'wider than its card: ' + each.getAttribute('aria-label'))"""


@pytest.fixture(scope="module")
def fleet(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Showcase]:
    if not AXE.exists():
        missing("axe-core is not installed: `make .venv-browser/stamp`")
    with showcase(tmp_path_factory.mktemp("showcase")) as found:
        yield found


@pytest.fixture(scope="module")
def url(fleet: Showcase, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with console(fleet.gateway.url, fleet.key, tmp_path_factory.mktemp("console") / "log") as found:
        yield found


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    """For both themes, so that the browser loads and compiles the console's scripts once."""
    context = browser.new_context()
    context.set_default_timeout(PATIENT_MS)
    yield context.new_page()
    context.close()


def faults(page: Page, url: str, path: str) -> list[str]:
    """Returns axe-core's serious findings on a page, and whether it or a table is too wide."""
    page.goto(url + path)
    page.locator(".content").wait_for()
    page.locator(".loading").wait_for(state="hidden")
    page.wait_for_function("() => getComputedStyle(document.querySelector('h1')).fontWeight === '600'")
    page.evaluate(AXE.read_text())
    found: list[str] = page.evaluate(_RUN) + page.evaluate(_WIDER_TABLES)
    width = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    return found + ([f"{width} pixels too wide"] if width > 0 else [])


@pytest.mark.parametrize(("theme", "width"), [("light", 375), ("dark", 1280)])
def test_no_page_has_a_serious_fault(page: Page, url: str, fleet: Showcase, theme: str, width: int) -> None:
    from firstline.console.theme import COOKIE  # only here, because it imports NiceGUI

    page.set_viewport_size({"width": width, "height": 900})
    page.context.add_cookies([{"name": COOKIE, "value": theme, "url": url}])
    found = {}
    for path in pages(fleet).values():
        found[path] = faults(page, url, path)
        if width < 400:
            found[path] += page.evaluate(_WIDER)
    assert {path: each for path, each in found.items() if each} == {}
