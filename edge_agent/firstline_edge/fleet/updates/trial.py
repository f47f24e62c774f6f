"""The trial of a model on this device: it is tested before it answers requests, and its failures are counted then."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from firstline_core.bundle.golden import deviation, inputs_of, read_golden, to_compare
from firstline_core.bundle.manifest import Golden, Manifest
from firstline_core.bundle.row_check import check_model_rows
from firstline_core.bundle.store import Bundle
from firstline_core.errors import FirstlineError, IntegrityError, SelfTestError
from firstline_core.fleet.target import Hardware
from firstline_core.processing.steps import InputSpec
from firstline_edge.models.models import DeviceModel, EdgeModel
from firstline_edge.models.reloading import Reloading

SLOWDOWN_LIMIT = 10.0
"""Largest factor by which a row may take longer than with the running model, if it takes more than `QUICK_MS`."""
QUICK_MS = 20.0
LEAST_ROWS, FAILED_SHARE = 20, 0.5
"""The number of rows from which a trial is judged, and the share of rows without an answer that fails it."""


class RowCounts(NamedTuple):
    """The rows of one or several models so far, and those of them without an answer."""

    rows: int = 0
    errors: int = 0

    def has_failed_since(self, before: RowCounts) -> bool:
        """Returns whether more than half of the rows since an earlier count, and of at least 20, got no answer."""
        rows, errors = max(0, self.rows - before.rows), max(0, self.errors - before.errors)
        return rows >= LEAST_ROWS and errors > FAILED_SHARE * rows


@dataclass(eq=False, kw_only=True)
class AgentServing:
    """The models of this agent: those that answer, and those that are tried.

    Args:
        reloading: loads and replaces them.
        answered: counts the rows of a version.
        read_hardware: returns the device's runtimes and capacity; blocks.
    """

    reloading: Reloading
    answered: Callable[[DeviceModel], RowCounts]
    read_hardware: Callable[[], Hardware]
    _before: dict[str, RowCounts] = field(default_factory=dict, init=False)

    def configured_path(self, name: str) -> Path | None:
        """Returns the folder of the bundle that the device was set up with; None if there is none."""
        return self.reloading.configured_path(name)

    async def load_for_trial(self, path: Path) -> DeviceModel:
        """Returns a loaded bundle after its self-test against the running one.

        Raises:
            UpdateError: it must not, or cannot, run here; SelfTestError if its answers differ from the expected ones.
        """
        device_model = await asyncio.to_thread(self.reloading.load_bundle, path)
        await asyncio.to_thread(self_test, device_model, self.reloading.models.find(device_model.manifest.name))
        return device_model

    async def load_again(self, path: Path) -> DeviceModel:
        """Returns a loaded bundle that ran before; raises UpdateError if it must not, or cannot, run here now."""
        device_model = await asyncio.to_thread(self.reloading.load_bundle, path)
        _check_runs(device_model)
        return device_model

    async def replace(self, name: str, loaded: DeviceModel | None) -> None:
        """Makes a loaded model answer new requests; None removes the model. Running requests keep their model."""
        if loaded is not None:
            if loaded.manifest.name != name:
                raise IntegrityError(f"What is to answer as {name} calls itself {loaded.manifest.name}.")
            self._before[name] = self.answered(loaded)
        await self.reloading.replace(name, loaded)

    def failed(self, name: str) -> bool:
        """Returns whether the model must be rolled back, because too many rows have failed since it was installed."""
        device_model = self.reloading.models.find(name)
        before = self._before.get(name, RowCounts())
        return device_model is not None and self.answered(device_model).has_failed_since(before)

    async def hardware(self) -> Hardware:
        """Returns the runtimes and the capacity of this device."""
        return await asyncio.to_thread(self.read_hardware)


def _check_runs(device_model: DeviceModel) -> None:
    if device_model.edge is None and device_model.manifest.edge:
        raise SelfTestError(
            f"{device_model.manifest.name} version {device_model.version} does not run here: {device_model.problem}"
        )


def self_test(device_model: DeviceModel, running: DeviceModel | None) -> None:
    """Tests a model on its golden rows and compares it with the running model; blocks for as long as some rows take.

    Args:
        device_model: loaded, and not yet answering requests.
        running: the model that answers now; None if there is none.

    Raises:
        SelfTestError: the model does not run, takes another input, answers differently, is too slow, or a row's answer
            depends on other rows or on chance.
    """
    _check_runs(device_model)
    name = f"{device_model.manifest.name} version {device_model.version}"
    edge = device_model.edge
    if edge is None:
        return
    if running is not None and not _accepts_same_inputs(device_model.manifest, running.manifest):
        raise SelfTestError(
            f"{name} takes {_described(device_model.manifest)}, and what runs takes "
            f"{_described(running.manifest)}: all that applications send would be refused. Give a bundle that "
            "takes something else another name."
        )
    for variant in device_model.loaded_variants:
        if variant.edge is not None and variant.manifest.golden is not None:
            _test_golden_rows(name, variant.bundle, variant.edge, variant.manifest.golden)
    before_ms = math.inf if running is None else running.best_row_ms
    if edge.row_ms > QUICK_MS and edge.row_ms > SLOWDOWN_LIMIT * before_ms:
        raise SelfTestError(
            f"{name} takes {edge.row_ms:.0f} ms a row on this device, and the best variant of what runs takes "
            f"{before_ms:.1f} ms; at most {SLOWDOWN_LIMIT:g} times as long is allowed."
        )


def _test_golden_rows(name: str, bundle: Bundle, edge: EdgeModel, golden: Golden) -> None:
    """Runs the golden rows alone, together, in another order and twice, and compares them with their answers."""
    variant = edge.loaded.model.id
    try:
        answers = read_golden(bundle, golden.artefact)
        inputs = inputs_of(answers, bundle.manifest)
        prediction = edge.loaded.predict(inputs)
        edge.score(prediction.outputs, prediction.evidence)
        check = check_model_rows(bundle, edge.loaded, inputs)
    except IntegrityError:
        raise
    except FirstlineError as error:
        raise SelfTestError(f"{name} ({variant}) fails on its golden inputs: {error.message}") from error
    if check.depends_on != "nothing":
        remedy = (
            " Or create the bundle again: its manifest then says `batch: 1`." if check.depends_on == "batch" else ""
        )
        raise SelfTestError(f"{name}, golden inputs: {check.sentence(variant)}{remedy}")
    difference = deviation(answers, variant, to_compare(prediction, edge.loaded.task), edge.loaded.task)
    if difference is not None and difference > golden.tolerance:
        raise SelfTestError(
            f"{name} ({variant}) answers its golden inputs otherwise than where it was made: they differ "
            f"by {difference:.3g}, and {golden.tolerance:g} is allowed."
        )


def _accepts_same_inputs(now: Manifest, before: Manifest) -> bool:
    """Returns whether callers of the running bundle can call this one unchanged."""
    sent = {spec.name: spec for spec in before.inputs}
    return sent.keys() == {spec.name for spec in now.inputs} and all(
        _accepts(spec, sent[spec.name]) for spec in now.inputs
    )


def _accepts(now: InputSpec, before: InputSpec) -> bool:
    sizes = len(now.shape) == len(before.shape) and all(
        size in (-1, previous) for size, previous in zip(now.shape, before.shape, strict=True)
    )
    return (now.datatype, now.kind) == (before.datatype, before.kind) and sizes


def _described(manifest: Manifest) -> str:
    return ", ".join(f"'{spec.name}' {spec.datatype} {list(spec.shape)}" for spec in manifest.inputs)
