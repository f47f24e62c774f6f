"""View models of contracts: pure functions of the gateway's answers."""

from __future__ import annotations

import math
from typing import Any

from firstline.console.cells import Cell, Column, Row, Tone, contract_page, device_page, iso_moment, rows
from firstline.console.overview_view import AUDIT_RESULTS
from firstline_core.fleet.rest import AuditResult, ContractState, ContractStates, Contribution, DeviceAlarm
from firstline_core.telemetry.wording import counted

_TEXT, _LINE = "#7b8794", "#7b879433"  # readable in both themes


def state(one: ContractState) -> Cell:
    """Returns what the audits show, in a word or two."""
    label, tone = AUDIT_RESULTS[one.state]
    return Cell(label, tone=tone)


def listed(states: ContractStates, wanted: str = "") -> list[ContractState]:
    """Returns the promises, those that alarm first; only those in one state if it is given."""
    order = list(AuditResult)
    order.insert(0, order.pop(order.index(AuditResult.ALARMED)))
    found = [one for one in (*states.contracts, *states.unaudited) if wanted in ("", one.state)]
    return sorted(found, key=lambda one: (not one.served, order.index(one.state), one.bundle, one.version))


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.3g} %"


def _audits(one: ContractState) -> str:
    missing = one.audits < one.audits_needed
    return f"{one.audits:,} of {one.audits_needed:,}" if missing else f"{one.audits:,}"


CONTRACTS: tuple[Column[ContractState], ...] = (
    Column("promise", "Promise", lambda one: Cell(one.promise, contract_page(one.bundle))),
    Column("state", "State", state),
    Column("risk", "Observed", lambda one: _percent(one.risk), number=True),
    Column("promised", "Promised", lambda one: _percent(one.epsilon), number=True),
    Column("audits", "Audits", _audits, number=True),
    Column("devices", "Devices", lambda one: str(one.devices), number=True),
    Column("served", "Served", lambda one: "yes" if one.served else "no"),
)


def contract_rows(states: ContractStates, wanted: str = "") -> list[Row]:
    """Returns the promises, those that alarm first."""
    return rows(CONTRACTS, listed(states, wanted), key)


def key(one: ContractState) -> str:
    """Returns a text that identifies a promise."""
    return f"{one.bundle}/{one.version}/{one.variant}/{one.event}/{one.epsilon}"


def alarm_rows(states: ContractStates) -> list[Row]:
    """Returns the alarms of single devices."""
    return rows(ALARMS, states.device_alarms, lambda one: f"{one.device}/{one.bundle}/{one.version}/{one.edge_digest}")


def advice(one: ContractState, states: ContractStates) -> list[str]:
    """Returns what a person can do about a promise, in sentences.

    Args:
        one: the promise.
        states: the answer that has it, with the alarms of single devices.
    """
    version = one.bundle, one.version
    devices = {each.device for each in states.lasting_alarms if (each.bundle, each.version) == version}
    general = _advice(one)
    if not devices:
        return general
    there = (
        f"The own audits of {counted(len(devices), 'device')} show that this version breaks a promise there; see "
        "'Alarms of single devices'. Check the lens, the light and the sensor there first."
    )
    return [there, *([] if one.state is AuditResult.HOLDS else general)]


def _advice(one: ContractState) -> list[str]:
    missing = one.audits_needed - one.audits
    if one.state is AuditResult.ALARMED:
        return [
            f"The alarm was raised on {iso_moment(one.alarmed_since)} UTC. Devices accept only what their latest "
            "audits still support, and send the rest to the full model.",
            "Look at the devices with the most disagreements. If a few have most of them, check their lens, light or "
            "sensor.",
            "If the inputs have changed, certify the bundle again with current data and roll the new version out. If "
            "the model is wrong, roll back.",
            "If the cause was not the model and is removed, end the alarm: its audits are deleted and the test starts "
            "again.",
        ]
    if one.state is AuditResult.TOO_LITTLE_EVIDENCE and missing <= 0:
        return [
            "The audits have more errors than promised, but not enough for an alarm. Later audits will decide. Look at "
            "the devices with the most disagreements meanwhile."
        ]
    if one.state is AuditResult.TOO_LITTLE_EVIDENCE:
        return [
            f"About {counted(missing, 'further audit')} are needed until twice the promised share of errors would have "
            "been noticed. Devices send them without a command; their setting audit.per_hour limits the rate."
        ]
    if one.state is AuditResult.NOT_AUDITED:
        return [
            "No device has audited this promise. Check that devices run this version, that they reach the gateway, and "
            "that their setting audit.per_hour is above 0."
        ]
    return ["Nothing. The audits continue."]


def figures(one: ContractState) -> list[tuple[str, str]]:
    """Returns the numbers of a promise by name."""
    return [
        ("Observed", _percent(one.risk)),
        ("Promised", _percent(one.epsilon)),
        ("Audits", f"{one.audits:,}"),
        ("Evidence against it", f"{one.e_value:.3g} of {1 / one.level:.3g}"),
        ("Devices", str(one.devices)),
        ("Latest audit (UTC)", iso_moment(one.last_audit)),
    ]


CONTRIBUTIONS: tuple[Column[Contribution], ...] = (
    Column("device", "Device", lambda one: Cell(one.device, device_page(one.device))),
    Column("audits", "Audits", lambda one: str(one.audits), number=True),
    Column("disagreements", "Disagreements", lambda one: str(one.disagreements), number=True),
    Column("share", "Share", lambda one: _percent(one.disagreements / one.audits if one.audits else None), number=True),
    Column("last", "Latest audit (UTC)", lambda one: iso_moment(one.last_audit)),
)
ALARMS: tuple[Column[DeviceAlarm], ...] = (
    Column("device", "Device", lambda one: Cell(one.device, device_page(one.device))),
    Column("version", "Version", lambda one: Cell(f"{one.bundle} {one.version}", contract_page(one.bundle))),
    Column("event", "Broken promise", lambda one: one.event or "all rows"),
    Column(
        "since",
        "Alarm since (UTC)",
        lambda one: Cell(iso_moment(one.since), tone=Tone.PLAIN if one.ended else Tone.BAD),
    ),
    Column("ended", "Ended (UTC)", lambda one: iso_moment(one.ended)),
)


def chart(one: ContractState) -> dict[str, Any]:
    """Returns the options of a chart of the evidence against a promise over time, with the level of the alarm."""
    points = [[1000 * each.at_s, max(each.e_value, 1e-3)] for each in one.evidence]
    level = {"yAxis": 1 / one.level, "label": {"formatter": "alarm", "color": _TEXT, "position": "insideEndTop"}}
    return {
        "aria": {"enabled": True, "label": {"description": f"Evidence against the promise over time. {one.finding}"}},
        "useUTC": True,
        "animation": False,
        "grid": {"left": 56, "right": 24, "top": 24, "bottom": 32},
        "tooltip": {"trigger": "axis"},
        "xAxis": {"type": "time", "axisLabel": {"color": _TEXT, "hideOverlap": True}},
        "yAxis": {
            "type": "log",
            "max": 10 ** math.ceil(math.log10(max([2 / one.level, *(value for _, value in points)]))),
            "axisLabel": {"color": _TEXT},
            "splitLine": {"lineStyle": {"color": _LINE}},
        },
        "series": [
            {
                "name": "evidence",
                "type": "line",
                "step": "end",
                "showSymbol": len(points) < 3,
                "lineStyle": {"color": "#0072b2"},
                "itemStyle": {"color": "#0072b2"},
                "data": points,
                "markLine": {"symbol": "none", "lineStyle": {"color": "#d55e00", "type": "dashed"}, "data": [level]},
            }
        ],
    }
