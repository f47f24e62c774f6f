"""The ways from a page of a long list to the next."""

from __future__ import annotations

from nicegui import ui

from firstline.console.cells import Listing


class Following:
    """The ways to the next page and back to the first."""

    def __init__(self, label: str, later: bool, first: str) -> None:
        with ui.element("nav").props('aria-label="Rows"').classes("following"):
            if later:
                ui.link("From the beginning", first)
            self._link = ui.link(label, "")
        self._link.set_visibility(False)

    def show(self, listing: Listing) -> None:
        self._link.set_visibility(bool(listing.following))
        self._link.props["href"] = listing.following
