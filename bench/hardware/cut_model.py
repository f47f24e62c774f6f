"""A full model whole and cut, as either side of a link runs it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from firstline.workbench.splitting.checkpoint import Checkpoint
from firstline.workbench.splitting.measure import full_of, halves
from firstline_core.bundle.loading import load_model
from firstline_core.bundle.store import Bundle
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.types import Array, Tensor


@dataclass(frozen=True, slots=True)
class CutAt:
    """Where and how: a tensor, and the form of its checkpoint."""

    tensor: str
    form: str


class CutModel:
    """Loaded for good: the process ends with it.

    Args:
        bundle: whose full model it is.
        cuts: those that are asked for, by their place in here.
    """

    def __init__(self, bundle: Bundle, cuts: tuple[CutAt, ...]) -> None:
        options, stack = RuntimeOptions(threads=1), ExitStack()
        self._whole = load_model(bundle, full_of(bundle), options)
        self._name = bundle.manifest.input.name
        self._halves = [stack.enter_context(halves(bundle, cut.tensor, options)) for cut in cuts]
        self._forms: list[Checkpoint] = [
            next(form for form in made.checkpoints() if form.form == cut.form)
            for made, cut in zip(self._halves, cuts, strict=True)
        ]
        self._stack = stack

    def whole(self, encoded: bytes) -> int:
        """The class, by the whole model."""
        return int(self._whole.run(self._prepared(encoded)).argmax())

    def begin(self, cut: int, encoded: bytes) -> bytes:
        """The checkpoint."""
        return self._forms[cut].pack(self._halves[cut].begin(self._prepared(encoded)))

    def finish(self, cut: int, checkpoint: bytes) -> int:
        """The class, from the checkpoint on."""
        return int(self._halves[cut].finish(self._forms[cut].unpack(checkpoint), self._whole).argmax())

    def _prepared(self, encoded: bytes) -> Array:
        element = np.empty(1, object)
        element[0] = encoded
        return self._whole.prepare(Tensor(self._name, element))
