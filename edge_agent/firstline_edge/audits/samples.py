"""The durable sample of answers of both models: audited answers from the threshold on, escalated answers below it.

Both kinds are drawn with the same probability, so that the file covers the same period for both; with weights of 1 /
propensity they represent all requests. It holds scores and losses: no payload, no label, no request id.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from firstline_core.routing.certificate import ALL_ROWS
from firstline_core.storage.files import make_folder
from firstline_core.tasks.field import field_events, field_losses
from firstline_core.telemetry.decisions import DecisionLog, lines
from firstline_core.telemetry.logs import logger
from firstline_core.types import Arrays
from firstline_edge.models.models import DeviceModel

log = logger(__name__)

_RECENT = 5_000
"""Number of edge answers that a tightening uses: enough for any change that audits can find."""


_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class Sample(msgspec.Struct, frozen=True, omit_defaults=True):
    """An answer that both models have given.

    Attributes:
        key: of the record that it belongs to.
        model, version: of the bundle.
        at: wall time.
        score: the edge model's.
        agree: 1 minus the loss of the task: 1 if both models agree; less if not, 0 where the loss has no grades.
        propensity: with which it was drawn.
        kept: whether its score reached the threshold in use, from which on answers are audited. The device may have
            asked the full model nevertheless.
        events: losses of the promised events that can occur in it.
    """

    key: str
    model: str
    version: str
    at: float
    score: float
    agree: _Share
    propensity: Annotated[float, msgspec.Meta(gt=0, le=1)]
    kept: bool
    events: dict[str, _Share] = {}

    def loss(self, event: str) -> float | None:
        """Returns the loss of an event, None if it cannot occur; of all rows for `ALL_ROWS`."""
        return 1 - self.agree if event == ALL_ROWS else self.events.get(event)


class Comparison(NamedTuple):
    """How an edge answer compares with the full model's.

    Attributes:
        loss: of the task, in [0, 1].
        events: losses of the events that can occur in the row.
    """

    loss: float
    events: Mapping[str, float] = {}

    @property
    def agree(self) -> bool:
        """Whether the answer did not change."""
        return self.loss == 0

    @classmethod
    def of(cls, model: DeviceModel, edge: Arrays, full: Arrays) -> Comparison:
        """Compares the canonical outputs of both models, one row."""
        task = model.manifest.task
        return cls(float(field_losses(task, edge, full)[0]), field_events(task, edge, full))


class SampleLog:
    """Appends to two files of at most `limit_bytes` each, and remembers the latest edge answers of each record."""

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self._lines = DecisionLog(path, limit_bytes)
        self._recent: dict[str, deque[Sample]] = {}
        try:
            make_folder(path.parent)
            for sample in read(path):
                self._remember(sample)
        except OSError as error:
            log.warning("audit results unreadable", path=str(path), error=str(error))

    def add(self, sample: Sample) -> None:
        """Adds a sample; if the disk refuses, a restart forgets it."""
        self._remember(sample)
        try:
            self._lines.append(msgspec.to_builtins(sample))
        except OSError as error:
            log.warning("audit result not stored", error=str(error))

    def recent(self, key: str) -> list[Sample]:
        """Returns the latest edge answers of a record, oldest first."""
        return list(self._recent.get(key, ()))

    def close(self) -> None:
        self._lines.close()

    def _remember(self, sample: Sample) -> None:
        if sample.kept:
            self._recent.setdefault(sample.key, deque(maxlen=_RECENT)).append(sample)


def read(path: Path) -> Iterator[Sample]:
    """Returns all samples of the file and the one before it, oldest first; damaged lines are skipped.

    Raises:
        OSError: the files cannot be read.
    """
    for line in lines(path):
        try:
            yield msgspec.convert(line, Sample)
        except msgspec.ValidationError:
            continue


def table(samples: Sequence[Sample]) -> Iterator[dict[str, float | int | str | None]]:
    """Yields rows for `firstline certify --scores`: score, agreement, weight, whether accepted, and the certificate.

    A column for each promised event that could occur has its loss, and None in rows in which it cannot occur.
    """
    events = sorted({event for sample in samples for event in sample.events})
    for sample in samples:
        yield {
            "score": sample.score,
            "agree": int(sample.agree) if sample.agree in (0, 1) else sample.agree,
            "weight": 1 / sample.propensity,
            "kept": int(sample.kept),
            "certificate": sample.key,
            **{event: sample.events.get(event) for event in events},
        }
