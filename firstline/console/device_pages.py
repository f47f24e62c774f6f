"""The pages of all devices, and of one."""

from __future__ import annotations

from typing import NamedTuple

from nicegui import ui
from nicegui.elements.mixins.text_element import TextElement

from firstline.console import devices_view as view
from firstline.console import profiles_view
from firstline.console.cells import address
from firstline.console.page import Frame, PagedTable, Table, put, search_form, text
from firstline.console.polling import Watch
from firstline.fleet.client import Fleet
from firstline_core.fleet.profiles import ProfileEntry, ProfileRequest
from firstline_core.fleet.rest import FleetDevice, FleetDevicePage

ROWS = 50
"""Maximum number of devices on a page."""


def add_pages(watch: Watch) -> None:
    """Adds the pages to the application."""

    @ui.page("/devices")
    def _devices(selector: str = "", model: str = "", after: str = "") -> None:
        frame = Frame("Devices", "/devices")
        with frame.main:
            search_form(
                "/devices",
                "Choose devices",
                {
                    "selector": ("Tags, such as site=berlin,!test", selector),
                    "model": ("Model, such as digits or digits 2", model),
                },
            )
            back = address("/devices", selector=selector, model=model) if after else ""
            table = PagedTable("Devices", view.DEVICES, "No device here.", "More devices", back)

        def show(page: FleetDevicePage) -> None:
            table.show_page(view.device_rows(page, selector=selector, model=model))

        def fetch(fleet: Fleet) -> FleetDevicePage:
            name, version = view.model_of(model)
            return fleet.page(after, selector, model=name, version=version, limit=ROWS)

        frame.follow(lambda: watch.ask(("devices", after, selector, model), fetch), show)

    @ui.page("/devices/{name}")
    def _device(name: str) -> None:
        frame = Frame(name, "/devices")
        with frame.main:
            facts = Facts()
            text("h2", "Models")
            models = Table("Models that answer", view.MODELS, "It says of no model that it answers.")
            text("h2", "Updates")
            updates = Table("Updates", view.UPDATES, "It says of no update.")
            text("h2", "Profiles")
            requests = Table("Asked to measure", profiles_view.REQUESTS, "It is asked to measure nothing.")
            profiles = Table("Profiles", profiles_view.PROFILES, "No profile of it is kept.")
            text("h2", "Hardware")
            hardware = Table("Hardware", view.HARDWARE, "It has not said what it is.")

        def show(data: DeviceData) -> None:
            facts.show(data.device)
            models.show(view.model_rows(data.device))
            updates.show(view.update_rows(data.device))
            requests.show(profiles_view.request_rows(data.requests))
            profiles.show(profiles_view.profile_rows(data.profiles))
            hardware.show(view.hardware_rows(data.device))

        frame.follow(lambda: watch.ask(("device", name), lambda fleet: _fetch(fleet, name)), show)


class DeviceData(NamedTuple):
    """The gateway's data of a device.

    Attributes:
        requests: its requests to measure bundles.
        profiles: of the device, or of another machine of the same name.
    """

    device: FleetDevice
    requests: tuple[ProfileRequest, ...]
    profiles: tuple[ProfileEntry, ...]


def _fetch(fleet: Fleet, name: str) -> DeviceData:
    return DeviceData(fleet.device(name), fleet.profiles.requests(name), fleet.profiles.page(machine=name).profiles)


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
