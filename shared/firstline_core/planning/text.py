"""A plan as text, with its figures."""

from __future__ import annotations

import math

from firstline_core.hardware.readings import Measured, Modelled, Reading
from firstline_core.planning.plan import Candidate, Plan
from firstline_core.planning.split import Stretch, Way

_MBIT = 1e6 / 8
_SHOWN = 6


def plan_lines(plan: Plan) -> list[str]:
    """Returns the lines of a plan; open questions come last."""
    lines = [f"{plan.bundle} {plan.version}{f' on {plan.machine}' if plan.machine else ''}"]
    if plan.chosen is not None:
        lines.append(f"  run       {_candidate(plan.chosen)}")
        lines += [f"  next best {_candidate(other)}" for other in plan.others[:_SHOWN]]
    if plan.batch is not None:
        lines.append(f"  batch     {plan.batch} {'row' if plan.batch == 1 else 'rows'}: larger ones win under 5 %")
    if plan.throttled_ms is not None:
        lines.append(f"  held back {plan.throttled_ms:.3g} ms a row under sustained load")
    lines += [
        f"  partition {share.provider} runs {share.nodes} operators ({', '.join(share.kinds)}), {share.query_ms:.3g} ms"
        for share in plan.partition
    ]
    if (carried := plan.carried) is not None:
        tensor = "unknown" if carried.tensor_bytes is None else f"{carried.tensor_bytes:.0f} bytes"
        where = "on the gateway" if carried.form == "encoded" else "on the device"
        lines.append(
            f"  processed {where} for the full model: the input is {carried.encoded_bytes:.0f} bytes as it came, its "
            f"tensor {tensor}; {carried.prepare_ms:.3g} ms to prepare; its answer is processed where it runs"
        )
    if (full := plan.full) is not None:
        if full.way is not None and full.latency_ms is not None:
            lines.append(f"  full      {describe_way(full.way)}: {full.latency_ms:.3g} ms over the stated link")
        lines += [
            f"  by link   {describe_bandwidths(stretch)}: {describe_way(stretch.way)}" for stretch in full.by_bandwidth
        ]
    return lines + [f"  open      {sentence}" for sentence in plan.open]


def describe_way(way: Way) -> str:
    """Describes a way to the full model's answer."""
    if way.kind == "device":
        return "the whole model on the device"
    if way.kind == "input":
        return f"the encoded input is sent ({way.sent_bytes:.0f} bytes)"
    return f"split at {way.tensor} as {way.form} ({way.sent_bytes:.0f} bytes); measured, not run by this version"


def describe_bandwidths(stretch: Stretch) -> str:
    """Describes the bandwidths of a stretch."""
    low, high = stretch.from_bytes_per_s / _MBIT, stretch.to_bytes_per_s / _MBIT
    if low <= 0:
        return "whatever the bandwidth" if math.isinf(high) else f"up to {high:.3g} Mbit/s"
    return f"from {low:.3g} Mbit/s on" if math.isinf(high) else f"from {low:.3g} to {high:.3g} Mbit/s"


def _candidate(one: Candidate) -> str:
    threads = "as many threads as the runtime likes" if not one.threads else f"{one.threads} thread(s)"
    kept = "no valid certificate" if one.kept is None else f"keeps {one.kept:.0%} under its certificate"
    expected = "" if one.expected_ms is None else f", {one.expected_ms:.3g} ms expected with escalations"
    return (
        f"{one.variant} by {one.provider}, {threads}: {one.row_ms:.3g} ms a row (p99 {one.worst_ms:.3g}), "
        f"{one.rows_per_s:.0f} rows/s, {_energy(one.energy_mj)}; {kept}{expected}"
    )


def _energy(reading: Reading) -> str:
    if isinstance(reading, Measured):
        return f"{reading.value:.3g} mJ measured"
    return f"{reading.value:.3g} mJ modelled" if isinstance(reading, Modelled) else "energy not known"
