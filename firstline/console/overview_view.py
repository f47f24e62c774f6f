"""View models of the overview: pure functions of the gateway's answers."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from firstline.console import rollouts_view
from firstline.console.cells import Cell, Column, Row, Tone, address, contract_page, device_page, rollout_page, rows
from firstline.fleet import wording
from firstline_core.fleet.rest import (
    ASLEEP_AFTER_S,
    LATE_AFTER_S,
    AuditResult,
    ContractStates,
    FleetOverview,
    Outbox,
    Presence,
    TierHistory,
)
from firstline_core.telemetry.wording import counted, rounded

PRESENCES: dict[Presence, tuple[str, Tone]] = {
    Presence.ONLINE: ("Online", Tone.GOOD),
    Presence.LATE: ("Late", Tone.BAD),
    Presence.ASLEEP: ("Asleep", Tone.BUSY),
    Presence.REVOKED: ("Revoked", Tone.BAD),
}
"""Name and tone of each presence, in the order of the page."""
AUDIT_RESULTS: dict[AuditResult, tuple[str, Tone]] = {
    AuditResult.HOLDS: ("Holds", Tone.GOOD),
    AuditResult.ALARMED: ("Alarmed", Tone.BAD),
    AuditResult.TOO_LITTLE_EVIDENCE: ("Too little evidence", Tone.BUSY),
    AuditResult.NOT_AUDITED: ("Not audited", Tone.BUSY),
}
_SILENT = {Presence.LATE: LATE_AFTER_S, Presence.ASLEEP: ASLEEP_AFTER_S}
_SHOWN = 5  # of each kind of attention


class Tile(NamedTuple):
    """A number with a label; `href` is the page with the details."""

    label: str
    number: int
    tone: Tone
    href: str


class Attention(NamedTuple):
    """Something that a person has to look at."""

    tone: Tone
    sentence: str
    href: str


class OverviewData(NamedTuple):
    """The gateway's answers of this page."""

    fleet: FleetOverview
    contracts: ContractStates
    tiers: TierHistory


def device_tiles(fleet: FleetOverview) -> list[Tile]:
    """Returns the number of devices by presence."""
    tiles = [
        _tile(_explained(presence, label), fleet.devices.get(presence, 0), tone, "/devices", presence=presence.value)
        for presence, (label, tone) in PRESENCES.items()
    ]
    return [*tiles, _tile("Not accepted", fleet.unaccepted, Tone.BUSY, "/devices", accepted="false")]


def _tile(label: str, number: int, tone: Tone, path: str, **query: str) -> Tile:
    """Returns a tile that links to an address; a number of 0 has no tone."""
    return Tile(label, number, tone if number else Tone.PLAIN, address(path, **query))


def _explained(presence: Presence, label: str) -> str:
    silent_s = _SILENT.get(presence)
    return label if silent_s is None else f"{label}: silent for {wording.duration(silent_s)}"


def contract_tiles(contracts: ContractStates) -> list[Tile]:
    """Returns the number of promises of served bundles by what their audits show."""
    counts = Counter(one.state for one in (*contracts.contracts, *contracts.unaudited) if one.served)
    return [
        _tile(label, counts[state], tone, "/contracts", state=state.value)
        for state, (label, tone) in AUDIT_RESULTS.items()
    ]


def attention(data: OverviewData) -> list[Attention]:
    """Returns what a person has to look at, the most urgent first."""
    fleet = data.fleet
    late = fleet.devices.get(Presence.LATE, 0)
    found = [
        Attention(Tone.BAD, f"{one.bundle} {one.version} breaks its promise: {one.finding}.", contract_page(one.bundle))
        for one in data.contracts.contracts
        if one.state is AuditResult.ALARMED
    ]
    found += _device_alarms(data.contracts)
    found += [
        Attention(Tone.BUSY, f"{rollouts_view.title(one)} waits for a person: {one.sentence}", rollout_page(one.id))
        for one in fleet.waiting[:_SHOWN]
    ]
    if late:
        page = address("/devices", presence=Presence.LATE.value, sort="last_seen")
        found.append(
            Attention(
                Tone.BAD, f"{counted(late, 'device')} lost the connection, or sent no message for 15 minutes.", page
            )
        )
    if fleet.unaccepted:
        sentence = f"{counted(fleet.unaccepted, 'device')} must be accepted, and get no models before."
        found.append(Attention(Tone.BUSY, sentence, "/devices?accepted=false"))
    found += [
        Attention(
            Tone.BAD,
            f"The certificate of {one.device} "
            + (f"ends in {wording.duration(left_s)}" if (left_s := one.ends_s - fleet.at_s) > 0 else "has ended")
            + " and was not renewed.",
            device_page(one.device),
        )
        for one in fleet.expiring[:_SHOWN]
    ]
    if fleet.expiring_count > _SHOWN:
        more = counted(fleet.expiring_count - _SHOWN, "further certificate")
        found.append(Attention(Tone.BAD, f"{more} end within 14 days.", "/devices"))
    return found


def _device_alarms(contracts: ContractStates) -> list[Attention]:
    lasting = [
        Attention(
            Tone.BAD,
            f"{one.device}: its own audits show that {one.bundle} {one.version} breaks its promise there"
            f"{f' ({one.event})' if one.event else ''}.",
            device_page(one.device),
        )
        for one in contracts.lasting_alarms
    ]
    found = list(dict.fromkeys(lasting))  # several variants may break the same promise
    if (missing := len(found) - _SHOWN) > 0:
        more = Attention(Tone.BAD, f"{counted(missing, 'further alarm')} of single devices.", "/contracts")
        return [*found[:_SHOWN], more]
    return found


class TagRow(NamedTuple):
    """The devices with one value of a tag."""

    tag: str
    value: str
    counts: dict[Presence, int]


def _count(presence: Presence) -> Column[TagRow]:
    label, tone = PRESENCES[presence]

    def cell(row: TagRow) -> Cell:
        count = row.counts.get(presence, 0)
        return Cell(str(count), tone=tone if count and tone is Tone.BAD else Tone.PLAIN)

    return Column(presence.value, label, cell, number=True)


def _value(row: TagRow) -> Cell:
    selector = f"{row.tag}={row.value}" if row.value else f"!{row.tag}"
    return Cell(row.value or f"without {row.tag}", address("/devices", selector=selector))


BY_TAG: tuple[Column[TagRow], ...] = (
    Column("value", "Value", _value),
    Column("all", "Devices", lambda row: str(sum(row.counts.values())), number=True),
    *(_count(presence) for presence in (Presence.ONLINE, Presence.LATE, Presence.ASLEEP, Presence.REVOKED)),
)


def tag_rows(fleet: FleetOverview) -> list[Row]:
    """Returns the devices by the values of the tag."""
    found = (TagRow(fleet.tag, value, counts) for value, counts in fleet.by_tag.items())
    return rows(BY_TAG, found, lambda row: row.value)


AGENTS: tuple[Column[tuple[str, int]], ...] = (
    Column("version", "Agent version", lambda one: one[0] or "unknown"),
    Column("devices", "Devices", lambda one: str(one[1]), number=True),
)


def agent_rows(fleet: FleetOverview) -> list[Row]:
    """Returns the number of devices by agent version, the most frequent first."""
    by_count = sorted(fleet.agent_versions.items(), key=lambda one: (-one[1], one[0]))
    return rows(AGENTS, by_count, lambda one: one[0])


OUTBOXES: tuple[Column[Outbox], ...] = (
    Column("device", "Device", lambda one: Cell(one.device, device_page(one.device))),
    Column("items", "Corrections", lambda one: str(one.items), number=True),
    Column("oldest", "Oldest", lambda one: wording.duration(one.oldest_s), number=True),
    Column("reported", "Reported", lambda one: f"{wording.age(one.reported_s)} ago", number=True),
)


def outbox_rows(fleet: FleetOverview) -> list[Row]:
    """Returns the oldest outboxes."""
    return rows(OUTBOXES, fleet.outboxes[:_SHOWN], lambda one: one.device)


def report_ages(fleet: FleetOverview) -> str:
    """Returns a sentence about the age of the devices' latest reports, from which outboxes and answers are."""
    if fleet.reported_s is None:
        return "No device has reported yet."
    newest, oldest = (wording.age(age_s) for age_s in fleet.reported_s)
    return f"From the latest report of each device, {newest if newest == oldest else f'{newest} to {oldest}'} old."


def answer_figures(history: TierHistory) -> list[tuple[str, str]]:
    """Returns the figures of all answers of the history: number, edge share, latency, bytes and energy saved."""
    accepted, escalated, errors, requests, latency_ms, saved_bytes, saved_mj = (
        sum(getattr(point, name) for point in history.points)
        for name in ("kept", "escalated", "errors", "requests", "latency_ms", "saved_bytes", "saved_mj")
    )
    total = accepted + escalated + errors
    share = f"{100 * accepted / total:.1f} %" if total else "-"
    return [
        ("Answers", f"{total:,}"),
        ("On the device", share),
        ("Mean latency", f"{rounded(latency_ms / requests)} ms" if requests else "-"),
        ("Without answer", f"{errors:,}"),
        ("Input not sent", _size(saved_bytes)),
        ("Energy saved", _joules(saved_mj / 1000) if saved_mj else "-"),
    ]


def _joules(joules: float) -> str:
    return f"{joules / 1000:,.1f} kJ" if joules >= 1000 else f"{rounded(joules)} J"


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:,.1f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:,.1f} MB"
