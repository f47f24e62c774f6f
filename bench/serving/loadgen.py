"""`make loadgen`: MLPerf's LoadGen drives SingleStream, Server and Offline against both tiers, each on one core.

LoadGen decides what is asked when, and whether a result is valid by its own rules. What is not by MLPerf's rules is
told beside the figures: minutes instead of hours, models of our own, a client in Python on the same machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import figures as book
from figures import Figure

from serving import bodies, machine, ours, tables, wrk
from serving.asking import expected, v2
from serving.effort import Effort
from serving.figuring import told
from serving.models import KINDS, Kind, M, S, rows, write_bundle
from serving.processes import Cores, Server, cores, prefer

TARGET = PART = "loadgen"
_CHECKOUT = Path(__file__).parents[2]
PYTHON = _CHECKOUT / ".venv-loadgen" / "bin" / "python"
_CLIENT = Path(__file__).with_name("loadgen_client.py")
_CONNECTIONS = 32
_SAMPLES = {"s": 256, "m": 16}
_TRIAL = {"s": 3000, "m": 60}
_SHARES = {"Server": 0.5, "Offline": 1.3}
"""Of the rate that was reached before: queries come at random in Server, and Offline has to last long enough."""
_FEWEST_QUERIES = 64
_INPUTS = 1 << 21
"""That one test may use up; four tests of a server have to fit into the 23 bits of a float's fraction."""
_LATENCY_MS = {"s": 10.0, "m": 100.0}
"""What 99 % of Server's answers have to keep; MLPerf gives ResNet-50 15 ms, on machines that need less for a batch."""
_MLPERF = {"SingleStream": (600_000, 1024), "Server": (600_000, 270_336), "Offline": (600_000, 24_576)}
"""Shortest duration (ms) and fewest queries (of Offline: samples) by MLPerf's rules, without early stopping."""
_LATENCIES = {
    "50.00 percentile latency (ns)": "p50_ms",
    "90.00 percentile latency (ns)": "p90_ms",
    "99.00 percentile latency (ns)": "p99_ms",
}


class Plan(NamedTuple):
    """What `loadgen_client.py` reads.

    Attributes:
        messages: files with whole HTTP requests.
        connections: used at once by Server and Offline.
        min_duration_ms, min_query_count: LoadGen's, of a valid run.
        first: number of the first input; no two tests of one server have inputs in common.
        target_qps: what Server asks for, and Offline expects; SingleStream is prepared for that many, see
            `loadgen_client.settings_of`.
        target_latency_ms: of Server, for 99 %.
        folder: for LoadGen's logs.
    """

    scenario: str
    port: int
    messages: list[str]
    connections: int
    min_duration_ms: int
    min_query_count: int
    first: int
    target_qps: float
    target_latency_ms: float
    folder: str


class Result(NamedTuple):
    """What LoadGen's summary says."""

    tier: str
    kind: str
    scenario: str
    valid: bool
    per_s: float
    latencies_ms: dict[str, float]
    plan: dict[str, Any]


def messages(folder: Path, kind: Kind, server: Server) -> list[str]:
    """Requests as they go over the wire; they end with the input, which the client makes another one each time."""
    files = []
    for number in range(_SAMPLES[kind.name]):
        body = bodies.v2_binary(rows(kind, seed=number))
        headers = {"Host": "127.0.0.1", "Content-Length": str(len(body.content)), **body.headers, **server.headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        file = folder / f"{kind.name}-{number}.http"
        path = bodies.infer_path(kind.name)
        file.write_bytes(f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + body.content)
        files.append(str(file))
    return files


def run(plan: Plan, on: Cores) -> dict[str, str]:
    """One test: LoadGen's summary, by what its lines are called.

    Raises:
        subprocess.CalledProcessError: the client failed.
    """
    folder = Path(plan.folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan.json").write_text(json.dumps(plan._asdict()))
    command = ["taskset", "--cpu-list", ",".join(map(str, sorted(on))), str(PYTHON), str(_CLIENT)]
    client = subprocess.Popen([*command, str(folder / "plan.json")], start_new_session=True, stdout=subprocess.DEVNULL)
    prefer(client.pid)
    try:
        if client.wait():
            raise subprocess.CalledProcessError(client.returncode, command)
    finally:
        client.kill()
    return summary((folder / "mlperf_log_summary.txt").read_text())


def summary(text: str) -> dict[str, str]:
    """The lines `name : value` of mlperf_log_summary.txt; the first one where a name comes again."""
    found: dict[str, str] = {}
    for name, value in re.findall(r"^\s*(.+?)\s*:\s+(.+?)\s*$", text, re.MULTILINE):
        found.setdefault(name, value)
    return found


def result(tier: str, kind: Kind, plan: Plan, said: dict[str, str]) -> Result:
    """The numbers of a summary."""
    rate = next(
        said[name]
        for name in ("Samples per second", "Completed samples per second", "QPS w/o loadgen overhead")
        if name in said
    )
    latencies = {short: float(said[name]) / 1e6 for name, short in _LATENCIES.items() if name in said}
    kept = {name: value for name, value in plan._asdict().items() if name not in ("messages", "folder", "port")}
    return Result(tier, kind.name, plan.scenario, said["Result is"] == "VALID", float(rate), latencies, kept)


def scenarios(tier: str, kind: Kind, server: Server, folder: Path, effort: Effort) -> list[Result]:
    """The three of them; what Offline reaches tells what Server is asked for."""
    _, on, _ = cores()
    duration_ms = 1000 * (1 if effort.quick else effort.seconds)
    made = messages(folder, kind, server)

    firsts = itertools.count(0, _INPUTS)

    def plan(scenario: str, qps: float, duration_ms: int, queries: int) -> Plan:
        where = str(folder / f"{tier}-{kind.name}-{scenario}-{duration_ms}")
        latency_ms = _LATENCY_MS[kind.name]
        first = next(firsts)
        return Plan(scenario, server.port, made, _CONNECTIONS, duration_ms, queries, first, qps, latency_ms, where)

    trial = plan("Offline", 1.0, 1, _TRIAL[kind.name])
    rate = result(tier, kind, trial, run(trial, on)).per_s
    found = []
    for scenario in ("Offline", "SingleStream", "Server"):
        effort.tell(f"{tier}, {kind.name.upper()}, {scenario}")
        asked = plan(scenario, rate * _SHARES.get(scenario, 1.0), duration_ms, _FEWEST_QUERIES)
        one = result(tier, kind, asked, run(asked, on))
        found.append(one)
        if scenario == "Offline":
            rate = one.per_s
    return found


def measure(effort: Effort, kinds: Sequence[Kind]) -> list[Result]:
    """Both tiers, one after the other, each with its own core and LoadGen on the other one."""
    server_core, _, _ = cores()
    found = []
    for kind in kinds:
        for tier, start in tiers(kind, server_core).items():
            with tempfile.TemporaryDirectory(prefix="firstline-bench-") as name:
                folder = Path(name)
                with start(folder) as server:
                    found += scenarios(tier, kind, server, folder, effort)
    return found


def tiers(kind: Kind, on: Cores) -> dict[str, Callable[[Path], AbstractContextManager[Server]]]:
    """How each is started, with its defaults; their caches find nothing, for no input comes twice."""

    def gateway(folder: Path) -> AbstractContextManager[Server]:
        headers = ours.gateway_folder(folder, {kind.name: kind})
        right = expected(folder / "models" / kind.name / "model.onnx", kind)
        return ours.gateway(folder, headers, v2("binary", kind, [kind.name]), right, on)

    def agent(folder: Path) -> AbstractContextManager[Server]:
        bundle = write_bundle(kind, folder / "bundles" / kind.name, edge=True)
        right = expected(bundle / "model.onnx", kind)
        return ours.agent(folder, bundle, v2("binary", kind, [kind.name]), right, on)

    return {"gateway": gateway, "agent": agent}


def figures(results: Sequence[Result]) -> list[Figure]:
    """By LoadGen's own metric of each scenario, with its verdict as the aim."""
    rows = []
    for one in results:
        what = f"{one.tier}, {one.kind.upper()}, {one.scenario}"
        per_s = Figure(f"{what}: rate", round(one.per_s, 1), "/s")
        if one.scenario == "SingleStream":
            verdict = Figure(f"{what}: p90", round(one.latencies_ms["p90_ms"], 3), "ms")
            rows += [verdict._replace(aim="valid by LoadGen", holds=one.valid), per_s]
        else:
            rows.append(per_s._replace(aim="valid by LoadGen", holds=one.valid))
        if one.scenario != "Offline":
            rows += [
                told(f"{what}: {name.removesuffix('_ms')}", ms, "ms")
                for name, ms in one.latencies_ms.items()
                if not (one.scenario == "SingleStream" and name == "p90_ms")
            ]
        if one.scenario == "Server":
            rows.append(told(f"{what}: 99 % are to be answered within", one.plan["target_latency_ms"], "ms"))
    return rows


def below_mlperf(results: Sequence[Result]) -> dict[str, str]:
    """By scenario, which settings are below MLPerf's minima."""
    found = {}
    for one in results:
        duration_ms, queries = _MLPERF[one.scenario]
        found[one.scenario] = (
            f"{one.plan['min_duration_ms'] / 1000:g} s instead of {duration_ms / 1000:g}, "
            f"at least {one.plan['min_query_count']} queries instead of {queries}"
        )
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """0 whatever the figures are: times of one machine are no gate."""
    parser = argparse.ArgumentParser(prog="bench_loadgen.py", description=__doc__)
    parser.add_argument("--only", choices=KINDS, nargs="+", default=list(KINDS), help="models (default: all)")
    parser.add_argument("--seconds", type=int, default=20, help="of each test, at least (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="a second of each: figures mean nothing")
    parser.add_argument("--target", default=TARGET, help="what bench/results/TARGET.json is called")
    said = parser.parse_args(arguments)
    if not PYTHON.exists():
        print("LoadGen's environment is not there: make .venv-loadgen/stamp", file=sys.stderr)
        return 1
    wrk.raise_descriptors()
    effort = Effort(1, said.seconds, quick=said.quick)
    described = machine.described()
    results = measure(effort, [kind for kind in (S, M) if kind.name in said.only])
    beside = {"machine": described, "below MLPerf's own": below_mlperf(results)}
    book.write(said.target, figures(results), beside | {"results": [one._asdict() for one in results]})
    if not said.quick:
        tables.refill()
    book.tell(figures(results))
    return 0
