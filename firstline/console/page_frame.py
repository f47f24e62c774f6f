"""The frame of every page: navigation, title and freshness of the data.

A page refreshes every second while it is open: the timer is the page's, and ends with it. Stale data is labelled in
    words, and loses its green colour.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from nicegui import ui
from nicegui.elements.mixins.text_element import TextElement

from firstline.console.cells import Cell, clock
from firstline.console.polling import Answer

TICK_S = 1.0
_STYLE = Path(__file__).with_name("style.css")
_PLACES = (("/devices", "Devices"), ("/rollouts", "Rollouts"), ("/tiers", "Who answers"), ("/profiles", "Profiles"))

_T = TypeVar("_T")


class Frame:
    """A page's frame; its content goes into `with frame.main:`.

    Args:
        title: of the page.
        place: where in the way around it is.
    """

    def __init__(self, title: str, place: str) -> None:
        ui.page_title(f"{title} - Firstline")
        ui.add_css(_STYLE)
        ui.colors(primary="#0b5cad", negative="#b3132b")
        layout = ui.context.client.layout
        with layout, ui.element("header").classes("top") as top:
            with ui.element("div").classes("places"):
                text("span", "Firstline").classes("brand")
                with ui.element("nav").props('aria-label="Pages"'):
                    for path, name in _PLACES:
                        link = ui.link(name, path)
                        if path == place:
                            link.props('aria-current="page"')
            # They are there from the beginning: a live region that comes with its words is not read out everywhere.
            self._banner = text("p").props('role="alert"').classes("banner")
            self._heard = text("p", "Asking the gateway.").classes("heard")
        top.move(layout, target_index=0)
        self.main = ui.element("div").props('tabindex="-1"').classes("main")
        ui.skip_link("Skip to the content", target=self.main)
        with self.main:
            self._title = text("h1", title)
            self._notice = text("p", "").props('role="status"').classes("notice")
        self._stale_handlers: list[Callable[[bool], None]] = []

    def on_stale(self, handler: Callable[[bool], None]) -> None:
        """Has a part of the page told whether what it shows is stale."""
        self._stale_handlers.append(handler)

    def say(self, sentence: str) -> None:
        """Says what came of something; "" takes it away."""
        self._notice.set_text(sentence)

    def name(self, title: str) -> None:
        """Gives the page its title once it is known."""
        if self._title.text != title:
            self._title.set_text(title)
            ui.page_title(f"{title} - Firstline")

    def follow(self, ask: Callable[[], Awaitable[Answer[_T]]], show: Callable[[_T], None]) -> None:
        """Asks now and again, and shows what is new."""

        async def tick() -> None:
            answer = await ask()
            self._tell(answer)
            if answer.value is not None and answer.error is None:
                show(answer.value)

        ui.timer(TICK_S, tick)

    def _tell(self, answer: Answer[_T]) -> None:
        since = clock(answer.heard_s)
        why = answer.error.message if answer.error is not None else ""
        if answer.stale:
            self._banner.set_text(f"Stale since {since} UTC: {why}")
            self._heard.set_text("")
        else:
            self._banner.set_text(why)
            self._heard.set_text(f"As of {since} UTC." if answer.error is None else "")
        self.main.classes(add="stale") if answer.stale else self.main.classes(remove="stale")
        for handler in self._stale_handlers:
            handler(answer.stale)


def text(tag: str, words: str = "") -> TextElement:
    """An element that says something: "h2", "p", ..."""
    return TextElement(tag=tag, text=words)


def put(label: TextElement, cell: Cell) -> None:
    """Shows a cell's words and tone as a label."""
    label.set_text(cell.text)
    label.classes(replace=f"tone-{cell.tone}" if cell.tone else "")
