"""Compares the gateway over REST with raw ASGI on the same server.

In each round every server is restarted and measured one after the other, in an order that changes from round to round:
what a machine does meanwhile meets all of them, and so does what one start of a process has of luck.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from bench.figures import Figure, at_least, at_most, plain
from bench.serving import ours
from bench.serving.client import Ask, Question, each_its_own, expected, measured
from bench.serving.models import KINDS, Kind, M, S, write_onnx
from bench.serving.processes import Cores, Server, cores
from bench.serving.samples import Effort, Sample, median, of_load, ratio

PART = "rest"
GATEWAY, RAW = "gateway", "raw ASGI"
TWO = ", two cores"

S_BINARY, S_JSON = Question(S, "binary", 32), Question(S, "JSON", 32)
S_ONE, S_JSON_ONE = Question(S, "binary", 1), Question(S, "JSON", 1)
M_BINARY, M_JSON = Question(M, "binary", 8), Question(M, "JSON", 8)
SMALL = (S_BINARY, S_JSON, S_ONE, S_JSON_ONE)
"""Asked of a server on one core."""
MEDIUM = (M_BINARY, M_JSON)
"""Asked of a server that has both cores; the client has what it leaves."""


Start = Callable[[Ask], AbstractContextManager[Server]]
"""Starts a server, which must answer the request correctly."""


class Turn(NamedTuple):
    """A server that is started for some questions."""

    who: str
    start: Start
    questions: Sequence[Question]
    suffix: str
    client: Cores


def measure(effort: Effort) -> list[Sample]:
    """Every round of it."""
    server_core, client_core, both = cores()
    samples: list[Sample] = []
    with tempfile.TemporaryDirectory(prefix="firstline-bench-") as name:
        folder = Path(name)
        files = {kind.name: write_onnx(kind, folder / f"{kind.name}.onnx") for kind in KINDS.values()}
        right = {kind.name: expected(files[kind.name], kind) for kind in KINDS.values()}
        headers = ours.gateway_folder(folder / "gateway", KINDS)

        def gateway(kind: Kind, on: Cores) -> Start:
            return lambda ask: ours.gateway(folder / "gateway", headers, ask, right[kind.name], on)

        def raw(kind: Kind, on: Cores, threads: int = 0) -> Start:
            return lambda ask: ours.raw_asgi(folder, files[kind.name], ask, right[kind.name], on, threads=threads)

        turns = [
            Turn(GATEWAY, gateway(S, server_core), SMALL, "", client_core),
            Turn(RAW, raw(S, server_core), SMALL, "", client_core),
            Turn(GATEWAY, gateway(M, both), MEDIUM, TWO, both),
            Turn(RAW, raw(M, both, len(both)), MEDIUM, TWO, both),
        ]
        for number in range(effort.rounds):
            for turn in turns[number % len(turns) :] + turns[: number % len(turns)]:
                effort.progress(f"round {number + 1} of {effort.rounds}: {turn.who}{turn.suffix}")
                with turn.start(turn.questions[0].ask) as server:
                    kind = turn.questions[0].kind
                    each_its_own(server, files[kind.name], kind)
                    for question in turn.questions:
                        load = measured(
                            server,
                            question.ask,
                            right[question.kind.name],
                            in_flight=question.in_flight,
                            seconds=effort.seconds,
                            requests=effort.requests,
                            on=turn.client,
                            warm_up_s=effort.warm_up_s if question is turn.questions[0] else 0,
                        )
                        samples.append(of_load(PART, number, turn.who, question.name + turn.suffix, load))
                    samples.append(Sample(PART, number, turn.who, "start" + turn.suffix, {"s": server.start_s}))
    return samples


def figures(samples: Sequence[Sample]) -> list[Figure]:
    """Each row with an aim, and what else one would ask of them."""

    def beside(question: Question, suffix: str = "") -> float | None:
        return ratio(samples, (GATEWAY, question.name + suffix), (RAW, question.name + suffix))

    one = S_ONE.name
    rows = [
        at_least("REST binary, S, 32 in flight, one core: rate / raw ASGI's", beside(S_BINARY), 0.65),
        at_least("REST JSON, S, 32 in flight, one core: rate / raw ASGI's with orjson", beside(S_JSON), 0.65),
        at_least("REST binary, M, 8 in flight, two cores: rate / raw ASGI's", beside(M_BINARY, TWO), 0.9),
        at_least("REST JSON of 962 KB, M, 8 in flight, two cores: rate / raw ASGI's", beside(M_JSON, TWO), 0.8),
        at_most(
            "REST binary, S, 1 in flight: p50 / raw ASGI's",
            ratio(samples, (GATEWAY, one), (RAW, one), "p50_us"),
            1.9,
        ),
        plain(
            "REST binary, S, 32 in flight: processor time / raw ASGI's",
            ratio(samples, (GATEWAY, S_BINARY.name), (RAW, S_BINARY.name), "cpu_us"),
        ),
        plain(
            "REST JSON, S, 32 in flight: processor time / raw ASGI's",
            ratio(samples, (GATEWAY, S_JSON.name), (RAW, S_JSON.name), "cpu_us"),
        ),
        plain(
            "REST JSON, M, 8 in flight, two cores: rate / the binary form's on raw ASGI",
            ratio(samples, (GATEWAY, M_JSON.name + TWO), (RAW, M_BINARY.name + TWO)),
        ),
    ]
    asked = [*((question.name, 0, 1) for question in SMALL), *((question.name + TWO, 1, 0) for question in MEDIUM)]
    for who in (GATEWAY, RAW):
        for what, rate_digits, cpu_digits in asked:
            rows += [
                plain(f"{who}, {what}", median(samples, who, what, "rate_per_s"), "/s", rate_digits),
                plain(f"{who}, {what}: processor time", median(samples, who, what, "cpu_us"), "us", cpu_digits),
                plain(f"{who}, {what}: p50", median(samples, who, what, "p50_us"), "us", 0),
                plain(f"{who}, {what}: p99", median(samples, who, what, "p99_us"), "us", 0),
            ]
    bad = [one.values["bad"] for one in samples if "bad" in one.values]
    lost = sum(bad) if bad else None
    rows.append(Figure("answers that were no 200", lost, "", "0", None if lost is None else lost == 0))
    client = [one.values["client_share"] for one in samples if one.what in {q.name for q in SMALL}]
    rows.append(plain("of its core, the client used at most", max(client, default=None)))
    return rows
