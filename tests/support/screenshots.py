"""Takes the documentation's pictures of the console: `make -C tests pictures`."""

import io
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright
from support.console import console
from support.showcase import pages, showcase

from firstline.console.theme import COOKIE

SIZE = {"width": 1280, "height": 860}
THEMES = {"overview": "light", "contract": "light", "rollout": "dark", "devices": "light", "device": "dark"}
"""The pages with a picture, each in one theme."""
_LIMIT_BYTES = 150_000


def take(target: Path) -> None:
    """Writes a WebP file for each page into a folder."""
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("chromium is not installed: `make chromium`")
    with (
        tempfile.TemporaryDirectory() as folder,
        showcase(Path(folder)) as fleet,
        console(fleet.gateway.url, fleet.key, Path(folder) / "log") as url,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=chromium)
        for name, theme in THEMES.items():
            context = browser.new_context(viewport=SIZE)
            context.add_cookies([{"name": COOKIE, "value": theme, "url": url}])
            page = context.new_page()
            page.goto(url + pages(fleet)[name])
            page.get_by_text("As of").wait_for()
            page.wait_for_timeout(1000)  # charts and fonts
            picture = io.BytesIO()
            Image.open(io.BytesIO(page.screenshot())).convert("RGB").save(picture, "WEBP", quality=80, method=6)
            assert len(picture.getvalue()) < _LIMIT_BYTES, name
            (target / f"console-{name}.webp").write_bytes(picture.getvalue())
            context.close()
        browser.close()


if __name__ == "__main__":
    take(Path(sys.argv[1]))
