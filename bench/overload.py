"""Loads a gateway with up to ten times what it can answer, and looks at what becomes of those requests.

The gateway is a process of its own on one core, the generator another process on another core. Requests come at random
times at a given rate, whether or not the ones before were answered, and each allows as long as 25 rows take.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from bench.figures import Figure
from bench.load import models, run
from bench.load.generator import Record, Stream
from bench.load.run import Measured
from bench.page import report
from bench.serving import ours
from bench.serving.processes import Server, cores

ROW_MS = 10.0
ROWS_ALLOWED = 25
TIMES_CAPACITY = (0.5, 1.0, 2.0, 5.0, 10.0)
RECOVERY_S = 5.0
_SETTLE_S = 0.5  # before the first request
_QUICK_RATES = (500.0, 1000.0, 2000.0, 4000.0, 8000.0)


def stream(
    model: str, *, rate: float, seconds: float, timeout_s: float, key: str = "", start_s: float = _SETTLE_S
) -> Stream:
    """Requests of one row."""
    row = {"name": "x", "datatype": "FP32", "shape": [1, models.FEATURES], "data": [0.5] * models.FEATURES}
    body = json.dumps({"parameters": {"timeout": int(timeout_s * 1e6)}, "inputs": [row]})
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return Stream(key[-4:] or "all", rate, start_s, seconds, timeout_s, f"/v2/models/{model}/infer", headers, body)


def good(records: Sequence[Record], timeout_s: float) -> list[Record]:
    """Answered in time, as the client sees it."""
    return [record for record in records if record.status == 200 and record.seconds <= timeout_s]


def late(records: Sequence[Record], timeout_s: float) -> list[Record]:
    """Admitted, and not answered in time: too late, or told so at the deadline (504)."""
    return [
        record for record in records if record.status == 504 or (record.status == 200 and record.seconds > timeout_s)
    ]


def refused_ms(records: Sequence[Record], share: float) -> float:
    """How long it takes to be refused (a quantile)."""
    found = [record.seconds for record in records if record.status == 503]
    return float(np.quantile(found, share)) * 1000 if found else 0.0


def configuration(folder: Path, auth: str) -> Path:
    file = folder / "gateway.toml"
    file.write_text(f'[auth]\nmode = "{auth}"\n')
    return file


def ladder(running: Server, rates: Sequence[float], model: str, seconds: float, timeout_s: float) -> list[Measured]:
    """One load after the other."""
    _, core, _ = cores()
    return [
        run.put_under(running, [stream(model, rate=rate, seconds=seconds, timeout_s=timeout_s)], core, seed=n)
        for n, rate in enumerate(rates)
    ]


def recovery_s(running: Server, capacity: float, seconds: float, timeout_s: float) -> float:
    """From the end of an overload until half a second in which all of a light load is answered in time."""
    _, core, _ = cores()
    end_s = _SETTLE_S + seconds
    streams = [
        stream("slow", rate=10 * capacity, seconds=seconds, timeout_s=timeout_s),
        stream("slow", rate=0.3 * capacity, seconds=10.0, timeout_s=timeout_s, start_s=end_s),
    ]
    records = [record for record in run.put_under(running, streams, core, seed=7).records if record.sent_s >= end_s]
    bad = [record.sent_s - end_s for record in records if record.status != 200 or record.seconds > timeout_s]
    windows = np.arange(0.0, 9.5, 0.1)
    return float(next((start for start in windows if not any(start <= at < start + 0.5 for at in bad)), 10.0))


def shares(folder: Path, capacity: float, seconds: float, timeout_s: float) -> tuple[float, float]:
    """Returns the answered share of a polite client next to a greedy one, and the greedy one's share of all."""
    config = configuration(folder, "tokens")
    keys = [ours.create_key(config, name) for name in ("polite", "greedy")]
    gateway_core, core, _ = cores()
    with ours.gateway(config, gateway_core) as running:
        run.put_under(
            running, [stream("slow", rate=0.5 * capacity, seconds=3.0, timeout_s=timeout_s, key=keys[0])], core, seed=1
        )
        streams = [
            stream("slow", rate=0.3 * capacity, seconds=seconds, timeout_s=timeout_s, key=keys[0]),
            stream("slow", rate=10 * capacity, seconds=seconds, timeout_s=timeout_s, key=keys[1]),
        ]
        records = run.put_under(running, streams, core, seed=2).records
    polite = [record for record in records if record.client == keys[0][-4:]]
    answered = good(records, timeout_s)
    greedy = sum(record.client == keys[1][-4:] for record in answered)
    return len(good(polite, timeout_s)) / max(1, len(polite)), greedy / max(1, len(answered))


def once(seconds: float) -> dict[str, float]:
    """One gateway through all loads: its numbers by what they are called in the figures."""
    gateway_core, core, _ = cores()
    with tempfile.TemporaryDirectory(prefix="firstline-overload-") as name:
        folder = Path(name)
        os.sched_setaffinity(0, gateway_core)
        row_ms = models.slow_bundle(folder / "models" / "slow", ROW_MS)
        alone = models.rows_alone(folder / "models" / "slow", seconds)
        os.sched_setaffinity(0, gateway_core | core)
        models.quick_bundle(folder / "models" / "quick")
        timeout_s = ROWS_ALLOWED * row_ms / 1000
        with ours.gateway(configuration(folder, "off"), gateway_core) as running:
            idle_mb = running.rss_mb()
            trial = run.put_under(
                running, [stream("slow", rate=1500 / row_ms, seconds=seconds, timeout_s=timeout_s)], core, seed=99
            )
            capacity = len(good(trial.records, timeout_s)) / seconds
            steps = ladder(running, [times * capacity for times in TIMES_CAPACITY], "slow", seconds, timeout_s)
            recovered_s = recovery_s(running, capacity, seconds, timeout_s)
            quick = ladder(running, _QUICK_RATES, "quick", min(seconds, 4.0), timeout_s)
        polite, greedy = shares(folder, capacity, seconds, timeout_s)
    goodputs = [len(good(step.records, timeout_s)) / seconds for step in steps]
    http_s = quick[0].gateway_cpu_s / max(1, len(quick[0].records))
    return {
        "a row of the model alone": row_ms,
        "rows a second of the model alone, one after the other": alone.rows_per_s,
        "a row alone, p99.5 over p50": alone.slow_ratio,
        "processor time of a request in addition to the model's": http_s * 1000,
        "what each request allows": timeout_s * 1000,
        "answered at the capacity that was measured first": capacity,
        **{
            f"answered in time at {times:g} times capacity": goodput
            for times, goodput in zip(TIMES_CAPACITY, goodputs, strict=True)
        },
        "peak, of what model and requests leave room for on one core": max(goodputs) * (1 / alone.rows_per_s + http_s),
        "goodput at 10 times capacity, of the peak": goodputs[-1] / max(goodputs),
        "admitted, all loads together": sum(record.status in (200, 504) for step in steps for record in step.records),
        "admitted and not answered in time": sum(len(late(step.records, timeout_s)) for step in steps),
        "refusals at 10 times capacity, p50": refused_ms(steps[-1].records, 0.5),
        "refusals at 10 times capacity, p99": refused_ms(steps[-1].records, 0.99),
        "back to normal after an overload": recovered_s,
        "memory that overload adds": max(step.rss_mb for step in steps) - idle_mb,
        "a polite client next to a greedy one: answered in time": polite,
        "the greedy client's part of all answers (0.7 is left over)": greedy,
        **{
            f"model of microseconds, at {rate:g}/s: answered in time": len(good(step.records, timeout_s))
            / min(seconds, 4.0)
            for rate, step in zip(_QUICK_RATES, quick, strict=True)
        },
        "of its core, the generator used at most": max(step.generator_share for step in steps + quick),
        "of its core, the gateway had at 10 times capacity": steps[-1].gateway_share,
        "sent late by the generator at 10 times capacity, p99": sent_late_ms(steps[-1].records),
        # Other work on this machine takes from gateway and generator alike.
        "load of this machine meanwhile, for each processor": os.getloadavg()[0] / (os.cpu_count() or 1),
    }


_UNITS = {"a row of": "ms", "rows a": "/s", "processor": "ms", "what each": "ms", "refusals": "ms", "sent": "ms"} | {
    "answered": "/s",
    "back": "s",
    "memory": "MB",
    "model of": "/s",
}
"""By how the figure's name begins; others are counts and ratios."""
_AIMS: dict[str, tuple[str, Callable[[float], bool]]] = {
    "peak, of what model and requests leave room for on one core": ("at least 0.90", lambda value: value >= 0.9),
    "goodput at 10 times capacity, of the peak": ("at least 0.90", lambda value: value >= 0.9),
    "admitted and not answered in time": ("0", lambda value: value == 0),
    "back to normal after an overload": ("under 5", lambda value: value < RECOVERY_S),
    "memory that overload adds": ("under 200", lambda value: value < 200),
    "a polite client next to a greedy one: answered in time": ("at least 0.90", lambda value: value >= 0.9),
}


def figures(runs: Sequence[dict[str, float]]) -> list[Figure]:
    """Returns sums of counts, medians of other values, and the worst value of the goodput."""
    found = [Figure("runs: figures are medians over them, and sums of what was admitted", len(runs), "")]
    for name in runs[0]:
        values = [run[name] for run in runs]
        value = sum(values) if name.startswith("admitted") else statistics.median(values)
        unit = next((unit for begin, unit in _UNITS.items() if name.startswith(begin)), "")
        aim, holds = _AIMS.get(name, (None, None))
        found.append(Figure(name, round(value, 3), unit, aim, None if holds is None else holds(value)))
        if name.startswith("goodput"):
            found.append(Figure(f"{name}, in the worst run", round(min(values), 3), unit))
    return found


def sent_late_ms(records: Sequence[Record]) -> float:
    return float(np.quantile([record.late_s for record in records], 0.99)) * 1000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load")
    parser.add_argument("--repeats", type=int, default=3, help="of all loads (default: %(default)s)")
    options = parser.parse_args()
    started_s, runs = time.monotonic(), []
    for number in range(1, options.repeats + 1):
        runs.append(once(options.seconds))
        print(f"[{time.monotonic() - started_s:4.0f} s] run {number} of {options.repeats}", file=sys.stderr, flush=True)
    return report("overload", figures(runs))


if __name__ == "__main__":
    sys.exit(main())
