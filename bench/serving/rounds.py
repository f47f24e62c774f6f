"""Rounds of measurements: in each, every server is restarted and measured, one after the other, in a rotating order.

What a machine does meanwhile meets all servers, and so does what one start of a process has of luck.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench.serving import ours
from bench.serving.bodies import Row
from bench.serving.client import Question, WrongAnswerError, checked, each_its_own, expected, measured, v2
from bench.serving.models import KINDS, Kind, write_onnx
from bench.serving.processes import Cores, Server, StartError
from bench.serving.samples import Effort, Sample, of_load

GATEWAY, RAW = "gateway", "raw ASGI"
_FIRST_WARM_UP_S = 3  # some have much to start when they are asked first


class Models(NamedTuple):
    """The models that are served, by name of their kind.

    Attributes:
        folder: has KIND.onnx, a gateway's configuration in `gateway`, and the servers' logs.
        right: the model's own answers.
        headers: of a request to the gateway.
    """

    folder: Path
    right: Mapping[str, Row]
    headers: dict[str, str]

    def file(self, kind: Kind) -> Path:
        return self.folder / f"{kind.name}.onnx"

    def gateway(self, kind: Kind, on: Cores) -> AbstractContextManager[Server]:
        """Runs a gateway until it answers for the kind."""
        answers = partial(checked, ask=v2("binary", kind), headers=self.headers, right=self.right[kind.name])
        return ours.gateway(self.folder / "gateway" / "gateway.toml", on, answers, self.headers)

    def raw_asgi(self, kind: Kind, on: Cores, threads: int = 0) -> AbstractContextManager[Server]:
        """Runs raw ASGI with the kind."""
        answers = partial(checked, ask=v2("binary", kind), headers={}, right=self.right[kind.name])
        return ours.raw_asgi(self.file(kind), on, answers, threads)


@contextmanager
def served_models() -> Iterator[Models]:
    """Writes the models and a gateway's configuration into a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="firstline-bench-") as name:
        folder = Path(name)
        files = {kind.name: write_onnx(kind, folder / f"{kind.name}.onnx") for kind in KINDS.values()}
        right = {kind.name: expected(files[kind.name], kind) for kind in KINDS.values()}
        yield Models(folder, right, ours.gateway_folder(folder / "gateway", KINDS))


class Turn(NamedTuple):
    """A server that is started for some questions.

    Attributes:
        start: runs it until it answers the first question correctly.
        client: cores of the client.
        suffix: of the questions' names in figures.
    """

    who: str
    start: Callable[[], AbstractContextManager[Server]]
    questions: Sequence[Question]
    client: Cores
    suffix: str = ""


def measure(part: str, turns: Sequence[Turn], models: Models, effort: Effort) -> tuple[list[Sample], dict[str, str]]:
    """Returns the samples of all rounds; and of servers that could not be measured, why."""
    samples: list[Sample] = []
    failed: dict[str, str] = {}
    for number in range(effort.rounds):
        first = number % max(1, len(turns))
        for turn in (*turns[first:], *turns[:first]):
            if turn.who in failed:
                continue
            effort.progress(f"round {number + 1} of {effort.rounds}: {turn.who}{turn.suffix}")
            try:
                samples += [*_samples(part, number, turn, models, effort)]
            except (StartError, WrongAnswerError, subprocess.CalledProcessError) as error:
                failed[turn.who] = str(error)
                effort.progress(f"{turn.who} {error}")
    return samples, failed


def _samples(part: str, number: int, turn: Turn, models: Models, effort: Effort) -> Iterator[Sample]:
    with turn.start() as server:
        yield Sample(part, number, turn.who, "start" + turn.suffix, {"s": server.start_s})
        forms = {question.form for question in turn.questions}
        for kind in dict.fromkeys(question.kind for question in turn.questions):
            each_its_own(server, models.file(kind), kind, forms)
        for question in turn.questions:
            is_first = question is turn.questions[0]
            load = measured(
                server,
                question.ask,
                models.right[question.kind.name],
                in_flight=question.in_flight,
                seconds=effort.seconds,
                requests=effort.requests(question.in_flight),
                on=turn.client,
                warm_up_s=_FIRST_WARM_UP_S if is_first and not effort.quick else effort.warm_up_s,
            )
            yield of_load(part, number, turn.who, question.name + turn.suffix, load)
