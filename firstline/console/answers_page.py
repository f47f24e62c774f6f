"""The page of the answers by tier over time."""

from __future__ import annotations

import time

from nicegui import ui

from firstline.console import answers_view as view
from firstline.console.cells import address
from firstline.console.page import Frame, Redrawn, Table, card, choices, text
from firstline.console.polling import Watch
from firstline_core.fleet.rest import TierHistory

_MODELS = 20  # links; others can be named in the address


def add_pages(watch: Watch) -> None:
    """Adds the page to the application."""

    @ui.page("/answers")
    def _tiers(hours: int = 24, model: str = "") -> None:
        frame = Frame("Answers", "/answers", "Which tier answered the requests of all devices.")
        with frame.main:
            choices(
                "Time",
                [
                    (f"{span} h", address("/answers", hours=str(span), model=model), span == hours)
                    for span in view.SPANS_H
                ],
            )
            models = Redrawn(
                lambda names: choices(
                    "Model",
                    [
                        (name or "All models", address("/answers", hours=str(hours), model=name), name == model)
                        for name in names
                    ],
                )
            )
            with card(classes="mb-4"):
                sentence = text("p").props('role="status"').classes("mb-3")
                chart = ui.echart(view.chart([], 1.0, time.time(), hours)).classes("chart")
            with card():
                rows = Table("Who answered", view.TIERS, "There was no answer.")

        def show(history: TierHistory) -> None:
            span_s, shares = view.shares(history, hours)
            sentence.set_text(view.summary(shares, hours))
            rows.show(view.tier_rows(shares))
            # The end of the time axis moves in steps, so that an unchanged chart is not sent again.
            drawn = view.chart(shares, span_s, -(-time.time() // span_s) * span_s, hours)
            if drawn != chart.options:
                chart.options.update(drawn)
                chart.update()
            models.show(["", *history.models[:_MODELS]])

        frame.follow(lambda: watch.ask(("tiers", str(hours), model), lambda fleet: fleet.tiers(hours, model)), show)
