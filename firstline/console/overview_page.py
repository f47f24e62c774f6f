"""The page with the state of the whole fleet."""

from __future__ import annotations

import time

from nicegui import ui

from firstline.console import answers_view
from firstline.console import overview_view as view
from firstline.console.cells import Tone
from firstline.console.page import Frame, Redrawn, Table, card, empty, grid, search_form, text
from firstline.console.polling import Watch
from firstline.fleet.client import Fleet

_TAG = "site"


def add_pages(watch: Watch) -> None:
    """Adds the page to the application."""

    @ui.page("/")
    def _overview(tag: str = _TAG) -> None:
        frame = Frame("Overview", "/")
        with frame.main:
            devices = Redrawn(_tiles, "grid grid-cols-2 sm:grid-cols-3 xl:grid-cols-5 gap-4 mb-4")
            with grid("xl:grid-cols-3"):
                with card("Needs attention", "xl:col-span-2"):
                    attention = Redrawn(_attention)
                with card("Contracts"):
                    contracts = Redrawn(_tiles, "grid grid-cols-2 gap-3")
                with card("Answers of the last 24 hours", "xl:col-span-2"):
                    answers = Redrawn(_figures, "flex flex-wrap gap-x-10 gap-y-3 mb-2")
                    ages = text("p").classes("text-soft text-sm mb-2")
                    chart = ui.echart(answers_view.chart([], 1.0, time.time())).classes("chart")
                with card("Agents"):
                    agents = Table("Agents", view.AGENTS, "No device has reported yet.")
            with grid("xl:grid-cols-2"):
                with card(f"Devices by {tag}"):
                    search_form("/", "Choose a tag", {"tag": ("Count devices by this tag", tag)})
                    by_tag = Table("Devices by tag", view.BY_TAG, "No device has this tag.")
                with card("Oldest outboxes"):
                    outboxes = Table("Outboxes", view.OUTBOXES, "No device waits for corrections.")

        def show(data: view.OverviewData) -> None:
            devices.show(view.device_tiles(data.fleet))
            attention.show(view.attention(data))
            contracts.show(view.contract_tiles(data.contracts))
            answers.show(view.answer_figures(data.tiers))
            span_s, shares = answers_view.shares(data.tiers)
            # The end of the time axis moves in steps, so that an unchanged chart is not sent again.
            drawn = answers_view.chart(shares, span_s, -(-time.time() // span_s) * span_s)
            if drawn != chart.options:
                chart.options.update(drawn)
                chart.update()
            ages.set_text(view.report_ages(data.fleet))
            agents.show(view.agent_rows(data.fleet))
            by_tag.show(view.tag_rows(data.fleet))
            outboxes.show(view.outbox_rows(data.fleet))

        def fetch(fleet: Fleet) -> view.OverviewData:
            return view.OverviewData(fleet.overview(tag), fleet.contracts(), fleet.tiers(answers_view.HOURS))

        frame.follow(lambda: watch.ask(("overview", tag), fetch), show)


def _tiles(tiles: list[view.Tile]) -> None:
    for tile in tiles:
        with ui.link(target=tile.href).classes("card block no-underline text-ink p-4 hover:border-accent"):
            number = text("span", f"{tile.number:,}").classes("block text-3xl font-semibold tabular-nums")
            if tile.tone is not Tone.PLAIN:
                number.classes(f"tone-{tile.tone}")
            text("span", tile.label).classes("block text-soft text-sm mt-1")


def _attention(items: list[view.Attention]) -> None:
    if not items:
        empty("Nothing needs attention.")
    with ui.element("ul").classes("divide-y divide-line"):
        for item in items:
            with ui.element("li").classes("py-2"):
                text("span").classes(f"tone-{item.tone}").props('aria-hidden="true"')
                ui.link(item.sentence, item.href)


def _figures(figures: list[tuple[str, str]]) -> None:
    for name, value in figures:
        with ui.element("div"):
            text("span", value).classes("block text-2xl font-semibold tabular-nums")
            text("span", name).classes("block text-soft text-sm")
