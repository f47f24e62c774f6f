"""axe-core finds no serious fault on any page of the console, in both themes, and each fits small and large screens.

Only a browser can tell: contrast follows from both themes' colours, and names and roles from what Vue renders.
"""

from pathlib import Path

from playwright.sync_api import Browser, Page
from support.console import console
from support.needs import missing
from support.showcase import pages, showcase

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

_DARK = "document.body?.classList.contains('body--dark')"
# A change of the theme or of the size may be a transition, in which colours are between those of both themes.
_AT_REST = "() => document.getAnimations().every(each => each.playState !== 'running')"


def faults(page: Page) -> list[str]:
    """Returns axe-core's serious findings on a page, and whether it or a table is too wide."""
    page.wait_for_function(_AT_REST)
    found: list[str] = page.evaluate(_RUN) + page.evaluate(_WIDER_TABLES)
    width = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    return found + ([f"{width} pixels too wide"] if width > 0 else [])


def test_no_page_has_a_serious_fault(browser: Browser, tmp_path: Path) -> None:
    """A page follows the system's theme and the window's size, so each is loaded once; the chosen theme comes first."""
    if not AXE.exists():
        missing("axe-core is not installed: `make .venv-browser/stamp`")
    found = {}
    with showcase(tmp_path) as fleet, console(fleet.gateway.url, fleet.key, tmp_path / "console.log") as url:
        page = browser.new_page()
        page.set_default_timeout(PATIENT_MS)
        for path in pages(fleet).values():
            page.emulate_media(color_scheme="light")
            page.set_viewport_size({"width": 375, "height": 900})
            page.goto(url + path)
            page.locator(".content").wait_for()
            page.locator(".loading").wait_for(state="hidden")
            page.wait_for_function("() => getComputedStyle(document.querySelector('h1')).fontWeight === '600'")
            page.evaluate(AXE.read_text())
            assert not page.evaluate(_DARK), path
            found[path, "light"] = faults(page) + page.evaluate(_WIDER)
            page.emulate_media(color_scheme="dark")
            page.set_viewport_size({"width": 1280, "height": 900})
            page.wait_for_function(_DARK)
            found[path, "dark"] = faults(page)
        page.get_by_label("Change between light and dark").click()
        page.wait_for_function(f"{_DARK} === false")
    assert {path: each for path, each in found.items() if each} == {}
