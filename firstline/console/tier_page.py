"""The page of who answered over time."""

from __future__ import annotations

import time

from nicegui import ui

from firstline.console import tiers_view as view
from firstline.console.cells import address
from firstline.console.live_table import Rows
from firstline.console.page_frame import Frame, text
from firstline.console.polling import Watch
from firstline_core.fleet.rest import TierHistory

_MODELS = 20  # links; others can be named in the address


def add_pages(watch: Watch) -> None:
    """Puts the page at its address."""

    @ui.page("/tiers")
    def _tiers(hours: int = 24, model: str = "") -> None:
        frame = Frame("Who answers", "/tiers")
        with frame.main:
            models = ui.element("nav").props('aria-label="Model"').classes("choices")
            with ui.element("nav").props('aria-label="Time"').classes("choices"):
                for span in view.SPANS_H:
                    _choice(f"{span} h", address("/tiers", hours=str(span), model=model), span == hours)
            sentence = text("p").props('role="status"')
            chart = ui.echart(view.chart([], 1.0, time.time(), hours)).classes("chart")
            rows = Rows("Who answered", view.TIERS, "")
        known: list[str] = []

        def show(history: TierHistory) -> None:
            span_s, found = view.shares(history, hours)
            sentence.set_text(view.summary(found, hours))
            rows.show(view.tier_rows(found))
            # The time's end moves on in steps: a chart in which nothing is new is not sent again.
            drawn = view.chart(found, span_s, -(-time.time() // span_s) * span_s, hours)
            if drawn != chart.options:
                chart.options.update(drawn)
                chart.update()
            names = ["", *history.models[:_MODELS]]
            if names != known:
                known[:] = names
                models.clear()
                with models:
                    for name in names:
                        _choice(name or "All models", address("/tiers", hours=str(hours), model=name), name == model)

        frame.follow(lambda: watch.ask(("tiers", str(hours), model), lambda fleet: fleet.tiers(hours, model)), show)


def _choice(label: str, href: str, chosen: bool) -> None:
    link = ui.link(label, href)
    if chosen:
        link.props('aria-current="true"')
