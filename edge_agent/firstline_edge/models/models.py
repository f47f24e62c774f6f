"""The models of this device by name and version, their variants, and how long their runs take.

`loading.py` opens them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from firstline_core.adaptation.controller import Controller, LadderPosition, RequestSplitter
from firstline_core.adaptation.guards import GuardVerdict
from firstline_core.adaptation.ladder import EnergyPrices, Rung, choose_rung
from firstline_core.bundle.loaded_model import LoadedModel
from firstline_core.bundle.loading import Scorer
from firstline_core.bundle.manifest import Manifest
from firstline_core.bundle.store import Bundle
from firstline_core.errors import UnknownModelError, listed
from firstline_core.hardware.readings import Snapshot
from firstline_core.profile.profile import Distribution, Point
from firstline_core.protocol.tensors import shown
from firstline_core.routing.certificate import Certificate
from firstline_core.routing.policy import Logistic
from firstline_core.runtime.batch_times import LOOP_LIMIT_S
from firstline_core.runtime.select import RUNTIMES
from firstline_core.tasks.field import field_group, field_scores
from firstline_core.telemetry.wording import rounded
from firstline_core.types import Arrays, InferRequest, ModelMetadata, ModelVersion, payload_bytes, slice_rows
from firstline_edge.models.workers import Workers
from firstline_edge.requests.context import ModelOutput

_HALF_LIFE_COUNT = 32.0
_LEAST_WEIGHT = 4.0
_DECAY = 2.0 ** (-1 / _HALF_LIFE_COUNT)
_PACE_STEP, _PACE_LIMIT = 1.05, 1e6
_SURE = 0.95
_ARRAY = attrgetter("array")
_HELD_UP_S, _OFF_LOOP_RUNS = 0.1, 1000
_LATE_STEP = _PACE_STEP ** ((1 - _SURE) / _SURE)
_REPORT_HYSTERESIS = 0.5  # of a rung


@dataclass(slots=True)
class RelativeRunTimes:
    """The recent run times of a model relative to its shortest run: follows their median and 95th percentile.

    Both start with the values of a profile, if there is one, and each run changes them: after some dozens of runs the
    profile has no influence.

    Attributes:
        factor: the median.
        late: the 95th percentile.
        off_loop: number of the next runs that run in a thread, after one that was expected to be quick and was not.
    """

    factor: float = 1.0
    late: float = 1.0
    off_loop: int = 0

    @staticmethod
    def of(profiled: Distribution) -> RelativeRunTimes:
        """Returns the pace of an earlier measurement, relative to its shortest run."""
        quickest_ms = profiled.quantiles_ms[0]
        return RelativeRunTimes(profiled.p50_ms / quickest_ms, profiled.quantile_ms(_SURE) / quickest_ms)

    @property
    def sure(self) -> float:
        """The pace that 95 % of the runs do not exceed."""
        return max(self.factor, self.late)

    def ran(self, took_s: float, measured_s: float) -> None:
        """Updates the pace after a run.

        Compares with the present pace, not with the pace when the run was queued: otherwise 500 waiting runs would all
        count as late for one cause.

        Args:
            took_s: the time of the run.
            measured_s: the shortest time measured for such a run.
        """
        # The time of a loop within the model depends on its input, so one such run is a sign of more.
        if took_s > _HELD_UP_S and measured_s > 0 and self.factor * measured_s < LOOP_LIMIT_S:
            self.off_loop = _OFF_LOOP_RUNS
        elif self.off_loop:
            self.off_loop -= 1
        if took_s > self.factor * measured_s:
            self.factor = min(_PACE_LIMIT, self.factor * _PACE_STEP)
        elif self.factor > 1.0:
            self.factor = max(1.0, self.factor / _PACE_STEP)
        # Steps up and down are in balance where one in twenty is later (Robbins and Monro, 1951).
        if took_s > self.late * measured_s:
            self.late = min(_PACE_LIMIT, self.late * _PACE_STEP)
        elif self.late > 1.0:
            self.late = max(1.0, self.late / _LATE_STEP)


class EscalationRate:
    """The recent share of a model's requests that were escalated: an observation counts half after 32 further ones."""

    __slots__ = ("_hits", "_weight")

    def __init__(self) -> None:
        self._hits = self._weight = 0.0

    def add(self, *, hit: bool) -> None:
        """Adds a request, and whether it was escalated."""
        self._hits = _DECAY * self._hits + hit
        self._weight = _DECAY * self._weight + 1

    @property
    def value(self) -> float | None:
        """Returns the share; None with too few observations."""
        return self._hits / self._weight if self._weight >= _LEAST_WEIGHT else None


@dataclass(frozen=True, slots=True)
class EdgeModel:
    """An edge variant, ready to run.

    Args:
        loaded: model and processing.
        score: the bundle's confidence function.
        digest: of all that computes a row's evidence: model, processing, score and learned value.
        row_ms: the quickest that was measured, for one row of `sample_bytes`, processing included.
        sample_bytes: size of the measured row.
        workers: for runs that would hold up the event loop.
        certificate: the variant's, if it is valid for this bundle.
        uncertified: why there is none, as part of a sentence; "" if there is one.
        value: the bundle's learned value of an escalation; None if it has none.
        bounded_score: whether the score lies in [0, 1]; otherwise it is not a probability.
        memory_bytes: that loading and measuring added to the process; 0 if the system does not report it.
        pace: of its runs since.
        escalation_rate: of its requests since.
        profiled: this device's earlier measurement, which provides its times; None if it was measured at load.
    """

    loaded: LoadedModel
    score: Scorer
    digest: str
    row_ms: float
    sample_bytes: int
    workers: Workers
    certificate: Certificate | None = None
    uncertified: str = "its bundle carries no certificate for it"
    value: Logistic | None = None
    bounded_score: bool = True
    memory_bytes: int = 0
    pace: RelativeRunTimes = field(default_factory=RelativeRunTimes, compare=False)
    escalation_rate: EscalationRate = field(default_factory=EscalationRate, compare=False)
    profiled: Point | None = field(default=None, compare=False)

    def sure_ms(self, request: InferRequest, rows: int) -> float:
        """Returns the time that 95 % of runs of this many rows of the request do not exceed, for deadlines."""
        return self.pace.sure * self.shortest_ms(request, rows)

    def shortest_ms(self, request: InferRequest, rows: int) -> float:
        """Returns the shortest time measured for this many rows of the request."""
        return rows * self.measured_ms(self.size_bytes(request) / request.rows)

    def size_bytes(self, request: InferRequest) -> int:
        """Returns the bytes of payload that this model reads."""
        names, inputs = self.loaded.input_names, request.inputs
        return payload_bytes(
            map(_ARRAY, inputs)
            if len(inputs) == len(names)
            else [tensor.array for tensor in inputs if tensor.name in names]
        )

    def measured_ms(self, row_bytes: float) -> float:
        """Returns the shortest time of a row; infinite if nothing was measured. Decoding grows with the bytes."""
        share = row_bytes / (self.sample_bytes or 1)
        return self.row_ms * (share if share > 1 else 1.0)

    def quick(self, measured_ms: float) -> bool:
        """Returns whether a request runs on the event loop, by the shortest time of all its rows."""
        return not self.pace.off_loop and self.pace.factor * measured_ms < 1000 * LOOP_LIMIT_S

    def run(self, inputs: Arrays, measured_s: float = math.inf) -> list[ModelOutput]:
        """Returns the model's output for each row.

        Args:
            inputs: of the rows, by name.
            measured_s: see `measured_ms`; the pace follows how much longer it took.

        Raises:
            InvalidTensorError: a row that is not what the bundle takes; the message names it.
            InferenceError: the runtime failed.
        """
        started_s = time.perf_counter()
        prediction = self.loaded.predict(inputs)
        outputs, evidence = prediction.outputs, prediction.evidence
        scores = field_scores(self.loaded.task, self.score, outputs, evidence)
        self.pace.ran(time.perf_counter() - started_s, measured_s)
        unvalued = self.value is None and self.bounded_score
        values = [None] * len(scores) if unvalued else self._values(outputs, evidence)
        if len(scores) == 1:
            return [ModelOutput(outputs, scores[0], values[0])]
        return [
            ModelOutput(slice_rows(outputs, row, row + 1), score, value)
            for row, (score, value) in enumerate(zip(scores, values, strict=True))
        ]

    def _values(self, outputs: Arrays, evidence: Arrays) -> Sequence[float | None]:
        """Returns the learned value of an escalation of each row, or the supposed loss."""
        task = self.loaded.task
        if self.value is not None:
            learned = self.value.losses
            return field_scores(task, lambda *given: learned(task.features(*given)), outputs, evidence)
        return field_scores(task, task.supposed_losses, outputs, evidence)

    async def run_in_thread(
        self, inputs: Arrays, deadline_s: float = math.inf, measured_s: float = 0.0
    ) -> list[ModelOutput]:
        """Runs off the event loop; not at all if the deadline passes first. See `Workers.run`.

        Raises:
            QueueFullError: too many runs wait already.
            DeadlineExceededError: its turn came too late.
        """
        return await self.workers.run(partial(self.run, measured_s=measured_s), inputs, deadline_s, measured_s)


_NONE: Mapping[str, DeviceModel] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class DeviceModel:
    """A bundle on this device, with one edge variant.

    If several variants are loaded, there is one `DeviceModel` for each. `Models` has the current one; a request keeps
    the one that it was given (`VariantChoice`).

    Args:
        bundle: opened and checked.
        edge: None if no variant runs here; `problem` says why.
        problem: one sentence, or "".
        variants: all loaded variants of the bundle, including this one; None if it is the only one.

    Attributes:
        manifest, version: of the bundle.
        full_inputs: names of the inputs that the full model reads; of all inputs if the bundle has no full model.
    """

    bundle: Bundle
    edge: EdgeModel | None
    problem: str = ""
    variants: BundleVariants | None = None
    manifest: Manifest = field(init=False)
    version: str = field(init=False)
    full_inputs: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "manifest", self.bundle.manifest)
        object.__setattr__(self, "full_inputs", frozenset(self.manifest.full_inputs))
        object.__setattr__(self, "version", str(self.manifest.version))

    @property
    def key(self) -> ModelVersion:
        return self.manifest.name, self.version

    @property
    def loaded_variants(self) -> tuple[DeviceModel, ...]:
        """The variants of the bundle that are loaded, including this one."""
        return (self,) if self.variants is None else self.variants.loaded

    @property
    def best_row_ms(self) -> float:
        """See `EdgeModel.row_ms`: of the best variant, also while a cheaper one answers; infinite if none runs here."""
        if self.variants is not None:
            return self.variants.best_row_ms
        return self.edge.row_ms if self.edge is not None else math.inf

    def group(self, output: ModelOutput | None) -> str | None:
        """Returns the predicted class if the certificate promises by class; None if one threshold applies to all."""
        edge = self.edge
        if edge is None or output is None or (certificate := edge.certificate) is None or not certificate.by:
            return None
        return field_group(self.manifest.task, output.outputs)

    @property
    def metadata(self) -> ModelMetadata:
        return ModelMetadata(
            name=self.manifest.name,
            versions=(self.version,),
            platform=RUNTIMES[self.edge.loaded.model.runtime].platform if self.edge else "firstline",
            inputs=self.manifest.input_tensors,
            outputs=self.manifest.task.outputs,
            labels=self.manifest.labels,
            files=self.manifest.file_inputs,
            task=self.manifest.task,
        )


class VariantChoice(Struct, frozen=True, eq=False):
    """The variant that a request was given; the request keeps it.

    Attributes:
        model: the bundle with this variant.
        why: why it is not the best one; "" if it is.
        sheds: why nothing is computed here now; "" if it is.
    """

    model: DeviceModel
    why: str = ""
    sheds: str = ""

    @property
    def facts(self) -> dict[str, Any]:
        """The fields of the decision log."""
        fields = {"variant": variant_id(self.model), "variant_why": self.why, "sheds": self.sheds}
        return {key: value for key, value in fields.items() if value}


class BundleVariants:
    """All variants of one bundle.

    Args:
        rungs: from `build_ladder`.
        controller: limits which of them may be used.
        load: loads and measures a variant by its id; blocks.

    Attributes:
        position: the controller's latest position.
        reported_place: the place that was reported last, with hysteresis: temperature that hovers around a rung is not
            reported each time.
        split_reported_s: when a split of requests was reported last, monotonic.
        retry_s: until then no variant is loaded again, because the last attempt failed; monotonic.
    """

    def __init__(self, rungs: Sequence[Rung], controller: Controller, load: Callable[[str], EdgeModel]) -> None:
        self.rungs = tuple(rungs)
        self.position = LadderPosition()
        self.reported_place = 0
        self.split_reported_s = self.retry_s = -math.inf
        self._controller = controller
        self._load = load
        self._splitter = RequestSplitter()
        self._loaded: list[DeviceModel | None] = [None] * len(self.rungs)

    @property
    def loaded(self) -> tuple[DeviceModel, ...]:
        """The loaded variants, best first."""
        return tuple(device_model for device_model in self._loaded if device_model is not None)

    @property
    def depth(self) -> float:
        """The rung in use (their number while shedding), plus the share of requests that get the next one."""
        return self.position.rung + self.position.shedding + self.position.next_share

    @property
    def best_row_ms(self) -> float:
        """The time of a row by the best variant, loaded or not."""
        return self.rungs[0].row_ms

    @property
    def current(self) -> DeviceModel:
        """The best variant that may be used and is loaded; the last rung is never unloaded."""
        return self._usable()[0]

    @property
    def missing_rung(self) -> int | None:
        """The rung that may be used but is not loaded; None if it is loaded."""
        return self.position.rung if self._loaded[self.position.rung] is None else None

    def put(self, rung: int, device_model: DeviceModel) -> None:
        """Adds a loaded variant."""
        self._loaded[rung] = device_model

    def load(self, rung: int) -> EdgeModel:
        """Loads a variant again; blocks.

        Raises:
            FirstlineError: it does not run here any more.
        """
        return self._load(self.rungs[rung].variant)

    def unload_above(self) -> list[DeviceModel]:
        """Releases the variants above the rung in use; requests that were given one keep it."""
        released = [device_model for device_model in self._loaded[: self.position.rung] if device_model is not None]
        self._loaded[: self.position.rung] = [None] * self.position.rung
        return released

    def update(self, snapshot: Snapshot) -> LadderPosition:
        """Passes a sensor reading to the controller and returns the new position."""
        unloaded = [rung for rung, device_model in enumerate(self._loaded) if device_model is None]
        self.position = self._controller.update(snapshot, unloaded)
        if not self.reported_place - _REPORT_HYSTERESIS < self.depth < self.reported_place + 1:
            self.reported_place = int(self.depth)
        return self.position

    def choose(
        self, request: InferRequest, left_ms: float, link_ms: float, escalation_mj: float = 0.0
    ) -> VariantChoice:
        """Chooses the variant that answers a request.

        Args:
            request: with at least one row.
            left_ms: see `choose_rung`.
            link_ms: see `choose_rung`.
            escalation_mj: see `EnergyPrices`; 0 if it is not stated, so that energy decides nothing.
        """
        usable, rows, position = self._usable(), request.rows, self.position
        shed_reason = _reason(position.verdict) if position.shedding else ""
        edges = [device_model.edge for device_model in usable if device_model.edge is not None]
        workers, runs_ms = edges[0].workers, [edge.sure_ms(request, rows) for edge in edges]
        wait_ms = 1000 * workers.wait_s
        waits_ms = [0.0 if edge.quick(edge.shortest_ms(request, rows)) else wait_ms for edge in edges]
        best_ms = waits_ms[0] + runs_ms[0]
        prices = self._prices(usable, escalation_mj)
        chosen = choose_rung(runs_ms, workers.busy, waits_ms, left_ms, link_ms, prices=prices)
        # If the better variant is not loaded, all requests get the next one anyway.
        splits = chosen == 0 and len(usable) > 1 and usable[0] is self._loaded[position.rung]
        if splits and self._splitter.selects(position.next_share):
            return VariantChoice(usable[1], _reason(position.verdict), shed_reason)
        device_model = usable[chosen]
        if not chosen:
            why = "" if device_model is self._loaded[0] else _reason(position.verdict)
        elif best_ms + link_ms <= left_ms:
            why = "energy: its answers take the least, and there is time to ask the full model"
            if prices is None:
                why = f"queue: {workers.busy:.0%} of the threads are busy, and there is time to ask the full model"
        elif best_ms <= left_ms:
            why = f"queue: {workers.busy:.0%} of the threads are busy, and this request has more time than others"
        else:
            why = f"deadline: {variant_id(usable[0])} would take {rounded(best_ms)} ms of the {left_ms:.0f} left"
        return VariantChoice(device_model, why, shed_reason)

    def describe(self) -> dict[str, Any]:
        """Returns the JSON object for `status`."""
        return {
            "standing": self.rungs[self.position.rung].variant,
            "shared_out": round(self.position.next_share, 2),
            "sheds": self.position.shedding,
            "why": _reason(self.position.verdict) or None,
            "rungs": [
                {
                    "variant": rung.variant,
                    "loaded": device_model is not None,
                    "row_ms": round(rung.row_ms, 3),
                    "energy_mj": rung.energy_mj,
                    "merit": round(rung.merit, 4),
                    "memory_bytes": rung.memory_bytes,
                    "from": rung.sources,
                    "certified": device_model is not None
                    and device_model.edge is not None
                    and device_model.edge.certificate is not None,
                }
                for rung, device_model in zip(self.rungs, self._loaded, strict=True)
            ],
        }

    def _prices(self, usable: Sequence[DeviceModel], escalation_mj: float) -> EnergyPrices | None:
        """Returns None if the energy or the certificate of one variant is unknown."""
        run_mj: list[float] = []
        escalated: list[float] = []
        for device_model in usable if escalation_mj > 0 else ():
            rung, edge = self.rungs[self._loaded.index(device_model)], device_model.edge
            if rung.energy_mj is None or edge is None or edge.certificate is None:
                return None
            run_mj.append(rung.energy_mj)
            escalated.append(1 - edge.certificate.kept)
        return EnergyPrices(tuple(run_mj), tuple(escalated), escalation_mj) if run_mj else None

    def _usable(self) -> list[DeviceModel]:
        return [device_model for device_model in self._loaded[self.position.rung :] if device_model is not None]


def variant_id(device_model: DeviceModel) -> str:
    """Returns the id of the variant that is loaded; "" without one."""
    return device_model.edge.loaded.model.id if device_model.edge is not None else ""


def _reason(verdict: GuardVerdict | None) -> str:
    return "" if verdict is None else f"{verdict.guard}: {verdict.reason}"


@dataclass(frozen=True, slots=True)
class RefusedBundle:
    """A folder that is not a usable bundle."""

    path: Path
    message: str


class Models:
    """All bundles of this device, by name and version; the newest version is the current one.

    Attributes:
        problems: folders that are not usable bundles.
        away: versions that are not loaded, each with the reason.
    """

    def __init__(self, models: Iterable[DeviceModel], problems: Iterable[RefusedBundle] = ()) -> None:
        self._by_name: dict[str, dict[str, DeviceModel]] = {}
        self._current: dict[str, DeviceModel] = {}
        for model in sorted(models, key=lambda model: model.manifest.version):
            self._by_name.setdefault(model.manifest.name, {})[model.version] = model
            self._current[model.manifest.name] = model
        self.problems = tuple(problems)
        self.away: dict[tuple[str, int], str] = {}

    def put(self, model: DeviceModel) -> DeviceModel | None:
        """Adds or replaces a model; returns the model that had this version before."""
        name, versions = model.manifest.name, dict(self._by_name.get(model.manifest.name, {}))
        before = versions.get(model.version)
        versions[model.version] = model
        self._index(name, dict(sorted(versions.items(), key=lambda each: int(each[0]))))
        self.away.pop((name, model.manifest.version), None)
        return before

    def take(self, model: DeviceModel, why: str) -> None:
        """Removes a model; requests in progress use it until they are answered."""
        name = model.manifest.name
        self._index(name, {version: other for version, other in self._by_name[name].items() if other is not model})
        self.away[name, model.manifest.version] = why

    def find(self, name: str, version: str = "") -> DeviceModel | None:
        """Returns the model; None if this device does not have that version ("" means the current one)."""
        return self._by_name.get(name, _NONE).get(version) if version else self._current.get(name)

    def unknown(self, name: str, version: str) -> UnknownModelError:
        """Returns the error about a model that this device does not hold, with what it holds instead."""
        if name in self._by_name:
            choices = ", ".join(self._by_name[name])
            return UnknownModelError(
                f"This device holds {shown(name)} in version {choices}, not in version {shown(version)}; name another "
                "version, or none for the newest."
            )
        choices = listed(name, sorted(self._by_name), "it holds:")
        return UnknownModelError(f"This device holds no model {shown(name)}{choices}")

    def _index(self, name: str, versions: dict[str, DeviceModel]) -> None:
        if versions:
            self._by_name[name], self._current[name] = versions, versions[next(reversed(versions))]
        else:
            del self._by_name[name], self._current[name]

    @property
    def all(self) -> tuple[DeviceModel, ...]:
        return tuple(model for versions in self._by_name.values() for model in versions.values())

    def close(self) -> None:
        """Frees the runtimes; calling it twice is harmless."""
        for model in [variant for device_model in self.all for variant in device_model.loaded_variants]:
            if model.edge is not None:
                model.edge.loaded.close()
