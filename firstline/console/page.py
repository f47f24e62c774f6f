"""The elements of every page: frame with navigation and freshness, tables, search forms.

A page refreshes every second while it is open: the timer belongs to the page, and ends with it. Stale data is labelled
in words, and loses its green colour.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from nicegui import ui
from nicegui.elements.mixins.text_element import TextElement

from firstline.console.cells import Cell, Column, Listing, Row, clock, plain
from firstline.console.polling import Answer

TICK_S = 1.0
_STYLE = Path(__file__).with_name("style.css")
_PLACES = (("/devices", "Devices"), ("/rollouts", "Rollouts"), ("/tiers", "Who answers"), ("/profiles", "Profiles"))
_T = TypeVar("_T")


class Frame:
    """The frame of a page; its content goes into `with frame.main:`.

    Args:
        title: of the page.
        place: its path in the navigation.
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
            # Live regions exist from the beginning: some screen readers ignore one that is added with its text.
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
        """Registers a function that receives whether the data is stale."""
        self._stale_handlers.append(handler)

    def say(self, sentence: str) -> None:
        """Shows the result of an action; "" removes it."""
        self._notice.set_text(sentence)

    def name(self, title: str) -> None:
        """Sets the title of the page."""
        if self._title.text != title:
            self._title.set_text(title)
            ui.page_title(f"{title} - Firstline")

    def follow(self, ask: Callable[[], Awaitable[Answer[_T]]], show: Callable[[_T], None]) -> None:
        """Asks repeatedly, and shows the answers."""

        async def tick() -> None:
            answer = await ask()
            self._show_freshness(answer)
            if answer.value is not None and answer.error is None:
                show(answer.value)

        ui.timer(TICK_S, tick)

    def _show_freshness(self, answer: Answer[_T]) -> None:
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
    """Returns an HTML element with text: "h2", "p", ..."""
    return TextElement(tag=tag, text=words)


def put(label: TextElement, cell: Cell) -> None:
    """Shows a cell's text and tone in a label."""
    label.set_text(cell.text)
    label.classes(replace=f"tone-{cell.tone}" if cell.tone else "")


# Vue shows a cell as text, never as HTML: text from devices is not trusted.
_BODY = r"""
<q-tr :props="props" role="row">
  <q-td v-for="col in props.cols" :key="col.name" :props="props" role="cell"
        :class="col.value.tone ? 'tone-' + col.value.tone : ''">
    <span class="label" aria-hidden="true">{{ col.label }}: </span>
    <a v-if="col.value.href" :href="col.value.href">{{ col.value.text }}</a>
    <span v-else class="value">{{ col.value.text }}</span>
  </q-td>
</q-tr>
"""


class Table:
    """A table whose rows keep their elements, and so the keyboard's focus, while their cells change.

    Args:
        label: its content, for screen readers.
        columns: its columns.
        empty: the text of an empty table.
    """

    def __init__(self, label: str, columns: Sequence[Column[Any]], empty: str) -> None:
        heads = [
            {
                "name": column.name,
                "label": column.label,
                "field": column.name,
                "align": "right" if column.number else "left",
            }
            for column in columns
        ]
        self._shown: list[Row] = []
        self._table = ui.table(columns=heads, rows=[], row_key="key").classes("rows")
        self._table.props('flat bordered dense wrap-cells hide-no-data role="group"').props["aria-label"] = label
        self._table.add_slot("body", _BODY)
        self._empty = ui.label(empty).classes("empty")
        for each in (self._table, self._empty):  # both are hidden before the first answer
            each.set_visibility(False)

    def show(self, rows: Sequence[Row]) -> None:
        """Shows other rows; nothing is sent if they are the same."""
        self._empty.set_visibility(not rows)
        self._table.set_visibility(bool(rows))
        if list(rows) != self._shown:
            self._shown = list(rows)
            self._table.rows = [plain(row) for row in rows]


class PagedTable(Table):
    """A table of a long list, with links to the next page and back to the first.

    Args:
        label: its content, for screen readers.
        columns: its columns.
        empty: the text of an empty table.
        more: text of the link to the next page.
        back: address of the first page; "" on the first page.
    """

    def __init__(self, label: str, columns: Sequence[Column[Any]], empty: str, more: str, back: str) -> None:
        super().__init__(label, columns, empty)
        with ui.element("nav").props('aria-label="Rows"').classes("following"):
            if back:
                ui.link("From the beginning", back)
            self._next = ui.link(more, "")
        self._next.set_visibility(False)

    def show_page(self, listing: Listing) -> None:
        """Shows a page of rows."""
        self.show(listing.rows)
        self._next.set_visibility(bool(listing.following))
        self._next.props["href"] = listing.following


def search_form(path: str, label: str, fields: Mapping[str, tuple[str, str]]) -> None:
    """Adds a form that the browser submits as a GET request, so that the page's address contains the search.

    Args:
        path: of the page.
        label: for screen readers.
        fields: label and value by parameter.
    """
    with ui.element("form").props(f'method="get" action="{path}" role="search" aria-label="{label}"'):
        for name, (caption, value) in fields.items():
            ui.input(caption, value=value).props(f'name="{name}" outlined dense')
        ui.button("Show").props('type="submit" no-caps')
