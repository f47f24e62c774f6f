"""`make -C bench peers`: the gateway, raw ASGI and every peer, each alone on one core, the same client on the other.

Rounds are interleaved: in each, every server is restarted, one after the other, in rotated order. Each is asked in the
best form that it speaks, and in JSON, which all do. Answers are compared with the model's own before and after.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench import figures as book
from bench.figures import Figure, at_least, plain
from bench.serving import machine, ours, peer, tables, wrk
from bench.serving.bodies import Row
from bench.serving.client import Question, WrongAnswerError, expected, measured, v2
from bench.serving.models import KINDS, Kind, M, S, write_onnx
from bench.serving.processes import Cores, Server, StartError, cores
from bench.serving.samples import Effort, Sample, median, of_load, ratio

TARGET = PART = "peers"
GATEWAY, RAW = "gateway", "raw ASGI"
QUESTIONS = (
    Question(S, "binary", 32),
    Question(S, "JSON", 32),
    Question(S, "binary", 1),
    Question(S, "JSON", 1),
    Question(M, "binary", 8),
    Question(M, "JSON", 8),
)
_FIRST_WARM_UP_S = 3  # some have much to start when they are asked first
_AIMS = {"MLServer": 3.0, "pytriton": 2.5}
_BOTH = ("binary", "JSON")


class Contender(NamedTuple):
    """One that is measured.

    Attributes:
        forms: of V2 that it speaks.
        start: runs it, for the models in a folder, until it answers for the kind.
    """

    name: str
    forms: Sequence[str]
    start: Callable[[Kind], AbstractContextManager[Server]]
    kinds: Sequence[Kind]


def contenders(folder: Path, right: Mapping[str, Row], headers: dict[str, str], on: Cores) -> list[Contender]:
    """Ours, the raw limit for each model, and the peers."""

    def gateway(kind: Kind) -> AbstractContextManager[Server]:
        return ours.gateway(folder / "gateway", headers, v2("binary", kind), right[kind.name], on)

    def raw(kind: Kind) -> AbstractContextManager[Server]:
        ask = v2("binary", kind)
        return ours.raw_asgi(folder, folder / f"{kind.name}.onnx", ask, right[kind.name], on)

    def other(one: peer.Peer, kind: Kind) -> AbstractContextManager[Server]:
        return peer.running(one, folder, right[kind.name], kind, on)

    return [
        Contender(GATEWAY, _BOTH, gateway, (S, M)),
        *(Contender(RAW, _BOTH, raw, (kind,)) for kind in (S, M)),
        *(Contender(one.name, one.forms, partial(other, one), (S, M)) for one in peer.PEERS),
    ]


def measure(effort: Effort, only: Sequence[str]) -> tuple[list[Sample], dict[str, str]]:
    """Every round of everybody; and of those that could not be measured, why."""
    server_core, client_core, _ = cores()
    samples: list[Sample] = []
    failed: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="firstline-bench-") as name:
        folder = Path(name)
        files = {kind.name: write_onnx(kind, folder / f"{kind.name}.onnx") for kind in KINDS.values()}
        right = {kind.name: expected(files[kind.name], kind) for kind in KINDS.values()}
        headers = ours.gateway_folder(folder / "gateway", KINDS)
        known = [one for one in contenders(folder, right, headers, server_core) if one.name in only]
        for number in range(effort.rounds):
            for contender in known[number % len(known) :] + known[: number % len(known)]:
                if contender.name in failed:
                    continue
                effort.progress(f"round {number + 1} of {effort.rounds}: {contender.name}")
                try:
                    samples += _turn(contender, number, effort, right, client_core)
                except (StartError, WrongAnswerError, subprocess.CalledProcessError) as error:
                    failed[contender.name] = str(error)
                    effort.progress(f"{contender.name} {error}")
    return samples, failed


def _turn(contender: Contender, number: int, effort: Effort, right: Mapping[str, Row], client: Cores) -> list[Sample]:
    found = []
    with contender.start(contender.kinds[0]) as server:
        found.append(Sample(PART, number, contender.name, "start", {"s": server.start_s}))
        asked = [q for q in QUESTIONS if q.form in contender.forms and q.kind in contender.kinds]
        for question in asked:
            load = measured(
                server,
                question.ask,
                right[question.kind.name],
                in_flight=question.in_flight,
                seconds=effort.seconds,
                requests=effort.requests,
                on=client,
                warm_up_s=_FIRST_WARM_UP_S if question is asked[0] and not effort.quick else effort.warm_up_s,
            )
            found.append(of_load(PART, number, contender.name, question.name, load))
    return found


def figures(samples: Sequence[Sample], failed: Mapping[str, str]) -> list[Figure]:
    """How many times the rate of a peer's best form our binary form has; `samples` tell the rest."""
    rows = []
    for family in dict.fromkeys(one.family for one in peer.PEERS):
        best = _best(samples, [one.name for one in peer.PEERS if one.family == family])
        times = None if best is None else ratio(samples, (GATEWAY, QUESTIONS[0].name), best)
        what = f"gateway, S binary, 32 in flight: rate / {family}'s best"
        rows.append(at_least(what, times, _AIMS[family]) if family in _AIMS else plain(what, times))
    for other in (one.name for one in peer.PEERS):
        if other in failed:
            rows.append(plain(f"{other} could not be measured: {tables.reason(failed[other])}", None))
    bad = {one.who for one in samples if one.values.get("bad")}
    rows.append(plain("servers of which an answer was no 200", float(len(bad))))
    return rows


def _best(samples: Sequence[Sample], variants: Sequence[str]) -> tuple[str, str] | None:
    """The quickest of its variants and forms for S at 32 in flight, so that no peer is compared in its weaker form."""
    pairs = [(who, question.name) for who in variants for question in QUESTIONS[:2]]
    rates = {pair: rate for pair in pairs if (rate := median(samples, *pair, "rate_per_s")) is not None}
    return max(rates, key=lambda pair: rates[pair], default=None)


def versions(only: Sequence[str]) -> dict[str, dict[str, str]]:
    """Of each peer's packages, by its own interpreter."""
    script = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    found = {}
    for one in peer.PEERS:
        packages = (one.package, "onnxruntime", "numpy")
        if one.name not in only or not one.python.exists():
            continue
        listed = subprocess.run([one.python, "-c", script, *packages], capture_output=True, text=True, check=False)
        if listed.returncode == 0:  # otherwise not all of it is installed, which its start will tell
            found[one.name] = dict(zip(packages, listed.stdout.split(), strict=True)) | {"note": one.note}
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """0 whatever the figures are: times of one machine are no gate."""
    everybody = (GATEWAY, RAW, *(one.name for one in peer.PEERS))
    parser = argparse.ArgumentParser(prog="python -m bench.serving.compare_peers", description=__doc__)
    parser.add_argument("--only", choices=everybody, nargs="+", default=list(everybody), help="(default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=3, help="of each load (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="everything once and briefly: figures mean nothing")
    options = parser.parse_args(arguments)
    if not wrk.available():
        print("wrk is not installed: `make wrk`, or your system's package", file=sys.stderr)
        return 1
    wrk.raise_descriptors()
    effort = Effort(1, 1, quick=True) if options.quick else Effort(options.rounds, options.seconds)
    described = machine.described() | {"rounds": effort.rounds, "seconds": effort.seconds}
    described["peers"] = versions(options.only)
    samples, failed = measure(effort, options.only)
    rows = figures(samples, failed)
    book.write(
        TARGET,
        rows,
        {"machine": described, "not measured": failed, "samples": [one._asdict() for one in samples]},
    )
    if not options.quick:
        tables.refill()
    book.tell(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
