"""The page of the answers by tier over time."""

from __future__ import annotations

import time
from collections.abc import Iterable

from nicegui import ui

from firstline.console import tiers_view as view
from firstline.console.cells import Tone, address
from firstline.console.page import Frame, Table, text
from firstline.console.polling import Watch
from firstline_core.fleet.rest import ContractState, TierHistory

_MODELS = 20  # links; others can be named in the address


def add_pages(watch: Watch) -> None:
    """Adds the page to the application."""

    @ui.page("/tiers")
    def _tiers(hours: int = 24, model: str = "") -> None:
        frame = Frame("Who answers", "/tiers")
        with frame.main:
            models = ui.element("nav").props('aria-label="Model"').classes("choices")
            with ui.element("nav").props('aria-label="Time"').classes("choices"):
                for span in view.SPANS_H:
                    _link(f"{span} h", address("/tiers", hours=str(span), model=model), span == hours)
            broken = text("p").props('role="status"').classes(f"tone-{Tone.BAD}")
            sentence = text("p").props('role="status"')
            chart = ui.echart(view.chart([], 1.0, time.time(), hours)).classes("chart")
            rows = Table("Who answered", view.TIERS, "")
        shown: list[str] = []

        def show_broken(contracts: Iterable[ContractState]) -> None:
            broken.set_text(" ".join(view.broken_promises(contracts)))

        def show(history: TierHistory) -> None:
            span_s, shares = view.shares(history, hours)
            sentence.set_text(view.summary(shares, hours))
            rows.show(view.tier_rows(shares))
            # The end of the time axis moves in steps, so that an unchanged chart is not sent again.
            drawn = view.chart(shares, span_s, -(-time.time() // span_s) * span_s, hours)
            if drawn != chart.options:
                chart.options.update(drawn)
                chart.update()
            names = ["", *history.models[:_MODELS]]
            if names != shown:
                shown[:] = names
                models.clear()
                with models:
                    for name in names:
                        _link(name or "All models", address("/tiers", hours=str(hours), model=name), name == model)

        frame.follow(lambda: watch.ask(("contracts",), lambda fleet: fleet.contracts()), show_broken)
        frame.follow(lambda: watch.ask(("tiers", str(hours), model), lambda fleet: fleet.tiers(hours, model)), show)


def _link(label: str, href: str, chosen: bool) -> None:
    link = ui.link(label, href)
    if chosen:
        link.props('aria-current="true"')
