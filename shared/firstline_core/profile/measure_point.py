"""Measures one point in a process of its own, at the lowest priority, so that its peak memory is the model's.

python -m firstline_core.profile.measure_point    reads a `Job` as JSON on stdin, writes a `Point` as JSON on stdout
"""

from __future__ import annotations

import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from statistics import median

import msgspec
import numpy as np

from firstline_core.bundle.golden import inputs_of, read_golden
from firstline_core.bundle.loaded_model import LoadedModel
from firstline_core.bundle.loading import load_model
from firstline_core.bundle.manifest import MANIFEST_NAME, Model, parse_manifest
from firstline_core.bundle.store import Bundle
from firstline_core.errors import FirstlineError, ModelLoadError
from firstline_core.hardware.kernel_files import Tree
from firstline_core.profile import scenarios
from firstline_core.profile.measure import Job
from firstline_core.profile.meters import EnergyMeter, heat_up, peak, reset_peak, waited_s
from firstline_core.profile.profile import Point, PointKey, QueryBytes, distribution
from firstline_core.runtime.memory import keep_freed_memory
from firstline_core.runtime.priority import use_lowest_priority
from firstline_core.runtime.select import CPU, RUNTIMES, RuntimeOptions
from firstline_core.types import Arrays, payload_bytes, row_count

_SHARES = {"query": 0.4, "loaded": 0.6}
"""Shares of a point's seconds; the scenarios that a service meets most have the most samples."""


class _TimedQuery:
    """A query of one model that records its times.

    Attributes:
        prepare, run: seconds of the parts of each query, in their order.
    """

    def __init__(self, loaded: LoadedModel, inputs: Arrays) -> None:
        self._loaded = loaded
        self._inputs = inputs
        self.prepare: list[float] = []
        self.run: list[float] = []

    def __call__(self) -> None:
        began_s = time.perf_counter()
        rows = self._loaded.prepare(self._inputs)
        prepared_s = time.perf_counter()
        self._loaded.compute(rows)
        self.run.append(time.perf_counter() - prepared_s)
        self.prepare.append(prepared_s - began_s)

    def whole(self) -> list[float]:
        """Returns the seconds of each query."""
        return [prepare + run for prepare, run in zip(self.prepare, self.run, strict=True)]


def measure(job: Job) -> Point:
    """Measures the point in this process.

    Raises:
        FirstlineError: the model does not load or run here, or has no typical input.
    """
    tree, key = Tree(Path(job.options.root)), job.key
    heat_s = job.options.heat_s(key)
    if heat_s:
        heat_up(heat_s)
    began_s, before_s = time.perf_counter(), waited_s()
    bundle, model = _found(job)
    RUNTIMES[model.runtime].engines()  # imports it: its memory is not the model's
    before_bytes = reset_peak()
    load_s = time.perf_counter()
    loaded = load_model(bundle, model, _options(key, model))
    load_s = time.perf_counter() - load_s
    with closing(loaded):
        inputs = queried(bundle, loaded, key.batch)
        query = _TimedQuery(loaded, inputs)
        scenarios.single_stream(query, job.seconds * _SHARES["query"] / 4)
        meter = EnergyMeter(tree, job.options.joules_per_core_s, job.options.power_rails)
        warm, processor_s = len(query.run), time.process_time()
        scenarios.single_stream(query, job.seconds * _SHARES["query"], between=meter.read_if_due)
        processor_s, whole = time.process_time() - processor_s, query.whole()
        measured = slice(warm, len(whole))
        energy = meter.per_query(len(whole) - warm, processor_s)
        steady = distribution(whole[measured])
        under_load = scenarios.loaded(query, steady.mean_ms / 1000, job.seconds * _SHARES["loaded"])
        peak_bytes = peak(before_bytes)
        sizes = (inputs, loaded.prepare(inputs), loaded.predict(inputs).outputs)
    seconds = time.perf_counter() - began_s
    return Point(
        key=key,
        ran_on=loaded.runtime.provider,
        query=steady,
        rested=distribution(under_load.rested),
        queued=distribution(under_load.queued) if under_load.queued else None,
        prepare_ms=_ms(median(query.prepare[measured])),
        run_ms=_ms(median(query.run[measured])),
        offline_per_s=float(f"{key.batch * (len(whole) - warm) / sum(whole[measured]):.5g}"),
        load_ms=_ms(load_s),
        first_ms=_ms(whole[0]),
        moved=QueryBytes(*(payload_bytes(arrays.values()) for arrays in sizes)),
        peak_memory_bytes=peak_bytes,
        processor_ms=_ms(processor_s / (len(whole) - warm)),
        energy_mj=energy,
        waited_share=round((waited_s() - before_s) / seconds, 4),
        heated_s=heat_s,
    )


def _found(job: Job) -> tuple[Bundle, Model]:
    path = Path(job.bundle)
    bundle = Bundle(path, parse_manifest((path / MANIFEST_NAME).read_bytes(), str(path)))
    for model in bundle.manifest.models:
        if (model.id, model.digest) == (job.key.variant, job.key.model_digest):
            return bundle, model
    raise ModelLoadError(f"Bundle {path} has no model '{job.key.variant}' of that digest any more.")


def _options(key: PointKey, model: Model) -> RuntimeOptions:
    provider = CPU if RUNTIMES[model.runtime].only_provider else key.provider
    return RuntimeOptions((provider,), key.threads)


def queried(bundle: Bundle, loaded: LoadedModel, rows: int) -> Arrays:
    """Returns a query: the bundle's golden inputs, repeated; noise if it has none."""
    golden = bundle.manifest.golden
    one: Arrays | None = None
    if golden is not None and bundle.file(golden.artefact).is_file():
        one = inputs_of(read_golden(bundle, golden.artefact), bundle.manifest)
    if one is None or not set(loaded.input_names) <= set(one):
        one = loaded.made_up_inputs(typical=True)
    if one is None:
        raise ModelLoadError(
            f"Model '{loaded.model.id}' takes inputs of any size, so that none is typical; "
            "give the bundle golden inputs."
        )
    positions = np.arange(rows) % row_count(one)
    return {name: np.ascontiguousarray(one[name][positions]) for name in loaded.input_names}


def _ms(seconds: float) -> float:
    return float(f"{seconds * 1000:.5g}")


def main() -> int:
    """Runs the command in the module's docstring; a failure is one sentence on stderr, and exit code 1."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    with suppress(OSError):  # the kernel ends this process first if memory runs out
        Path("/proc/self/oom_score_adj").write_text("1000")
    if not job.options.alone:
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
