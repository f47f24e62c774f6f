"""A full model in two parts, and the simulated link between them."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from firstline.workbench.splitting.checkpoint import Checkpoint
from firstline.workbench.splitting.measure import full_of, halves
from firstline_core.bundle.loading import load_model
from firstline_core.bundle.store import Bundle
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.types import PROBABILITIES, Arrays


@dataclass(frozen=True, slots=True)
class CutAt:
    """A cut: the tensor and the form of its checkpoint."""

    tensor: str
    form: str


class CutModel:
    """A model and its parts, loaded until the process ends.

    Args:
        bundle: bundle that holds the full model.
        cuts: cuts to prepare; later calls name them by index.
    """

    def __init__(self, bundle: Bundle, cuts: tuple[CutAt, ...]) -> None:
        options, stack = RuntimeOptions(threads=1), ExitStack()
        self._whole = load_model(bundle, full_of(bundle), options)
        self._input = bundle.manifest.inputs[0].name
        self._halves = [stack.enter_context(halves(bundle, cut.tensor, options)) for cut in cuts]
        self._forms: list[Checkpoint] = [
            next(form for form in made.checkpoints() if form.form == cut.form)
            for made, cut in zip(self._halves, cuts, strict=True)
        ]
        self._stack = stack

    def whole(self, encoded: bytes) -> int:
        """Returns the class that the whole model predicts."""
        return int(self._whole.run(self._prepared(encoded))[PROBABILITIES].argmax())

    def begin(self, cut: int, encoded: bytes) -> bytes:
        """Runs the first part and returns the checkpoint."""
        return self._forms[cut].pack(self._halves[cut].begin(self._prepared(encoded)))

    def finish(self, cut: int, checkpoint: bytes) -> int:
        """Returns the class that the second part computes from a checkpoint."""
        values = self._forms[cut].unpack(checkpoint)
        answer = self._halves[cut].finish(values, self._whole, {"": values})
        return int(answer[PROBABILITIES].argmax())

    def _prepared(self, encoded: bytes) -> Arrays:
        return self._whole.prepare({self._input: np.array([encoded], np.object_)})


class Link:
    """A simulated link: a caller waits as long as the bytes and the round trip take."""

    def __init__(self, bytes_per_s: float, round_trip_ms: float) -> None:
        self._bytes_per_s, self._delay_s = bytes_per_s, round_trip_ms / 1000

    def send(self, size_bytes: int) -> None:
        """Waits for the transfer of a body and for its short answer."""
        time.sleep(self._delay_s + (size_bytes + _PROTOCOL_BYTES) / self._bytes_per_s)


_PROTOCOL_BYTES = 12  # of the heads of a body and of its answer
