"""The page of all rollouts."""

from __future__ import annotations

from nicegui import ui

from firstline.console import rollouts_view as view
from firstline.console.live_table import Rows
from firstline.console.page_frame import Frame
from firstline.console.paging import Following
from firstline.console.polling import Watch
from firstline_core.fleet.rollout import RolloutPage

ROWS = 50
"""Most rollouts on a page."""


def add_pages(watch: Watch) -> None:
    """Puts the page at its address."""

    @ui.page("/rollouts")
    def _rollouts(after: str = "") -> None:
        frame = Frame("Rollouts", "/rollouts")
        with frame.main:
            rows = Rows("Rollouts", view.ROLLOUTS, "No rollout yet; `firstline rollout start` makes one.")
            following = Following("Older rollouts", bool(after), "/rollouts")

        def show(page: RolloutPage) -> None:
            listing = view.rollout_rows(page)
            rows.show(listing.rows)
            following.show(listing)

        frame.follow(lambda: watch.ask(("rollouts", after), lambda fleet: fleet.rollouts.page(after, limit=ROWS)), show)
