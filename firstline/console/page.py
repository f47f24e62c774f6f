"""The elements of every page: frame with navigation and freshness, cards, tables, search forms.

A page refreshes every second while it is open: the timer belongs to the page, and ends with it. Stale data is labelled
in words, and loses its colours.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from nicegui import ui
from nicegui.elements.mixins.text_element import TextElement

from firstline.console import theme
from firstline.console.access import PERSON
from firstline.console.cells import Cell, Column, Listing, Row, clock, plain
from firstline.console.polling import Answer
from firstline_core.fleet.persons import Person, Role

TICK_S = 1.0
_PLACES = (
    ("/", "Overview", "dashboard"),
    ("/contracts", "Contracts", "verified"),
    ("/rollouts", "Rollouts", "rocket_launch"),
    ("/devices", "Devices", "memory"),
    ("/audit", "Audit log", "receipt_long"),
    ("/settings", "Settings", "settings"),
)
_T = TypeVar("_T")


class Frame:
    """The frame of a page; its content goes into `with frame.main:`.

    Args:
        title: of the page.
        place: its path in the navigation.
        lead: a sentence below the title; "" for none.
    """

    def __init__(self, title: str, place: str, lead: str = "") -> None:
        ui.page_title(f"{title} - Firstline")
        theme.apply()
        layout = ui.context.client.layout
        with layout, ui.element("header").classes("lg:fixed lg:inset-y-0 lg:w-56 bg-card border-line z-10") as top:
            top.classes("border-b lg:border-b-0 lg:border-r")
            _navigation(place)
            _person()
        top.move(layout, target_index=0)
        with ui.element("div").classes("lg:pl-56"):
            # Live regions exist from the beginning: some screen readers ignore one that is added with its text.
            self._banner = text("p").props('role="alert"').classes("banner")
            self.main = (
                ui.element("div").props('tabindex="-1"').classes("content pending px-4 sm:px-8 py-6 max-w-[140rem]")
            )
        ui.skip_link("Skip to the content", target=self.main)
        with self.main:
            with ui.element("div").classes("flex flex-wrap items-baseline justify-between gap-x-6 gap-y-1 mb-4"):
                with ui.element("div").classes("min-w-0"):
                    self._title = text("h1", title).classes("break-words")
                    if lead:
                        text("p", lead).classes("text-soft mt-1 max-w-3xl")
                self._heard = text("p").classes("text-soft text-sm")
            self._notice = text("p", "").props('role="status"').classes("notice")
            self._loading = text("p", "Loading…").props('role="status"').classes("card loading")
        self._stale_handlers: list[Callable[[bool], object]] = []

    def on_stale(self, handler: Callable[[bool], object]) -> None:
        """Registers a function that receives whether the data is stale."""
        self._stale_handlers.append(handler)

    def say(self, sentence: str) -> None:
        """Shows the result of an action; "" removes it."""
        self._notice.set_text(_plain(sentence))

    def name(self, title: str) -> None:
        """Sets the title of the page."""
        if self._title.text != title:
            self._title.set_text(title)
            ui.page_title(f"{title} - Firstline")

    def loaded(self) -> None:
        """Shows the content; `follow` does so by itself once there is data."""
        self._loading.set_visibility(False)
        self.main.classes(remove="pending")

    def follow(self, ask: Callable[[], Awaitable[Answer[_T]]], show: Callable[[_T], None]) -> None:
        """Asks repeatedly, and shows the answers."""
        shown: _T | None = None

        async def tick() -> None:
            nonlocal shown
            answer = await ask()
            self._show_freshness(answer)
            if answer.value is not None and (answer.error is None or shown is None):
                shown = answer.value
                show(answer.value)
            if answer.value is not None:
                self.loaded()
            self._loading.set_visibility(False)

        ui.timer(TICK_S, tick)

    def _show_freshness(self, answer: Answer[_T]) -> None:
        since = clock(answer.heard_s)
        why = _plain(answer.error.message) if answer.error is not None else ""
        if answer.stale:
            self._banner.set_text(f"Stale since {since} UTC: {why}")
            self._heard.set_text("")
        else:
            self._banner.set_text(why)
            self._heard.set_text(f"As of {since} UTC" if answer.error is None else "")
        self.main.classes(add="stale") if answer.stale else self.main.classes(remove="stale")
        for handler in self._stale_handlers:
            handler(answer.stale)


def _plain(sentence: str) -> str:
    """Returns a message of the gateway without the backticks that mark commands."""
    return sentence.replace("`", "")


def _navigation(place: str) -> None:
    """Adds the navigation: a column on a wide screen, a menu on a narrow one."""
    with ui.element("div").classes("flex items-center justify-between px-4 py-3 lg:px-5 lg:py-5"):
        text("span", "Firstline").classes("text-lg font-bold tracking-tight")
        theme.toggle()
    with ui.element("nav").props('aria-label="Pages"').classes("max-lg:hidden px-3"):
        _links(place)
    with ui.element("details").classes("lg:hidden px-3 pb-3"):
        current = next((name for path, name, _ in _PLACES if path == place), "")
        text("summary", f"☰ Menu: {current}").classes("cursor-pointer px-3 py-2 rounded-lg bg-plain-tint")
        with ui.element("nav").props('aria-label="Menu"').classes("pt-2"):
            _links(place)


def may(role: Role = Role.OPERATOR, *, whole_fleet: bool = False) -> bool:
    """Returns whether the user of the page may carry out a command; without sign-in, everyone may.

    The gateway decides. The page only hides what it would refuse.

    Args:
        role: that the command needs.
        whole_fleet: whether the command concerns all devices.
    """
    person = _signed_in()
    if person is None:
        return True
    roles = list(Role)
    return roles.index(person.role) >= roles.index(role) and not (whole_fleet and person.devices)


def own_devices() -> str:
    """Returns the selector of the devices of the user of the page; "" for all devices."""
    person = _signed_in()
    return person.devices if person is not None else ""


def _signed_in() -> Person | None:
    person: Person | None = ui.context.client.request.scope.get(PERSON)
    return person


def _person() -> None:
    """Adds the name of the person who signed in, and the button that ends the session."""
    person = _signed_in()
    if person is None:
        return
    with (
        ui.element("form")
        .props('method="post" action="/sign-in/out"')
        .classes(
            "flex flex-wrap items-center justify-between gap-2 px-4 pb-3 lg:absolute lg:inset-x-0 lg:bottom-0 lg:px-5"
        )
    ):
        with ui.element("div").classes("min-w-0 text-sm"):
            text("span", person.name).classes("block font-semibold break-all")
            limit = f", {person.devices}" if person.devices else ""
            text("span", f"{person.role}{limit}").classes("block text-soft break-all")
        button("Sign out").props('type="submit"')


def _links(place: str) -> None:
    for path, name, icon in _PLACES:
        with ui.link(target=path).classes("nav-link") as link:
            ui.icon(icon).classes("text-xl").props('aria-hidden="true"')
            text("span", name)
        if path == place:
            link.props('aria-current="page"')


def text(tag: str, words: str = "") -> TextElement:
    """Returns an HTML element with text: "h2", "p", ..."""
    return TextElement(tag=tag, text=words)


@contextmanager
def card(title: str = "", classes: str = "") -> Iterator[ui.element]:
    """Adds a card with a heading; its content goes into the block."""
    with ui.element("section").classes(f"card {classes}") as section:
        if title:
            text("h2", title).classes("mb-3")
        yield section


@contextmanager
def grid(columns: str = "md:grid-cols-2") -> Iterator[None]:
    """Adds a grid of cards, of one column on a narrow screen."""
    with ui.element("div").classes(f"grid grid-cols-1 gap-4 {columns} mb-4 items-start"):
        yield


def put(label: TextElement, cell: Cell, classes: str = "") -> None:
    """Shows a cell's text and tone in a label."""
    label.set_text(cell.text)
    label.classes(replace=f"{classes} tone-{cell.tone}" if cell.tone else classes)


class Facts:
    """Facts as names and values."""

    def __init__(self, classes: str = "") -> None:
        self._list = ui.element("dl").classes(f"facts {classes}")
        self._values: dict[str, TextElement] = {}

    def show(self, facts: list[tuple[str, Cell]]) -> None:
        """Shows other values."""
        for name, cell in facts:
            if name not in self._values:
                with self._list:
                    text("dt", name)
                    with ui.element("dd"):
                        self._values[name] = text("span")
            put(self._values[name], cell)


class Redrawn:
    """A part of a page that is built again when its data changes; the data is compared, so a quiet page sends nothing.

    Args:
        build: adds the elements for the data.
    """

    def __init__(self, build: Callable[[Any], object], classes: str = "") -> None:
        self._build = build
        self._shown: Any = None
        self._place = ui.element("div").classes(classes)

    def show(self, data: object) -> None:
        """Shows other data."""
        if data != self._shown:
            self._shown = data
            self._place.clear()
            with self._place:
                self._build(data)


def empty(sentence: str, command: str = "") -> None:
    """Says that there is nothing to show, and the command that changes that."""
    text("p", sentence).classes("empty-state")
    if command:
        text("code", command).classes("command")


def button(label: str, on_click: Callable[[], Any] | None = None, kind: str = "") -> ui.button:
    """Returns a button; `kind` is "primary", "danger" or ""."""
    found = ui.button(label, on_click=on_click, color=None).props("no-caps unelevated")
    return found.classes(f"btn btn-{kind}" if kind else "btn")


def button_link(label: str, href: str) -> ui.link:
    """Returns a link that looks like a primary button."""
    return ui.link(label, href).classes("btn btn-primary")


def choices(label: str, links: Sequence[tuple[str, str, bool]]) -> None:
    """Adds links of which one is chosen: text, address, and whether it is chosen."""
    with ui.element("nav").classes("choices my-3") as bar:
        bar.props["aria-label"] = label
        for words, href, chosen in links:
            link = ui.link(words, href)
            if chosen:
                link.props('aria-current="true"')


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
_SELECTABLE = _BODY.replace(
    "<q-td v-for",
    '<q-td auto-width role="cell"><q-checkbox v-model="props.selected" :aria-label="\'Select \' + props.key"/></q-td>\n'
    "  <q-td v-for",
)
_SELECT_ALL = '<q-checkbox v-model="props.selected" aria-label="Select all rows of this page"/>'


class Table:
    """A table whose rows keep their elements, and so the keyboard's focus, while their cells change.

    Args:
        label: its content, for screen readers.
        columns: its columns.
        empty: the text of an empty table.
        selectable: whether rows can be selected; `selected` has their keys.
    """

    def __init__(self, label: str, columns: Sequence[Column[Any]], empty: str, *, selectable: bool = False) -> None:
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
        self._table = ui.table(
            columns=heads, rows=[], row_key="key", selection="multiple" if selectable else None
        ).classes("rows")
        self._table.props('flat dense wrap-cells hide-no-data hide-selected-banner role="group"')
        self._table.props["aria-label"] = label
        if selectable:
            self._table.add_slot("header-selection", _SELECT_ALL)
        self._table.add_slot("body", _SELECTABLE if selectable else _BODY)
        self._empty = text("p", empty).classes("empty-state")
        for each in (self._table, self._empty):  # both are hidden before the first answer
            each.set_visibility(False)

    @property
    def selected(self) -> list[str]:
        """Returns the keys of the selected rows."""
        return [row["key"] for row in self._table.selected]

    def show(self, rows: Sequence[Row]) -> None:
        """Shows other rows; nothing is sent if they are the same."""
        self._empty.set_visibility(not rows and bool(self._empty.text))
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
        selectable: whether rows can be selected.
    """

    def __init__(
        self,
        label: str,
        columns: Sequence[Column[Any]],
        empty: str,
        more: str,
        back: str,
        *,
        selectable: bool = False,
    ) -> None:
        super().__init__(label, columns, empty, selectable=selectable)
        with ui.element("nav").props('aria-label="Rows"').classes("flex gap-4 mt-3"):
            if back:
                ui.link("From the beginning", back)
            self._next = ui.link(more, "")
        self._next.set_visibility(False)

    def show_page(self, listing: Listing) -> None:
        """Shows a page of rows."""
        self.show(listing.rows)
        self._next.set_visibility(bool(listing.following))
        self._next.props["href"] = listing.following


def search_form(
    path: str, label: str, fields: Mapping[str, tuple[str, str]], hidden: Mapping[str, str] | None = None
) -> None:
    """Adds a form that the browser submits as a GET request, so that the page's address contains the search.

    Args:
        path: of the page.
        label: for screen readers.
        fields: label and value by parameter.
        hidden: parameters that stay as they are; those with a field, or without a value, are left out.
    """
    form = ui.element("form").props(f'method="get" action="{path}" role="search"')
    form.props["aria-label"] = label
    with form.classes("flex flex-wrap gap-3 items-center mb-4"):
        for name, value in (hidden or {}).items():
            if value and name not in fields:
                field = ui.element("input").props(f'type="hidden" name="{name}"')
                field.props["value"] = value
        for name, (caption, value) in fields.items():
            ui.input(caption, value=value).props(f'name="{name}" outlined dense').classes("grow basis-64 max-w-md")
        button("Show", kind="primary").props('type="submit"')
