"""Asking a server: whether it answers right, and then how fast."""

from __future__ import annotations

import tempfile
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime

from bench.serving import bodies, wrk
from bench.serving.bodies import Body, Row
from bench.serving.models import INPUT, Kind, rows
from bench.serving.processes import Cores, Server, post

_TOLERANCE = 1e-5
_AT_ONCE = 16
_DIFFERENT = {"s": 128, "m": 8}


class WrongAnswerError(Exception):
    """A server says something else than the model; nothing of it may be measured."""


class Ask(NamedTuple):
    """One kind of request."""

    path: str
    body: Body


class Question(NamedTuple):
    """What a measurement asks for; the name is what figures call it ("S binary, 32 in flight")."""

    kind: Kind
    form: str
    in_flight: int

    @property
    def name(self) -> str:
        return f"{self.kind.name.upper()} {self.form}, {self.in_flight} in flight"

    @property
    def ask(self) -> Ask:
        return v2(self.form, self.kind)


def v2(form: str, kind: Kind, seed: int = 0) -> Ask:
    """V2 over HTTP, "binary" or "JSON", to the model named after the kind, with the row of a seed."""
    body = {"binary": bodies.v2_binary, "JSON": bodies.v2_json}[form](rows(kind, seed=seed))
    return Ask(f"/v2/models/{kind.name}/infer", body)


def session(path: Path) -> onnxruntime.InferenceSession:
    """The model alone, on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def expected(path: Path, kind: Kind) -> Row:
    """What the model itself says of what is asked."""
    found: Row = session(path).run(None, {INPUT: rows(kind)})[0]
    return found


def checked(port: int, ask: Ask, headers: dict[str, str], right: Row) -> bool:
    """Whether a server answers; asked once.

    Raises:
        WrongAnswerError: it does, and not with what the model says.
    """
    status, headers_received, content = post(port, ask.path, ask.body.headers | headers, ask.body.content)
    if status != 200:
        if status in (404, 425, 429, 500, 502, 503):  # it still starts
            return False
        raise WrongAnswerError(f"answered {status}: {content[:300]!r}")
    found = bodies.v2_answer(headers_received, content)
    if found.shape != right.shape or not np.allclose(found, right, atol=_TOLERANCE):
        raise WrongAnswerError(f"answered {found.ravel()[:4]}, not {right.ravel()[:4]}")
    return True


def each_its_own(server: Server, path: Path, kind: Kind, forms: Collection[str]) -> None:
    """Asks for many different rows at once: wrk sends the same one, and would not see answers mixed up in batches.

    Raises:
        WrongAnswerError: a row was answered with what belongs to another one.
    """
    alone = session(path)

    def ask(seed: int) -> None:
        right = alone.run(None, {INPUT: rows(kind, seed=seed)})[0]
        for form in forms:
            if not checked(server.port, v2(form, kind, seed), server.headers, right):
                raise WrongAnswerError("refuses what it should answer")

    with ThreadPoolExecutor(_AT_ONCE) as asking:
        list(asking.map(ask, range(_DIFFERENT[kind.name])))


def measured(
    server: Server,
    ask: Ask,
    right: Row,
    *,
    in_flight: int,
    seconds: int,
    on: Cores,
    warm_up_s: int,
    requests: int = 0,
) -> wrk.Load:
    """Loads a server that answers right before, and still does after it; with at most `requests`, 0 for no limit.

    Raises:
        WrongAnswerError: it does not.
    """
    _must(server, ask, right)
    with tempfile.TemporaryDirectory(prefix="firstline-bench-") as folder:
        script = bodies.plan(Path(folder), "load", ask.path, ask.body, server.headers, requests=requests)
        if warm_up_s:
            wrk.load(server, script, in_flight=in_flight, seconds=warm_up_s, on=on)
        found = wrk.load(server, script, in_flight=in_flight, seconds=seconds, on=on)
    _must(server, ask, right)
    return found


def _must(server: Server, ask: Ask, right: Row) -> None:
    if not checked(server.port, ask, server.headers, right):
        raise WrongAnswerError("does not answer any more")
