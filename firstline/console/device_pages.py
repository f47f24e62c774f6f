"""The pages of all devices, and of one."""

from __future__ import annotations

from typing import NamedTuple

from nicegui import ui

from firstline.console import audit_page
from firstline.console import devices_view as view
from firstline.console.cells import address, rows
from firstline.console.dialogs import Action, ConfirmButton, carry_out
from firstline.console.page import (
    Facts,
    Frame,
    PagedTable,
    Table,
    button,
    button_link,
    card,
    choices,
    grid,
    may,
    search_form,
)
from firstline.console.polling import Watch
from firstline.fleet.client import Fleet
from firstline_core.errors import ConfigError
from firstline_core.fleet.audit_log import Entry
from firstline_core.fleet.profiles import ProfileEntry, ProfileRequest
from firstline_core.fleet.rest import ContractStates, FleetDevice, FleetDevicePage, Presence, Sort

ROWS = 50
"""Maximum number of devices on a page."""
_DECISIONS = 10


def add_pages(watch: Watch) -> None:
    """Adds the pages to the application."""

    @ui.page("/devices")
    def _devices(
        *,
        search: str = "",
        selector: str = "",
        model: str = "",
        presence: Presence | None = None,
        accepted: bool | None = None,
        sort: Sort = Sort.NAME,
        after: str = "",
    ) -> None:
        chosen = view.Chosen(search, selector, model, presence, accepted, sort)
        frame = Frame("Devices", "/devices")
        with frame.main:
            if may(whole_fleet=True):
                with ui.element("div").classes("mb-4"):
                    button_link("Enrol devices", "/devices/enrol")
            fields = {
                "search": ("Part of the name", search),
                "selector": ("Tags, such as site=berlin,!test", selector),
                "model": ("Model, such as digits or digits 2", model),
            }
            search_form("/devices", "Choose devices", fields, view.parameters(chosen))
            choices("Presence", view.presence_links(chosen))
            choices("Order", view.order_links(chosen))
            with card():
                back = view.page_of(chosen) if after else ""
                empty = "There is no device yet." if chosen.is_all else "No device matches."
                table = PagedTable("Devices", view.DEVICES, empty, "More devices", back, selectable=may())
                commands = _BulkCommands(frame, watch, table) if may() else None

        def fetch(fleet: Fleet) -> FleetDevicePage:
            name, version = view.model_of(model)
            wanted = chosen._replace(search=search.strip(), model=name)
            return fleet.page(after, **wanted._asdict(), version=version, limit=ROWS)

        def show(page: FleetDevicePage) -> None:
            table.show_page(view.device_rows(page, chosen))
            if commands is not None:
                commands.bar.set_visibility(bool(page.devices))

        frame.follow(lambda: watch.ask(("devices", after, *map(str, chosen)), fetch), show)

    @ui.page("/devices/{name}")
    def _device(name: str) -> None:
        frame = Frame(name, "/devices")
        with frame.main:
            shown = _DeviceTables(frame, watch, name)
        frame.follow(lambda: watch.ask(("device", name), lambda fleet: _fetch(fleet, name)), shown.show)


class _BulkCommands:
    """The tags and the acceptance of all selected devices."""

    def __init__(self, frame: Frame, watch: Watch, table: Table) -> None:
        self._frame, self._watch, self._table = frame, watch, table
        with (
            ui.element("div")
            .props('role="group" aria-label="Selected devices"')
            .classes("flex flex-wrap gap-3 items-center mt-4")
        ) as self.bar:
            self._tags = ui.input("Tags for selected devices: site=kiel test-").props("outlined dense")
            self._tags.classes("grow basis-64 max-w-md")
            button("Tag", self._tag)
            button("Accept", self._accept)

    async def _tag(self) -> None:
        try:
            tags = view.tags_of(self._tags.value)
        except ConfigError as error:
            self._frame.say(error.message)
            return
        await self._each("tagged", lambda fleet, name: fleet.tag(name, tags))

    async def _accept(self) -> None:
        await self._each("accepted", lambda fleet, name: fleet.accept(name))

    async def _each(self, word: str, do: view.DeviceCommand) -> None:
        names = self._table.selected
        if not names:
            self._frame.say("Select devices in the table first.")
            return
        done = f"{len(names)} of {len(names)} selected devices: {word}."
        await carry_out(self._frame, self._watch, lambda fleet: view.do_each(fleet, names, do), done)


class DeviceData(NamedTuple):
    """The gateway's data of a device.

    Attributes:
        requests: its requests to measure bundles.
        profiles: of the device, or of another machine of the same name.
        decisions: the latest entries of the audit log about it, newest first.
        contracts: of all bundles, with the alarms of single devices.
    """

    device: FleetDevice
    requests: tuple[ProfileRequest, ...]
    profiles: tuple[ProfileEntry, ...]
    decisions: tuple[Entry, ...]
    contracts: ContractStates


def _fetch(fleet: Fleet, name: str) -> DeviceData:
    return DeviceData(
        fleet.device(name),
        fleet.profiles.requests(name),
        fleet.profiles.page(machine=name).profiles,
        fleet.rollouts.audit_page(subject=f"device:{name}", limit=_DECISIONS).entries,
        fleet.contracts(),
    )


class _DeviceTables:
    """The content of a device's page."""

    def __init__(self, frame: Frame, watch: Watch, name: str) -> None:
        with grid("xl:grid-cols-2"):
            with card("State"):
                self._facts = Facts()
                with ui.element("div").classes("flex flex-wrap gap-3 mt-4"):
                    self._buttons = {
                        action: ConfirmButton(frame, watch, action) for action in (_actions(name) if may() else ())
                    }
            with card("Health"):
                self._health = Facts()
        with card("Models and answers", "mb-4"):
            self._models = Table("Models that answer", view.MODELS, "The device has reported no model.")
            self._answers = Table("Answers", view.ANSWERS, "The device has reported no answer.")
        with card("Updates", "mb-4"):
            self._updates = Table("Updates", view.UPDATES, "The device has reported no update.")
        with grid("xl:grid-cols-2"):
            with card("Hardware"):
                self._hardware = Table("Hardware", view.HARDWARE, "The device has not reported its hardware.")
            with card("Profiles"):
                empty = "No measurement is requested."
                self._requests = Table("Requested measurements", view.REQUESTS, empty)
                self._profiles = Table("Profiles", view.PROFILES, "The gateway has no profile of this device.")
        with card("Decisions"):
            self._decisions = Table("Decisions", audit_page.ENTRIES, "The audit log has no decision about this device.")
            ui.link("All in the audit log", address("/audit", subject=f"device:{name}"))

    def show(self, data: DeviceData) -> None:
        """Shows the data."""
        self._facts.show(view.facts(data.device))
        self._health.show(view.health(data.device))
        done = {"Accept": data.device.accepted, "Revoke": data.device.revoked}
        for action, each in self._buttons.items():
            each.show(action.question, None if done.get(action.label) else action.effect, "This is done already.")
        alarmed = view.broken(data.device, data.contracts)
        self._models.show(view.model_rows(data.device, alarmed))
        self._answers.show(view.answer_rows(data.device, alarmed))
        self._updates.show(view.update_rows(data.device))
        self._requests.show(view.request_rows(data.requests))
        self._profiles.show(view.profile_rows(data.profiles))
        self._hardware.show(view.hardware_rows(data.device))
        self._decisions.show(rows(audit_page.ENTRIES, data.decisions, lambda entry: str(entry.number)))


def _actions(name: str) -> tuple[Action, ...]:
    return (
        Action(
            "Accept",
            f"Accept {name}?",
            "It belongs to the fleet from then on, and gets models and configurations.",
            lambda fleet: fleet.accept(name),
            f"{name} is accepted.",
        ),
        Action(
            "Revoke",
            f"Revoke {name}?",
            "The gateway refuses it and closes its connections. It answers alone from then on. To let it in again, "
            "enrol it with a new token.",
            lambda fleet: fleet.revoke(name),
            f"{name} is revoked.",
            danger=True,
        ),
        Action(
            "Decommission",
            f"Decommission {name}?",
            "Its access is revoked, and everything that is stored about it is deleted. This cannot be undone.",
            lambda fleet: fleet.decommission(name),
            f"{name} is decommissioned.",
            danger=True,
            then=lambda _: ui.navigate.to("/devices"),
        ),
    )
