"""`make -C bench peers`: the gateway, raw ASGI and every peer, each alone on one core, the same client on the other.

Rounds are interleaved: in each, every server is restarted, one after the other, in rotated order. Each is asked in the
best form that it speaks, and in JSON, which all do. Answers are compared with the model's own before and after.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial

from bench import figures as book
from bench.figures import Figure, at_least, plain
from bench.serving import machine, peer, rounds, tables
from bench.serving.client import Question
from bench.serving.models import Kind, M, S
from bench.serving.processes import cores
from bench.serving.rest import M_BINARY, M_JSON, S_BINARY, S_JSON, S_JSON_ONE, S_ONE
from bench.serving.rounds import GATEWAY, RAW, Models, Turn
from bench.serving.run import read_command
from bench.serving.samples import Effort, Sample, median, ratio

TARGET = PART = "peers"
QUESTIONS = (S_BINARY, S_JSON, S_ONE, S_JSON_ONE, M_BINARY, M_JSON)
_AIMS = {"MLServer": 3.0, "pytriton": 2.5}


def measure(effort: Effort, only: Sequence[str]) -> tuple[list[Sample], dict[str, str]]:
    """Returns the samples of all rounds; and of those that could not be measured, why."""
    with rounds.served_models() as models:
        return rounds.measure(PART, [turn for turn in _turns(models) if turn.who in only], models, effort)


def _turns(models: Models) -> list[Turn]:
    """Returns ours, the raw limit for each model, and the peers; each is asked in the forms that it speaks."""
    on, client, _ = cores()

    def other(one: peer.Peer) -> Turn:
        questions = [question for question in QUESTIONS if question.form in one.forms]
        return Turn(one.name, partial(peer.running, one, models.folder, models.right[S.name], S, on), questions, client)

    return [
        Turn(GATEWAY, partial(models.gateway, S, on), QUESTIONS, client),
        *(Turn(RAW, partial(models.raw_asgi, kind, on), _about(kind), client) for kind in (S, M)),
        *map(other, peer.PEERS),
    ]


def _about(kind: Kind) -> list[Question]:
    return [question for question in QUESTIONS if question.kind is kind]


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
    only, effort = read_command("bench.serving.compare_peers", __doc__, everybody, 3, arguments)
    described = machine.described() | {"rounds": effort.rounds, "seconds": effort.seconds}
    described["peers"] = versions(only)
    samples, failed = measure(effort, only)
    rows = figures(samples, failed)
    record = {"machine": described, "not measured": failed, "samples": [one._asdict() for one in samples]}
    book.write(TARGET, rows, record)
    if not effort.quick:
        tables.refill()
    book.tell(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
