"""The three parts of the data, and what candidates and existing models answer on them, and how fast.

One part makes the candidates (calibration, sensitivity, training), one judges them, one certifies them. A certificate
is valid only on rows that chose nothing; they do choose which certified candidate is first, for which `proved`
compensates.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import msgspec
import numpy as np

from firstline.workbench.certify import Certification, ConstantScoreError, Terms, certify_bundle
from firstline.workbench.data.dataset import Dataset
from firstline.workbench.data.sample import Sample
from firstline.workbench.evaluate import Measured
from firstline.workbench.event_promises import EventBound
from firstline.workbench.evidence import Evidence
from firstline.workbench.observe import Answers, naming_sample
from firstline.workbench.quality import quality
from firstline.workbench.selection import Selection, cluster_keys
from firstline_core.bundle.loaded_model import LoadedModel
from firstline_core.bundle.loading import load_model
from firstline_core.bundle.manifest import Model
from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError
from firstline_core.hardware.readings import Reading
from firstline_core.processing.steps import InputSpec
from firstline_core.profile.profile import Profile, of_one_row
from firstline_core.profile.summary import DISTURBED
from firstline_core.routing.certification import uncertified
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.telemetry.wording import counted
from firstline_core.types import Array, Arrays

SHARES = (0.5, 0.2, 0.3)
LEAST_ROWS = 20
TURNS = 300
"""Number of times that each model is timed; fewer if that takes longer than `_TURNS_S`."""
_LEAST_TURNS, _TURNS_S = 15, 20.0
_WARM_RUNS, _WARM_S = 5, 0.001


@dataclass(frozen=True, slots=True)
class Parts:
    """Each in the data set's order.

    Attributes:
        make: for calibration, sensitivity and training; its labels are not used.
        judge: for accuracy.
        certify: for certificates.
    """

    make: Dataset
    judge: Dataset
    certify: Dataset


def split_data(dataset: Dataset, inputs: Sequence[InputSpec], seed: int = 0) -> Parts:
    """Splits at random, reproducibly for a seed; samples of one cluster are in the same part.

    Raises:
        ConfigError: a part has fewer than 20 images; an image occurs twice, by name or content, or cannot be read.
    """
    clusters, of_sample = dataset.clusters, np.arange(len(dataset))
    if clusters:
        _, of_sample = np.unique(cluster_keys(clusters), return_inverse=True)
    count = int(of_sample.max()) + 1
    cuts = np.cumsum([round(share * count) for share in SHARES[:-1]])
    chosen = np.split(np.random.default_rng(seed).permutation(count), cuts)
    parts = [np.flatnonzero(np.isin(of_sample, part)) for part in chosen]
    if min(map(len, parts)) < LEAST_ROWS:
        wanted = f"{int(LEAST_ROWS / min(SHARES))} or more"
        if clusters:
            wanted = f"more groups: samples of one group stay together, and these have {counted(count, 'group')}"
        raise ConfigError(
            f"{dataset.path} has {len(dataset)} samples; each of three parts needs {LEAST_ROWS} at least, so give "
            f"{wanted}."
        )
    _refuse_copies(dataset, inputs)
    make, judge, certify = (
        replace(dataset, samples=tuple(dataset.samples[position] for position in part)) for part in parts
    )
    return Parts(make, judge, certify)


def _refuse_copies(dataset: Dataset, inputs: Sequence[InputSpec]) -> None:
    """A copy in another part would judge or certify its own effect; in the same part it would count twice."""
    once = "an image may be in one of the three parts only, so name each once"
    lines = dict[PurePosixPath, int]()
    for sample in dataset.samples:
        if (first := lines.setdefault(PurePosixPath(sample.file), sample.line)) != sample.line:
            raise ConfigError(f"{dataset.entry_of(sample)}, as line {first} does; {once}.")
    seen = dict[str, Sample]()
    for sample, digest in zip(dataset.samples, dataset.row_digests(inputs), strict=True):
        known = seen.setdefault(digest, sample)
        if known is not sample:
            line = f" of line {known.line}" if known.line else ""
            raise ConfigError(f"{dataset.entry_of(sample)}, which is byte for byte '{known.file}'{line}; {once}.")


def preprocessed_rows(
    model: LoadedModel,
    dataset: Dataset,
    inputs: Sequence[InputSpec],
    limit: int | None = None,
    place: Path | None = None,
) -> Array:
    """Returns the first input of a model for the rows of a dataset, (n, ...), at most `limit` of them, spread evenly.

    Args:
        model: whose preprocessing is used.
        dataset: at least one row.
        inputs: of the bundle.
        limit: None for all.
        place: file that is mapped instead of holding the rows in memory; rows of texts are held nevertheless.

    Raises:
        ConfigError: the bundle takes no encoded images, an image does not fit, or the rows have different sizes.
    """
    rows = _prepared(model, dataset.some(limit), inputs)
    holds_texts = model.inputs[0].port.datatype == "BYTES"
    return np.stack(list(rows)) if place is None or holds_texts else _held(rows, place)


def _prepared(model: LoadedModel, dataset: Dataset, inputs: Sequence[InputSpec]) -> Iterator[Array]:
    shape: tuple[int, ...] | None = None
    for sample, given in dataset.rows(inputs):
        with naming_sample(sample, dataset):
            (row,) = model.prepare(given)[model.inputs[0].port.name]
        if row.shape != (shape := shape or row.shape):
            raise ConfigError(
                f"{dataset.place_of(sample)} becomes a row of shape {list(row.shape)}, and the first "
                f"{list(shape)}; give the bundle a preprocessing that resizes."
            )
        yield row


def _held(rows: Iterable[Array], place: Path) -> Array:
    """Writes the rows and then maps the file: writing to a mapping ends the process if the disk is full."""
    count = 0
    with place.open("wb") as stream:
        for row in rows:
            stream.write(np.ascontiguousarray(row).data)
            count += 1
    return np.memmap(place, row.dtype, "r", shape=(count, *row.shape)).view(np.ndarray)


def accuracy(measured: Measured, answers: Answers) -> float:
    """Returns the quality of the model, see `quality.quality`: of a classifier the share of right answers.

    Raises:
        ConfigError: the data has no labels, or a package that computes the figure is not installed.
    """
    if measured.truth is None:
        raise ConfigError("Candidates are judged by labels, and the data has none.")
    return quality(measured.manifest.task, answers.outputs, answers.evidence, measured.truth)


def proved(
    bundle: Bundle, evidence: Evidence, terms: Terms, *, among: int = 1, judged: Evidence | None = None
) -> Certification:
    """Certifies one variant on all rows.

    The same rows choose which of several variants is first, which makes a false certificate more likely than each one
    says. Each delta is therefore split evenly, and holds for all of them together (Bonferroni).

    Args:
        bundle: with score and full model.
        evidence: of the variant, on the certifying rows.
        terms: each delta, the probability that any of the `among` promises is wrong, is stated in the certificate.
        among: number of variants that are certified on these rows.
        judged: evidence of the variant on the judging rows, which say where testing of several events starts.

    Returns:
        Without a certificate also if the score is the same for every row.
    """
    shared = replace(
        terms,
        delta=terms.delta / among,
        events={name: EventBound(one.epsilon, one.delta / among) for name, one in terms.events.items()},
    )
    try:
        found = certify_bundle(bundle, evidence, shared, placing=judged)
    except ConstantScoreError:  # other candidates go on
        result = uncertified(len(evidence), 0)
        selection = Selection(bundle.manifest.policy.score, np.arange(len(evidence)), evidence.scores)
        return Certification(evidence.variant, selection, result, shared, None)
    if found.certificate is None:
        return found
    events = {
        name: msgspec.structs.replace(one, delta=terms.events[name].delta)
        for name, one in found.certificate.events.items()
    }
    return replace(found, certificate=msgspec.structs.replace(found.certificate, delta=terms.delta, events=events))


class Cost(NamedTuple):
    """Cost of one row: the median time through the model, and the energy of the whole query; None if not known.

    Attributes:
        waited_share: share of the time of measuring in which other work had the core.
    """

    latency_ms: float | None = None
    energy_mj: Reading | None = None
    waited_share: float = 0.0


def profiled_costs(models: Sequence[Model], profile: Profile) -> dict[str, Cost]:
    """Returns the costs that the profile of a machine contains, by id, each of the model's fastest way to run there.

    Only models that ran there count, by their digests. Nothing is scaled from this machine: the speed of int8 kernels
    relative to fp32 differs between processors by several times.
    """
    found = {}
    for model in models:
        points = of_one_row(profile.points, model.digest)
        calm = [point for point in points if point.waited_share <= DISTURBED] or points
        if calm:
            best = min(calm, key=lambda point: point.run_ms)
            found[model.id] = Cost(best.run_ms, best.energy_mj, best.waited_share)
    return found


def measured_costs(
    bundle: Bundle, models: Sequence[Model], dataset: Dataset, options: RuntimeOptions
) -> dict[str, Cost]:
    """Measures the median time of one row through each model here, by id, without its processing.

    The models run in turns in one process, so that other work affects all of them alike, and each is warmed, because a
    model of some microseconds takes up to twice as long after another runtime has filled the caches.

    Args:
        bundle: has the files.
        models: each once.
        dataset: its first row is the input.
        options: how the models run.
    """
    with ExitStack() as stack:
        ready: list[tuple[str, LoadedModel, Arrays]] = []
        _, row = next(dataset.rows(bundle.manifest.inputs))
        for model in models:
            loaded = load_model(bundle, model, options)
            stack.callback(loaded.close)
            ready.append((model.id, loaded, loaded.feeds(loaded.prepare(row))))
        taken: dict[str, list[float]] = {name: [] for name, _, _ in ready}
        start_s = time.perf_counter()
        for done in range(TURNS):
            if done >= _LEAST_TURNS and time.perf_counter() - start_s > _TURNS_S:
                break
            for name, loaded, feed in ready:
                _warmed(loaded, feed)
                began_s = time.perf_counter()
                loaded.runtime.run(feed)
                taken[name].append(time.perf_counter() - began_s)
    return {name: Cost(float(np.median(seconds)) * 1000) for name, seconds in taken.items()}


def _warmed(loaded: LoadedModel, feed: Arrays) -> None:
    """A few runs; one if it takes a millisecond, for which caches do not matter."""
    began_s = time.perf_counter()
    for _ in range(_WARM_RUNS):
        loaded.runtime.run(feed)
        if time.perf_counter() - began_s > _WARM_S:
            break
