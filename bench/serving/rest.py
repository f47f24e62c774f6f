"""Compares the gateway over REST with raw ASGI on the same server."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from bench.figures import Figure, at_least, at_most, plain
from bench.serving import rounds
from bench.serving.client import Question
from bench.serving.models import M, S
from bench.serving.processes import StartError, cores
from bench.serving.rounds import GATEWAY, RAW, Turn
from bench.serving.samples import Effort, Sample, median, ratio

PART = "rest"
TWO = ", two cores"

S_BINARY, S_JSON = Question(S, "binary", 32), Question(S, "JSON", 32)
S_ONE, S_JSON_ONE = Question(S, "binary", 1), Question(S, "JSON", 1)
M_BINARY, M_JSON = Question(M, "binary", 8), Question(M, "JSON", 8)
SMALL = (S_BINARY, S_JSON, S_ONE, S_JSON_ONE)
"""Asked of a server on one core."""
MEDIUM = (M_BINARY, M_JSON)
"""Asked of a server that has both cores; the client has what it leaves."""


def measure(effort: Effort) -> list[Sample]:
    """Returns the samples of all rounds.

    Raises:
        StartError: a server could not be measured.
    """
    server_core, client_core, both = cores()
    with rounds.served_models() as models:
        turns = [
            Turn(GATEWAY, partial(models.gateway, S, server_core), SMALL, client_core),
            Turn(RAW, partial(models.raw_asgi, S, server_core), SMALL, client_core),
            Turn(GATEWAY, partial(models.gateway, M, both), MEDIUM, both, TWO),
            Turn(RAW, partial(models.raw_asgi, M, both, len(both)), MEDIUM, both, TWO),
        ]
        samples, failed = rounds.measure(PART, turns, models, effort)
    for who, why in failed.items():
        raise StartError(f"{who} {why}")
    return samples


def figures(samples: Sequence[Sample]) -> list[Figure]:
    """Each row with an aim, and what else one would ask of them."""

    def times(question: Question, suffix: str = "", name: str = "rate_per_s") -> float | None:
        return ratio(samples, (GATEWAY, question.name + suffix), (RAW, question.name + suffix), name)

    json_of_binary = ratio(samples, (GATEWAY, M_JSON.name + TWO), (RAW, M_BINARY.name + TWO))
    rows = [
        at_least("REST binary, S, 32 in flight, one core: rate / raw ASGI's", times(S_BINARY), 0.65),
        at_least("REST JSON, S, 32 in flight, one core: rate / raw ASGI's with orjson", times(S_JSON), 0.65),
        at_least("REST binary, M, 8 in flight, two cores: rate / raw ASGI's", times(M_BINARY, TWO), 0.9),
        at_least("REST JSON of 962 KB, M, 8 in flight, two cores: rate / raw ASGI's", times(M_JSON, TWO), 0.8),
        at_most("REST binary, S, 1 in flight: p50 / raw ASGI's", times(S_ONE, name="p50_us"), 1.9),
        plain("REST binary, S, 32 in flight: processor time / raw ASGI's", times(S_BINARY, name="cpu_us")),
        plain("REST JSON, S, 32 in flight: processor time / raw ASGI's", times(S_JSON, name="cpu_us")),
        plain("REST JSON, M, 8 in flight, two cores: rate / the binary form's on raw ASGI", json_of_binary),
    ]
    columns = [*((question.name, 0, 1) for question in SMALL), *((question.name + TWO, 1, 0) for question in MEDIUM)]
    for who in (GATEWAY, RAW):
        for what, rate_digits, cpu_digits in columns:
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
