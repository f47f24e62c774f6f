"""View models of devices: pure functions of the gateway's answers."""

from __future__ import annotations

from collections.abc import Iterable

from firstline.console.cells import Cell, Column, Listing, Row, Tone, address, device_page, moment, rollout_page, rows
from firstline.fleet import wording
from firstline_core.errors import RequestError
from firstline_core.fleet.rest import FleetDevice, FleetDevicePage
from firstline_core.fleet.twin import RunningModel, Update
from firstline_core.fleet.update import UNSUCCESSFUL, UpdateState
from firstline_core.hardware.catalogue import catalogue_facts

SILENT_S = 900.0
"""A device that was last seen longer ago is shown as silent; also the default of rollouts."""

_ENDED_WELL = UpdateState.COMMITTED
_UNDONE = frozenset({UpdateState.CANCELLED, UpdateState.EXPIRED})


def model_of(text: str) -> tuple[str, int | None]:
    """Reads a typed name and version; without a version, any version.

    Raises:
        RequestError: the text is not a name with an optional version.
    """
    name, _, version = text.strip().partition(" ")
    if version and not (version.isascii() and version.isdigit() and len(version) < 16):
        raise RequestError(f"{text[:80]!a} is not a model; write its name, or its name and version such as digits 2.")
    return name, int(version) if version else None


def last_seen(device: FleetDevice) -> Cell:
    """Returns when a device was last seen, and whether it is online."""
    age = wording.age(device.last_seen_age_s)
    if device.revoked:
        return Cell(wording.last_seen(device), tone=Tone.BAD)
    if not device.accepted:
        return Cell(f"{age}, not accepted", tone=Tone.BUSY)
    if device.last_seen_age_s is None:
        return Cell(age)
    if not device.online:
        return Cell(f"{age} ago, gone", tone=Tone.BAD)
    if device.last_seen_age_s > SILENT_S:
        return Cell(f"{age} ago, silent", tone=Tone.BAD)
    return Cell(f"{age} ago", tone=Tone.GOOD)


def _latest(device: FleetDevice) -> Cell:
    """Returns all updates of a device in short; the worst one determines the tone."""
    updates = device.reported.updates if device.reported is not None else ()
    tones = [_tone(update.state) for update in updates]
    worst = next((tone for tone in (Tone.BAD, Tone.BUSY, Tone.GOOD) if tone in tones), Tone.PLAIN)
    return Cell(", ".join(_summary(update) for update in updates) or "-", tone=worst)


def _summary(update: Update) -> str:
    why = f" ({update.reason})" if update.reason else ""
    share = ""
    if update.state is UpdateState.DOWNLOADING and update.total_bytes:
        share = f" {update.received_bytes / update.total_bytes:.0%}"
    return f"{_what(update)} {update.state.replace('_', ' ')}{share}{why}"


def _what(update: Update) -> str:
    kind = "" if update.what == "model" else f"{update.what} "
    return f"{kind}{update.name} {update.version}"


def _tone(state: UpdateState) -> Tone:
    if state is _ENDED_WELL:
        return Tone.GOOD
    if state in UNSUCCESSFUL:
        return Tone.BAD
    return Tone.PLAIN if state in _UNDONE else Tone.BUSY


def facts(device: FleetDevice) -> list[tuple[str, Cell]]:
    """Returns the facts of one device, by name."""
    reported = device.reported
    found = [
        ("Heard of", last_seen(device)),
        ("First seen", Cell(moment(device.first_seen_s))),
        ("Tags", Cell(wording.tags(device))),
        ("Runs", Cell(wording.runs(device))),
        ("Is to run", Cell(wording.wanted(device))),
    ]
    if reported is not None:
        knows = reported.revision >= device.desired.revision
        found += [
            ("Knows what it is to run", Cell("yes" if knows else "not yet", tone=Tone.GOOD if knows else Tone.BUSY)),
            ("Brake", Cell("held", tone=Tone.BUSY) if reported.braked else Cell("off")),
            ("Agent", Cell(reported.agent_version or "-")),
            ("Has", Cell(", ".join(_capabilities(reported.capabilities.items())) or "-")),
        ]
    return found


def _capabilities(items: Iterable[tuple[str, object]]) -> Iterable[str]:
    for name, value in items:
        yield f"{name}: {' '.join(map(str, value)) if isinstance(value, tuple) else value}"


def model_rows(device: FleetDevice) -> list[Row]:
    """Returns the models that a device runs."""
    return rows(MODELS, device.reported.models if device.reported is not None else (), lambda model: model.name)


def update_rows(device: FleetDevice) -> list[Row]:
    """Returns the states of a device's updates."""
    updates = device.reported.updates if device.reported is not None else ()
    return rows(UPDATES, updates, lambda update: f"{update.what} {update.name}")


def hardware_rows(device: FleetDevice) -> list[Row]:
    """Returns a device's hardware, as the device reports it."""
    hardware = device.reported.hardware if device.reported is not None else None
    facts_ = enumerate(catalogue_facts(hardware)) if hardware is not None else ()
    return rows(HARDWARE, facts_, lambda fact: str(fact[0]))


def device_rows(page: FleetDevicePage, **query: str) -> Listing:
    """Returns a page of devices; `query` has the search parameters."""
    following = address("/devices", **query, after=page.after) if page.after is not None else ""
    return Listing(rows(DEVICES, page.devices, lambda device: device.name), following)


DEVICES: tuple[Column[FleetDevice], ...] = (
    Column("device", "Device", lambda device: Cell(device.name, device_page(device.name))),
    Column("heard", "Heard of", last_seen),
    Column("runs", "Runs", wording.runs),
    Column("wanted", "Is to run", wording.wanted),
    Column("update", "Update", _latest),
    Column("tags", "Tags", wording.tags),
)
MODELS: tuple[Column[RunningModel], ...] = (
    Column("model", "Model", lambda model: f"{model.name} {model.version}"),
    Column("variant", "Variant", lambda model: model.variant or "none"),
    Column("certified", "Certified", lambda model: Cell("yes", tone=Tone.GOOD) if model.certified else "no"),
    Column("digest", "Digest", lambda model: model.edge_digest[:12] or "-"),
)
UPDATES: tuple[Column[Update], ...] = (
    Column("update", "Update", _what),
    Column("state", "State", lambda update: Cell(update.state.replace("_", " "), tone=_tone(update.state))),
    Column("why", "Why", lambda update: " ".join(filter(None, (update.reason, update.message))) or "-"),
    Column("since", "Since (device's clock, UTC)", lambda update: moment(update.since_s or None)),
    Column(
        "rollout",
        "Rollout",
        lambda update: Cell(update.rollout, rollout_page(update.rollout)) if update.rollout else "-",
    ),
)
HARDWARE: tuple[Column[tuple[int, tuple[str, str]]], ...] = (
    Column("what", "What", lambda fact: fact[1][0]),
    Column("said", "It is", lambda fact: fact[1][1]),
)
