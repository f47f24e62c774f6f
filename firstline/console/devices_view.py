"""View models of devices: pure functions of the gateway's answers."""

from __future__ import annotations

from collections.abc import Iterable

from firstline.console.cells import Cell, Column, Listing, Row, Tone, address, device_page, moment, rollout_page
from firstline.fleet import wording
from firstline_core.errors import RequestError
from firstline_core.fleet.rest import FleetDevice, FleetDevicePage
from firstline_core.fleet.twin import Update
from firstline_core.fleet.update import UNSUCCESSFUL, UpdateState
from firstline_core.hardware.catalogue import catalogue_facts

SILENT_S = 900.0
"""A device that was last seen longer ago is shown as silent; also the default of rollouts."""

DEVICES = (
    Column("device", "Device"),
    Column("heard", "Heard of"),
    Column("runs", "Runs"),
    Column("wanted", "Is to run"),
    Column("update", "Update"),
    Column("tags", "Tags"),
)
MODELS = (
    Column("model", "Model"),
    Column("variant", "Variant"),
    Column("certified", "Certified"),
    Column("digest", "Digest"),
)
UPDATES = (
    Column("update", "Update"),
    Column("state", "State"),
    Column("why", "Why"),
    Column("since", "Since (device's clock, UTC)"),
    Column("rollout", "Rollout"),
)
HARDWARE = (Column("what", "What"), Column("said", "It is"))

_ENDED_WELL = UpdateState.COMMITTED
_UNDONE = frozenset({UpdateState.CANCELLED, UpdateState.EXPIRED})


def model_of(text: str) -> tuple[str, int | None]:
    """Reads a typed name and version; without a version, any version.

    Raises:
        RequestError: the text is not a name with an optional version.
    """
    name, _, version = text.strip().partition(" ")
    if version and not (version.isascii() and version.isdigit() and len(version) < 16):
        raise RequestError(f"{text[:80]!a} is no model; write its name, or its name and version such as digits 2.")
    return name, int(version) if version else None


def device_rows(page: FleetDevicePage, **query: str) -> Listing:
    """Returns a page of devices; `query` has the search parameters."""
    rows = [_row(device) for device in page.devices]
    return Listing(rows, address("/devices", **query, after=page.after) if page.after is not None else "")


def _row(device: FleetDevice) -> Row:
    return {
        "key": Cell(device.name),
        "device": Cell(device.name, device_page(device.name)),
        "heard": heard(device),
        "runs": Cell(wording.runs(device)),
        "wanted": Cell(wording.wanted(device)),
        "update": _latest(device),
        "tags": Cell(wording.tags(device)),
    }


def heard(device: FleetDevice) -> Cell:
    """Returns when a device was last seen, and whether it is online."""
    age = wording.age(device.last_seen_age_s)
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
        ("Heard of", heard(device)),
        ("First heard of", Cell(moment(device.first_seen_s))),
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
    models = device.reported.models if device.reported is not None else ()
    return [
        {
            "key": Cell(model.name),
            "model": Cell(f"{model.name} {model.version}"),
            "variant": Cell(model.variant or "none"),
            "certified": Cell("yes", tone=Tone.GOOD) if model.certified else Cell("no"),
            "digest": Cell(model.edge_digest[:12] or "-"),
        }
        for model in models
    ]


def update_rows(device: FleetDevice) -> list[Row]:
    """Returns the states of a device's updates."""
    updates = device.reported.updates if device.reported is not None else ()
    return [
        {
            "key": Cell(f"{update.what} {update.name}"),
            "update": Cell(_what(update)),
            "state": Cell(update.state.replace("_", " "), tone=_tone(update.state)),
            "why": Cell(" ".join(filter(None, (update.reason, update.message))) or "-"),
            "since": Cell(moment(update.since_s or None)),
            "rollout": Cell(update.rollout or "-", rollout_page(update.rollout) if update.rollout else ""),
        }
        for update in updates
    ]


def hardware_rows(device: FleetDevice) -> list[Row]:
    """Returns a device's hardware, as the device reports it."""
    found = device.reported.hardware if device.reported is not None else None
    return [
        {"key": Cell(str(place)), "what": Cell(name), "said": Cell(text)}
        for place, (name, text) in enumerate(catalogue_facts(found) if found is not None else ())
    ]
