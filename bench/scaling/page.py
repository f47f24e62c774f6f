"""docs/scale.md's tables, from what was measured and assumed: the words are the page's own."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from figures import RESULTS, Figure

from scaling.fleet import Assumptions, Step, Units

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"
_TABLE = re.compile(r"(<!-- scale: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_SHOWN: dict[str, tuple[str, str, float]] = {
    "gateway_http_us": ("gateway: a request over HTTP, beside the model", "us of a core", 1),
    "gateway_mqtt_us": ("gateway: a request over MQTT, beside the model", "us of a core", 1),
    "gateway_delivery_us": ("gateway: a delivery over HTTP, committed on PostgreSQL", "us of a core", 1),
    "handshake_us": ("gateway: a new TLS connection", "us of a core", 1),
    "gateway_bytes": ("gateway: memory of a replica with a small model", "MiB", 1 << 20),
    "model_ms": ("the full model: one image of 224 by 224 (M)", "ms of a core", 1),
    "broker_request_us": ("Mosquitto: a request and its answer", "us of a core", 1),
    "broker_connect_us": ("Mosquitto: letting a device in over TLS, with two subscriptions", "us of a core", 1),
    "broker_connection_bytes": ("Mosquitto: memory of an idle device over TLS", "KiB", 1024),
    "broker_ping_us": ("Mosquitto: a keep-alive", "us of a core", 1),
    "postgres_delivery_us": ("PostgreSQL: a delivery", "us of a core", 1),
    "postgres_commits": ("PostgreSQL: commits one after the other, flushed to this disk", "/s", 1),
    "deliveries_commit": ("PostgreSQL: deliveries that share a flush, 64 at once", "", 1),
    "delivery_bytes": ("PostgreSQL: disk for a delivery, indices included", "bytes", 1),
    "idle_day_bytes": ("the line: a device that nobody asks, a day, over MQTT", "kB", 1000),
}


def figures(units: Units) -> list[Figure]:
    """The units as they are told."""
    said = units._asdict()
    return [Figure(text, _rounded(said[name] / scale), unit) for name, (text, unit, scale) in _SHOWN.items()]


def filled(text: str, units: Sequence[Figure], steps: Sequence[Step], given: Assumptions) -> str:
    """The page with its tables."""
    tables = {"units": _units(units), "assumptions": _assumptions(given), "load": _load(steps), "cost": _cost(steps)}
    return _TABLE.sub(lambda match: match[1] + tables[match[2]] + match[3], text)


def measured() -> tuple[list[Figure], list[Step]]:
    """What was measured last, and the steps that came of it."""
    said = json.loads((RESULTS / "scale.json").read_text())
    return [Figure(**each) for each in said["figures"]], [Step(**each) for each in said["steps"]]


def refill() -> None:
    """Writes the page anew, from what was measured last."""
    PAGE.write_text(filled(PAGE.read_text(), *measured(), Assumptions()))


def _rounded(value: float) -> float:
    """Three digits, which is more than a busy machine is worth."""
    return float(f"{value:.3g}")


def _shown(value: float) -> str:
    rounded = _rounded(value)
    if 0 < rounded < 0.001:
        return "< 0.001"
    return f"{rounded:,.0f}" if rounded >= 100 or rounded == int(rounded) else f"{rounded:g}"


def _units(units: Sequence[Figure]) -> str:
    rows = [f"| {each.figure} | {_shown(each.value or 0)} {each.unit}".rstrip() + " |" for each in units]
    return "\n".join(["| | measured |", "|---|---|", *rows, ""])


def _assumptions(given: Assumptions) -> str:
    said = dict(re.findall(r"^ {4}(\w+): (.+?)$", inspect.getdoc(Assumptions) or "", re.MULTILINE))
    rows = [f"| `{each.name}` | {getattr(given, each.name):,g} | {said[each.name]} |" for each in fields(given)]
    return "\n".join(["| | assumed | |", "|---|---|---|", *rows, ""])


def _load(steps: Sequence[Step]) -> str:
    rows = [
        f"| {each.devices:,} | {_shown(each.requests)} | {_shown(each.escalations)} | {_shown(each.deliveries)} "
        f"| {_shown(each.model_cores)} | {_shown(each.gateway_cores)} | {_shown(each.broker_cores)} "
        f"| {_shown(each.broker_bytes / (1 << 20))} | {_shown(each.commits)} | {_shown(each.store_bytes / 1e6)} "
        f"| {_shown(each.line_gb)} | {_shown(each.out_gb)} |"
        for each in steps
    ]
    head = (
        "| devices | requests/s | to gateways/s | deliveries/s | cores: model | cores: gateways | cores: brokers "
        "| brokers' MiB | commits/s | store, MB | line in, GB a month | out |"
    )
    return "\n".join([head, "|---" * 12 + "|", *rows, ""])


def _cost(steps: Sequence[Step]) -> str:
    rows = [
        f"| {each.devices:,} | {each.gateways:,} | {each.brokers:,} | {each.first}: {_shown(100 * each.first_share)} % "
        f"| {each.second}: {_shown(100 * each.second_share)} % "
        f"| {_shown(each.monthly)} | {_shown(each.monthly_device)} |"
        for each in steps
    ]
    head = "| devices | gateways | brokers | nearest to the limit of one | next | $ a month | $ a device |"
    return "\n".join([head, "|---|---|---|---|---|---|---|", *rows, ""])
