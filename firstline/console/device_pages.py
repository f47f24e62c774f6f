"""The pages of the devices, and of one."""

from __future__ import annotations

from typing import NamedTuple

from nicegui import ui
from nicegui.elements.mixins.text_element import TextElement

from firstline.console import devices_view as view
from firstline.console import profiles_view
from firstline.console.cells import address
from firstline.console.live_table import Rows
from firstline.console.page_frame import Frame, put, text
from firstline.console.paging import Following
from firstline.console.polling import Watch
from firstline.fleet.client import Fleet
from firstline_core.fleet.profiles import ProfileEntry, ProfileRequest
from firstline_core.fleet.rest import FleetDevice, FleetDevicePage

ROWS = 50
"""Most devices on a page."""


def add_pages(watch: Watch) -> None:
    """Puts the pages at their addresses."""

    @ui.page("/")
    @ui.page("/devices")
    def _devices(selector: str = "", model: str = "", after: str = "") -> None:
        frame = Frame("Devices", "/devices")
        with frame.main:
            _choice(selector, model)
            rows = Rows("Devices", view.DEVICES, "No device here.")
            following = Following("More devices", bool(after), address("/devices", selector=selector, model=model))

        def show(page: FleetDevicePage) -> None:
            listing = view.device_rows(page, selector=selector, model=model)
            rows.show(listing.rows)
            following.show(listing)

        def fetch(fleet: Fleet) -> FleetDevicePage:
            name, version = view.model_of(model)
            return fleet.page(after, selector, name, version, ROWS)

        frame.follow(lambda: watch.ask(("devices", after, selector, model), fetch), show)

    @ui.page("/devices/{name}")
    def _device(name: str) -> None:
        frame = Frame(name, "/devices")
        with frame.main:
            facts = Facts()
            text("h2", "Models")
            models = Rows("Models that answer", view.MODELS, "It says of no model that it answers.")
            text("h2", "Updates")
            updates = Rows("Updates", view.UPDATES, "It says of no update.")
            text("h2", "Hardware")
            text("h2", "Profiles")
            asked = Rows("Asked to measure", profiles_view.REQUESTS, "It is asked to measure nothing.")
            kept = Rows("Profiles", profiles_view.KEPT, "No profile of it is kept.")
            text("h2", "Hardware")
            hardware = Rows("Hardware", view.HARDWARE, "It has not said what it is.")

        def show(found: Known) -> None:
            facts.show(found.device)
            models.show(view.model_rows(found.device))
            updates.show(view.update_rows(found.device))
            asked.show(profiles_view.request_rows(found.asked))
            kept.show(profiles_view.kept_rows(found.kept))
            hardware.show(view.hardware_rows(found.device))

        frame.follow(lambda: watch.ask(("device", name), lambda fleet: _known(fleet, name)), show)


class Known(NamedTuple):
    """The gateway's data of a device.

    Attributes:
        asked: its requests to measure bundles.
        kept: profiles of it, or of another machine of its name.
    """

    device: FleetDevice
    asked: tuple[ProfileRequest, ...]
    kept: tuple[ProfileEntry, ...]


def _known(fleet: Fleet, name: str) -> Known:
    device = fleet.device(name)
    return Known(device, fleet.profiles.requests(name), fleet.profiles.page(machine=name).profiles)


def _choice(selector: str, model: str) -> None:
    """A form that the browser itself sends: the page's address says which devices it shows."""
    with ui.element("form").props('method="get" action="/devices" role="search" aria-label="Choose devices"'):
        ui.input("Tags, such as site=berlin,!test", value=selector).props('name="selector" outlined dense')
        ui.input("Model, such as digits or digits 2", value=model).props('name="model" outlined dense')
        ui.button("Show").props('type="submit" no-caps')


class Facts:
    """The facts of a device, as names and values."""

    def __init__(self) -> None:
        self._list = ui.element("dl").classes("facts")
        self._values: dict[str, TextElement] = {}

    def show(self, device: FleetDevice) -> None:
        for name, cell in view.facts(device):
            if name not in self._values:
                with self._list:
                    text("dt", name)
                    with ui.element("dd"):
                        self._values[name] = text("span")
            put(self._values[name], cell)
