"""Measures one point in a process of its own, at the lowest priority, so that its peak memory is the model's.

python -m firstline_core.profile.measure_point    reads a `Job` as JSON on stdin, writes a `Point` as JSON on stdout
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

import msgspec
import numpy as np
from msgspec import Struct

from firstline_core.bundle.golden import read_golden, tensor_of
from firstline_core.bundle.loading import LoadedModel, load_model
from firstline_core.bundle.manifest import MANIFEST_NAME, Manifest, Model, parse_manifest
from firstline_core.bundle.store import Bundle
from firstline_core.errors import FirstlineError, ModelLoadError
from firstline_core.hardware.readings import Absent, Measured, Reading
from firstline_core.hardware.sensors.device import Sensors
from firstline_core.hardware.sensors.load import available_memory
from firstline_core.hardware.tree import Tree
from firstline_core.processing.trial import typical_row
from firstline_core.profile import scenarios
from firstline_core.profile.course import course
from firstline_core.profile.distribution import distribution
from firstline_core.profile.energy import EnergyMeter
from firstline_core.profile.heating import heat_up
from firstline_core.profile.profile import Beside, Key, Light, Moved, Operator, Point, Server, WarmUp
from firstline_core.profile.trace import operators
from firstline_core.routing.account import Tariff
from firstline_core.runtime.litert import delegates as tflite_delegates
from firstline_core.runtime.memory import keep_freed_memory
from firstline_core.runtime.onnx import OnnxRuntime
from firstline_core.runtime.onnx import providers as onnx_providers
from firstline_core.runtime.priority import use_lowest_priority
from firstline_core.runtime.select import CPU, RuntimeOptions
from firstline_core.types import InferRequest, Tensor

_SHARES = {"query": 0.2, "loaded": 0.3, "light": 0.1, "beside": 0.25, "server": 0.1, "operators": 0.05}
"""Shares of a point's seconds; the scenarios that a service meets most have the most samples."""
_FEWEST = 5
_LIGHT_LOAD = 0.1
"""A lighter load would give too few queries in the time; even rarer queries take longer still."""
_LIGHT_QUERIES = 8
_LIGHT_LONGER = 4.0
"""Times of the given seconds that these queries may take."""
ESCALATED = 0.2
"""Share of the full model's queries when it is measured together with an edge variant: rarely used models are slower,
because their threads have slept for longer."""
_TRACED_RUNS = 50
_ROOM_FACTOR = 4.0
"""Free memory over the size of its file that a second model needs."""
_SPARE_BYTES = 128 << 20
"""Memory that stays free: twice the agent's default reserve."""
_PACKAGES = {"onnx": ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-rocm", "onnxruntime-qnn"),
             "tflite": ("ai-edge-litert", "tflite-runtime", "tensorflow")}  # fmt: skip


class Job(Struct, frozen=True):
    """The point to measure.

    Attributes:
        bundle: its folder, whose files were checked.
        seconds: time to measure, about, beyond loading the model and a few runs.
        joules_per_core_s: stated energy of a busy core; 0 if not stated.
        root: where the kernel's files begin.
        alone: nothing else runs here; measure at normal priority.
        beside: id of another model of the bundle for `Point.beside`; "" for none.
        share: share of the time for which this process runs (`point_process.stopped_for_a_share`).
        heat_s: longest full load before measuring (`heating.heat_up`).
    """

    bundle: str
    key: Key
    seconds: float
    joules_per_core_s: float = 0.0
    root: str = "/"
    alone: bool = False
    beside: str = ""
    share: float = 1.0
    heat_s: float = 0.0


class _Times(Struct):
    """Seconds of the parts of queries, in their order."""

    prepare: list[float] = msgspec.field(default_factory=list)
    run: list[float] = msgspec.field(default_factory=list)

    def whole(self) -> list[float]:
        return [prepare + run for prepare, run in zip(self.prepare, self.run, strict=True)]


def measure(job: Job) -> Point:
    """Measures the point in this process.

    Raises:
        FirstlineError: the model does not load or run here, or has no typical input.
    """
    tree = Tree(Path(job.root))
    heated_s = heat_up(Sensors(tree, tariff=Tariff()), job.heat_s) if job.heat_s > 0 else 0.0
    began_s, before_s = time.perf_counter(), waited_s()
    bundle, model = _found(job)
    (onnx_providers if model.runtime == "onnx" else tflite_delegates)()  # imports it: its memory is not the model's
    before_bytes = reset_peak()
    load_s = time.perf_counter()
    loaded = load_model(bundle, model, _options(job.key))
    load_s = time.perf_counter() - load_s
    try:
        tensor = queried(bundle, loaded, job.key.batch)
        times = _Times()
        query = _timed(loaded, tensor, times)
        scenarios.single_stream(query, job.seconds * _SHARES["query"] / 4)
        meter = EnergyMeter(tree, job.joules_per_core_s)
        warm, processor_s = len(times.run), time.process_time()
        scenarios.single_stream(query, job.seconds * _SHARES["query"], between=meter.look)
        processor_s, measured = time.process_time() - processor_s, len(times.run) - warm
        energy = meter.per_query(measured, processor_s)
        whole = times.whole()
        steady = distribution(whole[warm:])
        warm_queries = scenarios.steady_from(whole, steady.p50_ms / 1000)
        mean_s = steady.mean_ms / 1000
        under_load = scenarios.loaded((query,), mean_s, job.seconds * _SHARES["loaded"])
        light = _light(query, mean_s, job.seconds * _SHARES["light"]) if job.key.of_one_row else None
        found_server: Server | None = None
        if job.key.batch == 1:
            found_server = scenarios.server(query, steady.p50_ms / 1000, job.seconds * _SHARES["server"])
        peak_bytes = peak(before_bytes)
        beside = _beside(bundle, query, mean_s, job)
        prepared, output = loaded.prepare(tensor), loaded.predict(tensor)
    finally:
        loaded.close()
    found_operators, absent = _operators(bundle, model, loaded, prepared, job)
    return Point(
        key=job.key,
        runtime=_runtime(model),
        ran_on=loaded.runtime.provider,
        query=steady,
        rested=distribution(under_load.of(waited=False)),
        queued=distribution(queued) if (queued := under_load.of(waited=True)) else None,
        light=light,
        course=course(under_load.seconds, under_load.waited, under_load.span_s) if job.key.of_one_row else None,
        beside=beside,
        prepare=distribution(times.prepare[warm : warm + measured]),
        run=distribution(times.run[warm : warm + measured]),
        offline_per_s=float(f"{job.key.batch * measured / sum(whole[warm:]):.5g}"),
        warm_up=WarmUp(_ms(load_s), _ms(whole[0]), warm_queries, _ms(sum(whole[:warm_queries]))),
        moved=Moved(
            InferRequest(bundle.manifest.name, (tensor,), "").size_bytes,
            prepared.nbytes,
            output.nbytes,
            model.artefact.size_bytes,
        ),
        peak_memory_bytes=peak_bytes,
        processor_ms=_ms(processor_s / measured),
        energy_mj=energy,
        server=found_server,
        operators=found_operators,
        operators_absent=absent,
        processor_share=job.share,
        heated_s=round(heated_s, 1),
        seconds=round(time.perf_counter() - began_s, 2),
        waited_share=round((waited_s() - before_s) / (time.perf_counter() - began_s), 4),
    )


def _found(job: Job) -> tuple[Bundle, Model]:
    path = Path(job.bundle)
    bundle = Bundle(path, parse_manifest((path / MANIFEST_NAME).read_bytes(), str(path)))
    for model in bundle.manifest.models:
        if (model.id, model.digest) == (job.key.variant, job.key.model_digest):
            return bundle, model
    raise ModelLoadError(f"Bundle {path} has no model '{job.key.variant}' of that digest any more.")


def _options(key: Key) -> RuntimeOptions:
    provider = key.provider if key.provider != "tflite" else CPU
    return RuntimeOptions((provider,), key.threads)


def queried(bundle: Bundle, loaded: LoadedModel, rows: int) -> Tensor:
    """Returns a query: the bundle's golden inputs, repeated; noise if it has none."""
    manifest: Manifest = bundle.manifest
    golden = manifest.golden
    if golden is not None and bundle.file(golden.artefact).is_file():
        one: Tensor | None = tensor_of(read_golden(bundle, golden.artefact), manifest.input)
    else:
        one = typical_row(manifest.input, loaded.model.preprocess, loaded.input.shape)
    if one is None:
        raise ModelLoadError(
            f"Model '{loaded.model.id}' takes inputs of any size, so that none is typical; "
            "give the bundle golden inputs."
        )
    return Tensor(one.name, np.ascontiguousarray(one.array[np.arange(rows) % len(one.array)]))


def _timed(loaded: LoadedModel, tensor: Tensor, times: _Times) -> Callable[[], None]:
    """Returns a query that records its times."""

    def query() -> None:
        began_s = time.perf_counter()
        rows = loaded.prepare(tensor)
        prepared_s = time.perf_counter()
        loaded.compute(rows)
        times.run.append(time.perf_counter() - prepared_s)
        times.prepare.append(prepared_s - began_s)

    return query


def _light(query: Callable[[], None], query_s: float, seconds: float) -> Light | None:
    """Times under a light load; None if queries are too long for the time."""
    if _LIGHT_QUERIES * query_s / _LIGHT_LOAD > _LIGHT_LONGER * seconds:
        return None
    found = scenarios.loaded((query,), query_s, seconds, load=_LIGHT_LOAD, least=_LIGHT_QUERIES)
    rested_ms, queued_ms = (_usual_ms(found.of(waited=waited)) for waited in (False, True))
    return Light(_LIGHT_LOAD, rested_ms, queued_ms)


def _beside(bundle: Bundle, query: Callable[[], None], query_s: float, job: Job) -> Beside | None:
    """Times among queries of another model; None if there is no other one, or no memory for it."""
    other = next((model for model in bundle.manifest.models if model.id == job.beside), None)
    if other is None or job.key.batch > 1 or not has_room(other.artefact.size_bytes, Tree(Path(job.root))):
        return None
    provider = job.key.provider if other.runtime == "onnx" and job.key.provider != "tflite" else CPU
    try:
        loaded = load_model(bundle, other, RuntimeOptions((provider,), job.key.threads))
    except FirstlineError:
        return None  # its own point says why
    own_share = _own_share(bundle, job.key.variant, other.id)
    try:
        times, seconds = _Times(), job.seconds * _SHARES["beside"]
        others = _timed(loaded, queried(bundle, loaded, 1), times)
        scenarios.single_stream(others, seconds / 10)
        mean_s = own_share * query_s + (1 - own_share) * fmean(times.whole())
        found = scenarios.loaded((query, others), mean_s, seconds, shares=(own_share, 1 - own_share))
        rested, queued, rested_turned, queued_turned = (
            _usual_ms(found.of(waited=waited, turned=turned))
            for turned, waited in itertools.product((False, True), repeat=2)
        )
        return Beside(other.id, rested, queued, rested_turned, queued_turned, own_share)
    except FirstlineError:
        return None
    finally:
        loaded.close()


def _own_share(bundle: Bundle, variant: str, other: str) -> float:
    """The variant's share of the queries: one in five is the full model's, and edge variants share evenly."""
    full = bundle.manifest.full.id if bundle.manifest.full is not None else ""
    return 1 - ESCALATED if other == full else ESCALATED if variant == full else 0.5


def _usual_ms(seconds: Sequence[float]) -> float | None:
    return float(f"{distribution(seconds).usual_ms:.5g}") if len(seconds) >= _FEWEST else None


def _operators(
    bundle: Bundle, model: Model, loaded: LoadedModel, rows: np.ndarray, job: Job
) -> tuple[tuple[Operator, ...], str]:
    if model.runtime != "onnx":
        return (), "The TFLite interpreter has no profiler in Python."
    key = job.key
    try:
        with TemporaryDirectory(prefix="firstline-trace-") as folder:
            trace = Path(folder) / "trace"
            with closing(
                OnnxRuntime(bundle.file(model.artefact), providers=(key.provider,), threads=key.threads, trace=trace)
            ) as traced:
                until_s = time.perf_counter() + job.seconds * _SHARES["operators"]
                for done in range(_TRACED_RUNS):
                    traced.run({loaded.input.name: rows})
                    if done > 1 and time.perf_counter() > until_s:
                        break
                return operators(traced.end_trace().read_bytes()), ""
    except (FirstlineError, OSError) as error:
        return (), str(error)[:200]


def _runtime(model: Model) -> str:
    for name in _PACKAGES[model.runtime]:
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
    return model.runtime


def _ms(seconds: float) -> float:
    return float(f"{seconds * 1000:.5g}")


def reset_peak() -> int | None:
    """Resets this process's peak memory (proc(5), clear_refs) and returns its bytes now; None if that is refused."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return _status_bytes("VmRSS")
    except (OSError, ValueError):
        return None


def peak(before_bytes: int | None) -> Reading:
    """Returns the peak memory beyond `before_bytes`."""
    with suppress(OSError, ValueError):
        if before_bytes is not None:
            return Measured(float(max(_status_bytes("VmHWM") - before_bytes, 0)), "/proc/self/status")
    return Absent("/proc/self/clear_refs: the kernel does not let this process count its peak.")


def _status_bytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise ValueError(name)


def waited_s() -> float:
    """Returns how long this thread was ready but waited for a core (scheduler/sched-stats); 0 if it is not counted."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def has_room(size_bytes: int, tree: Tree) -> bool:
    """Whether there is memory, in the machine and in the control group, for another model with a file of that size."""
    left = available_memory(tree)
    return isinstance(left, Measured) and left.value >= _ROOM_FACTOR * size_bytes + _SPARE_BYTES


def main() -> int:
    """Runs the command in the module's docstring; a failure is one sentence on stderr, and exit code 1."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    with suppress(OSError):  # the kernel ends this process first if memory runs out
        Path("/proc/self/oom_score_adj").write_text("1000")
    if not job.alone:
        use_lowest_priority()
    keep_freed_memory()  # as in the agent: otherwise a new process is slower or faster
    try:
        point = measure(job)
    except (FirstlineError, OSError) as error:
        print(getattr(error, "message", error), file=sys.stderr)  # noqa: T201
        return 1
    sys.stdout.buffer.write(msgspec.json.encode(point))
    return 0


if __name__ == "__main__":
    sys.exit(main())
