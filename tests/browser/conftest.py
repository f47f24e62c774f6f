"""The browser that tests of the console drive."""

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright
from support.needs import missing


@pytest.fixture(scope="module")  # for as long as it runs, no test of its process can run an event loop
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium")
    if chromium is None:
        missing("chromium is not installed: `make chromium`")
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium)
        yield found
        found.close()
