"""View models of devices: pure functions of the gateway's answers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from firstline.console.cells import Cell, Column, Listing, Row, Tone, address, device_page, moment, rollout_page, rows
from firstline.console.overview_view import PRESENCES
from firstline.fleet import wording
from firstline.fleet.client import Fleet
from firstline_core.errors import ConfigError, FirstlineError, RequestError
from firstline_core.fleet.profiles import ProfileEntry, ProfileRequest
from firstline_core.fleet.rest import LATE_AFTER_S, ContractStates, FleetDevice, FleetDevicePage, Presence, Sort
from firstline_core.fleet.telemetry import ModelCounts
from firstline_core.fleet.twin import ProfilingState, RunningModel, Update
from firstline_core.fleet.update import UNSUCCESSFUL, UpdateState
from firstline_core.hardware.catalogue import catalogue_facts
from firstline_core.telemetry.wording import rounded

DeviceCommand = Callable[[Fleet, str], object]
"""Sends a command for one device."""
_LOW_DISK_SHARE = 0.05
_ENDED_WELL = UpdateState.COMMITTED
_UNDONE = frozenset({UpdateState.CANCELLED, UpdateState.EXPIRED})


class Chosen(NamedTuple):
    """The devices of a page."""

    search: str = ""
    selector: str = ""
    model: str = ""
    presence: Presence | None = None
    accepted: bool | None = None
    sort: Sort = Sort.NAME

    @property
    def is_all(self) -> bool:
        """Returns whether every device belongs to it."""
        return self == Chosen(sort=self.sort)


def do_each(fleet: Fleet, names: Sequence[str], do: DeviceCommand) -> None:
    """Sends a command for each device, one after the other.

    Raises:
        RequestError: the gateway refused one; the message says how many devices are done.
    """
    for done, name in enumerate(names):
        try:
            do(fleet, name)
        except FirstlineError as error:
            raise RequestError(f"{done} of {len(names)} devices are done; {name} failed: {error.message}") from error


def parameters(chosen: Chosen) -> dict[str, str]:
    """Returns the parameters of a page's address; "" for those that choose nothing."""
    accepted = "" if chosen.accepted is None else str(chosen.accepted).lower()
    sort = "" if chosen.sort is Sort.NAME else chosen.sort
    return {**chosen._asdict(), "presence": chosen.presence or "", "accepted": accepted, "sort": sort}


def page_of(chosen: Chosen, after: str = "") -> str:
    """Returns the address of a page of devices."""
    return address("/devices", **parameters(chosen), after=after)


def presence_links(chosen: Chosen) -> list[tuple[str, str, bool]]:
    """Returns the links that choose a presence: text, address, and whether it is chosen."""
    links: list[tuple[str, Presence | None, bool | None]] = [("All", None, None)]
    links += [(label, presence, None) for presence, (label, _) in PRESENCES.items()]
    links.append(("Not accepted", None, False))
    return [
        (label, page_of(chosen._replace(presence=presence, accepted=accepted)), chosen[3:5] == (presence, accepted))
        for label, presence, accepted in links
    ]


def order_links(chosen: Chosen) -> list[tuple[str, str, bool]]:
    """Returns the links that choose an order."""
    names = {Sort.NAME: "By name", Sort.LAST_SEEN: "Longest silent first"}
    return [(label, page_of(chosen._replace(sort=sort)), chosen.sort is sort) for sort, label in names.items()]


def tags_of(text: str) -> dict[str, str | None]:
    """Reads typed tags; see `wording.tag_change`.

    Raises:
        ConfigError: there are none, or a word is not a tag.
    """
    found = dict(map(wording.tag_change, text.replace(",", " ").split()))
    if not found:
        raise ConfigError("Write the tags first, such as site=kiel test-.")
    return found


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
    """Returns when a device was last seen, and its presence if it is not online."""
    age = wording.age(device.last_seen_age_s) + (" ago" if device.last_seen_age_s is not None else "")
    label, tone = PRESENCES[device.presence]
    if not device.accepted and not device.revoked:
        return Cell(f"{age}, not accepted", tone=Tone.BUSY)
    return Cell(age if device.presence is Presence.ONLINE else f"{age}, {label.lower()}", tone=tone)


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
    return f"{wording.subject(update.what, update.name)} {update.version}"


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
        ("Last seen", last_seen(device)),
        ("First seen (UTC)", Cell(moment(device.first_seen_s))),
        ("Tags", Cell(wording.tags(device))),
        ("Runs", Cell(wording.runs(device))),
        ("Desired", Cell(wording.wanted(device))),
    ]
    if reported is not None:
        received = reported.revision >= device.desired.revision
        found += [
            (
                "Desired state received",
                Cell("yes" if received else "not yet", tone=Tone.GOOD if received else Tone.BUSY),
            ),
            ("Limit on escalations", Cell("in force", tone=Tone.BUSY) if reported.braked else Cell("none")),
            ("Agent version", Cell(reported.agent_version or "-")),
            ("Capabilities", Cell(", ".join(_capabilities(reported.capabilities.items())) or "-")),
        ]
    return found


def _capabilities(items: Iterable[tuple[str, object]]) -> Iterable[str]:
    for name, value in items:
        yield f"{name}: {' '.join(map(str, value)) if isinstance(value, tuple) else value}"


def health(device: FleetDevice) -> list[tuple[str, Cell]]:
    """Returns the condition of a device as its latest telemetry reports it, with the age of that report."""
    latest = device.latest
    if latest is None:
        return [("Telemetry", Cell("none yet"))]
    state = latest.health
    waiting = Cell(f"{latest.outbox_items}, the oldest for {wording.duration(state.outbox_oldest_s)}", tone=Tone.BUSY)
    disk, heat = state.disk_free_share, state.hottest_c
    age_s = device.latest_age_s or 0.0
    return [
        ("Reported", Cell(f"{wording.age(age_s)} ago", tone=Tone.BUSY if age_s > LATE_AFTER_S else Tone.PLAIN)),
        ("Running for", Cell(wording.duration(latest.uptime_s))),
        ("Starts", Cell(f"{latest.starts}, {latest.unclean} of them after a crash")),
        ("Corrections outstanding", waiting if latest.outbox_items else Cell("none", tone=Tone.GOOD)),
        ("Links down", Cell(str(state.links_down), tone=Tone.BAD if state.links_down else Tone.GOOD)),
        ("Disk free", Cell("-") if disk is None else Cell(f"{100 * disk:.0f} %", tone=_low(disk))),
        ("Hottest sensor", Cell("-" if heat is None else f"{heat:.0f} °C")),
        ("Throttled", Cell("yes", tone=Tone.BAD) if state.throttled else Cell("no", tone=Tone.GOOD)),
        ("Certificate ends (UTC)", Cell(moment(state.certificate_ends_s))),
        ("Sent to the gateway", Cell(f"{latest.payload_bytes / 1e6:,.1f} MB")),
    ]


def _low(share: float) -> Tone:
    return Tone.BAD if share < _LOW_DISK_SHARE else Tone.GOOD


def broken(device: FleetDevice, contracts: ContractStates) -> frozenset[str]:
    """Returns the models, with version, whose contract has an alarm on the device."""
    counts = device.latest.models if device.latest is not None else ()
    reported = {f"{model.name} {model.version}" for model in counts if model.alarm}
    alarming = {f"{one.bundle} {one.version}" for one in contracts.lasting_alarms if one.device == device.name}
    return frozenset(reported | alarming)


def answer_rows(device: FleetDevice, alarmed: Collection[str]) -> list[Row]:
    """Returns a device's answers by model, since its agent started; `alarmed` as `broken` returns it."""
    counts = device.latest.models if device.latest is not None else ()
    found = rows(ANSWERS, counts, lambda model: f"{model.name} {model.version}")
    for row in found:
        if row["key"].text in alarmed:
            row["alarm"] = Cell("alarm", tone=Tone.BAD)
    return found


def model_rows(device: FleetDevice, alarmed: Collection[str]) -> list[Row]:
    """Returns the models that a device runs; `alarmed` as `broken` returns it."""
    found = rows(MODELS, device.reported.models if device.reported is not None else (), lambda model: model.name)
    for row in found:
        if row["model"].text in alarmed:
            row["certified"] = Cell("no: alarm", tone=Tone.BAD)
    return found


def update_rows(device: FleetDevice) -> list[Row]:
    """Returns the states of a device's updates."""
    updates = device.reported.updates if device.reported is not None else ()
    return rows(UPDATES, updates, lambda update: f"{update.what} {update.name}")


def hardware_rows(device: FleetDevice) -> list[Row]:
    """Returns a device's hardware, as the device reports it."""
    hardware = device.reported.hardware if device.reported is not None else None
    facts_ = enumerate(catalogue_facts(hardware)) if hardware is not None else ()
    return rows(HARDWARE, facts_, lambda fact: str(fact[0]))


def device_rows(page: FleetDevicePage, chosen: Chosen) -> Listing:
    """Returns a page of devices."""
    following = page_of(chosen, page.after) if page.after is not None else ""
    return Listing(rows(DEVICES, page.devices, lambda device: device.name), following)


DEVICES: tuple[Column[FleetDevice], ...] = (
    Column("device", "Device", lambda device: Cell(device.name, device_page(device.name))),
    Column("seen", "Last seen", last_seen),
    Column("runs", "Runs", wording.runs),
    Column("desired", "Desired", wording.wanted),
    Column("update", "Update", _latest),
    Column("tags", "Tags", wording.tags),
)
MODELS: tuple[Column[RunningModel], ...] = (
    Column("model", "Model", lambda model: f"{model.name} {model.version}"),
    Column("variant", "Variant", lambda model: model.variant or "none"),
    Column("certified", "Certified", lambda model: Cell("yes", tone=Tone.GOOD) if model.certified else "no"),
    Column("digest", "Digest", lambda model: model.edge_digest[:12] or "-"),
)
ANSWERS: tuple[Column[ModelCounts], ...] = (
    Column("model", "Answers of", lambda model: f"{model.name} {model.version}"),
    Column("rows", "Rows", lambda model: f"{model.rows:,}", number=True),
    Column("kept", "On the device", lambda model: f"{100 * model.kept / max(1, model.rows):.1f} %", number=True),
    Column("errors", "Without answer", lambda model: f"{model.errors:,}", number=True),
    Column("latency", "Mean latency", lambda model: _latency(model.latency, model.latency_sum_ms), number=True),
    Column("audits", "Audits", lambda model: f"{model.audited:,}", number=True),
    Column("disagreed", "Disagreed", lambda model: f"{model.disagreed:,}", number=True),
    Column("alarm", "Alarm", lambda _: "none"),
)


def _latency(bins: tuple[int, ...], sum_ms: float) -> str:
    return f"{rounded(sum_ms / sum(bins))} ms" if sum(bins) else "-"


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
    Column("part", "Part", lambda fact: fact[1][0]),
    Column("value", "Value", lambda fact: fact[1][1]),
)


_PROFILING_TONES = {ProfilingState.DONE: Tone.GOOD, ProfilingState.REFUSED: Tone.BAD}


PROFILES: tuple[Column[ProfileEntry], ...] = (
    Column("profile", "Profile", lambda one: f"{one.bundle} {one.version}"),
    Column("board", "Board", lambda one: one.board or "-"),
    Column("points", "Points", lambda one: str(one.points), number=True),
    Column("refused", "Refused", lambda one: str(one.refused), number=True),
    Column("made", "Measured (UTC)", lambda one: moment(one.made_s or None)),
    Column("by", "By", lambda one: one.by),
)
REQUESTS: tuple[Column[ProfileRequest], ...] = (
    Column("bundle", "Bundle", lambda one: f"{one.desired.bundle} {one.version or one.desired.version or ''}".rstrip()),
    Column("state", "State", lambda one: Cell(one.state.value, tone=_PROFILING_TONES.get(one.state, Tone.BUSY))),
    Column("points", "Points", lambda one: f"{one.done} of {one.total}" if one.total else "-", number=True),
    Column("why", "Why", lambda one: one.message or "-"),
)


def profile_rows(entries: Iterable[ProfileEntry]) -> list[Row]:
    """Returns the rows of the stored profiles."""
    return rows(PROFILES, entries, lambda one: f"{one.bundle}/{one.version}/{one.machine}")


def request_rows(requests: Iterable[ProfileRequest]) -> list[Row]:
    """Returns a device's requests to measure bundles, with their progress."""
    return rows(REQUESTS, requests, lambda one: one.desired.id)
