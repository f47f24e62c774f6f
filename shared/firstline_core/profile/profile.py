"""The profile document: the cost of each variant of a bundle on one machine. Structs and JSON, no I/O.

A point is one variant with one provider, number of threads and batch size, on a warm or a hot machine. The scenarios
follow MLPerf Inference (Reddi et al., "MLPerf Inference Benchmark", ISCA 2020, section IV.B; rules:
https://github.com/mlcommons/inference_policies/blob/master/inference_rules.adoc#scenarios):

SingleStream    queries of one sample, each as soon as the previous one is answered; result: 90th percentile of the
                latency.
MultiStream     the same with eight samples a query; result: 99th percentile. Here with the batch of the point.
Offline         all samples in one query of 24,576 or more; result: samples per second. Here they are processed in
                queries of the batch, back to back.

These are not MLPerf results: the rules require ten minutes of each scenario, LoadGen's own queries, and more distinct
samples. A reader ignores fields that it does not know.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from firstline_core.hardware.catalogue import Catalogue
from firstline_core.hardware.readings import Reading
from firstline_core.storage.structs import FORMAT, read_json_document
from firstline_core.types import Amount, Count, Name, Sha256

QUANTILES = 200
"""Quantiles are kept in steps of half a percent: p99 is one of them."""
_DIGITS = 5
_STEEPEST = 1e4  # power of the last step
_NEARLY = 0.95  # of the highest rate of samples

Milliseconds = Annotated[float, Meta(ge=0, le=1e9)]
LIMIT_BYTES = 4 * 1024 * 1024
POINTS = 512
"""Most points of one profile."""
REASON_CHARACTERS = 500
HALF_LOAD = 0.5
"""The load of `Point.rested` and `Point.queued`, as a share of the rate back to back."""
Condition = Literal["warm", "sustained"]
"""warm: short runs on a machine at rest, after the first runs; the default. sustained: after minutes of full load, as
the board itself throttles."""
Text = Annotated[str, Meta(max_length=200)]


class Distribution(Struct, frozen=True):
    """Durations.

    Attributes:
        count: number of measured durations.
        mean_ms: their mean.
        quantiles_ms: at the shares 0, 1/200, ..., 1; the first is the shortest duration, the last the longest.
    """

    count: Annotated[int, Meta(ge=1, le=2**53)]
    mean_ms: Milliseconds
    quantiles_ms: Annotated[tuple[Milliseconds, ...], Meta(min_length=QUANTILES + 1, max_length=QUANTILES + 1)]

    def __post_init__(self) -> None:
        if any(later < earlier for earlier, later in zip(self.quantiles_ms, self.quantiles_ms[1:], strict=False)):
            raise ValueError("quantiles of durations cannot decrease")

    @property
    def p50_ms(self) -> float:
        """The median."""
        return self.quantile_ms(0.5)

    @property
    def p99_ms(self) -> float:
        """The 99th percentile."""
        return self.quantile_ms(0.99)

    def quantile_ms(self, share: float) -> float:
        """Returns the quantile at a share (0 to 1), interpolated between the steps."""
        return float(self.at(np.array([share]))[0])

    def at(self, shares: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns the durations at these shares; uniformly random shares give random durations of this distribution.

        The interpolation is linear except in the last step, where one stall among thousands would count for half of the
        step's queries. There it follows the power of the share that preserves the measured mean.
        """
        last = shares * QUANTILES - (QUANTILES - 1)
        below, longest = self.quantiles_ms[-2:]
        tail = below + (longest - below) * np.clip(last, 0, 1) ** self._tail_power
        return np.where(last > 0, tail, np.interp(shares * QUANTILES, np.arange(QUANTILES + 1), self.quantiles_ms))

    @property
    def _tail_power(self) -> float:
        """The k of u ** k, whose mean over (0, 1) is 1 / (k + 1)."""
        quantiles = np.asarray(self.quantiles_ms)
        below, longest = quantiles[-2:]
        body = float((quantiles[:-2] + quantiles[1:-1]).sum() / 2)  # of QUANTILES - 1 steps, times QUANTILES
        above = self.mean_ms * QUANTILES - body - below
        return min(max((longest - below) / above - 1, 0.0), _STEEPEST) if above > 0 else _STEEPEST


def distribution(seconds: Sequence[float] | NDArray[np.float64]) -> Distribution:
    """Returns the distribution of measured durations.

    Args:
        seconds: at least one duration.
    """
    milliseconds = np.asarray(seconds, np.float64) * 1000
    found = np.quantile(milliseconds, np.linspace(0, 1, QUANTILES + 1))
    return Distribution(
        len(milliseconds), _rounded(float(milliseconds.mean())), tuple(_rounded(float(one)) for one in found)
    )


def _rounded(value: float) -> float:
    """Rounds to the precision of a clock; monotonic, so quantiles stay in order."""
    return float(f"{value:.{_DIGITS}g}")


class PointKey(Struct, frozen=True, order=True):
    """Identifies a point among those of one machine.

    Attributes:
        variant: the model's id in the bundle.
        model_digest: of its bytes and its processing, `Model.digest`.
        provider: the requested provider, "CPUExecutionProvider"; for TFLite "tflite".
        threads: threads of a run; 0 for the runtime's default.
        batch: rows of a query.
    """

    variant: Name
    model_digest: Sha256
    provider: Annotated[str, Meta(min_length=1, max_length=64)]
    threads: Annotated[int, Meta(ge=0, le=1024)]
    batch: Annotated[int, Meta(ge=1, le=65536)]
    condition: Condition = "warm"

    @property
    def of_one_row(self) -> bool:
        """Whether a query is one row, on a machine that is not hot."""
        return self.batch == 1 and self.condition == "warm"

    def describe(self) -> str:
        """Returns the point in words, without its model."""
        hot = "" if self.condition == "warm" else f", {self.condition}"
        return f"threads {self.threads}, batch {self.batch}{hot}"


class QueryBytes(Struct, frozen=True):
    """Bytes of one query: as received, such as encoded images; into the model; and out of it."""

    received_bytes: Count
    input_bytes: Count
    output_bytes: Count


class Point(Struct, frozen=True):
    """One point.

    Attributes:
        key: identifies it.
        ran_on: the provider that executed it.
        query: SingleStream: from an encoded query to probabilities, back to back.
        rested: the same after a rest of two queries on average, from the due time: threads sleep and timers are late.
        queued: queries between such rests, each from the end of the previous one: one query does not undo a rest. None
            if no query had to wait.
        prepare_ms: median part of `query`: decoding and preprocessing.
        run_ms: median part of `query`: the model and its postprocessing.
        offline_per_s: samples a second, one batch after the other.
        load_ms: to read the files and prepare the runtime, including its own first run of zeros.
        first_ms: the first query.
        moved: bytes of a query.
        peak_memory_bytes: peak memory of the process beyond that before it loaded the model.
        processor_ms: processor time of all cores for a query, back to back.
        energy_mj: energy of a query back to back, in millijoules.
        waited_share: share of the measurement's time in which its thread waited for a core; if it is not near 0, the
            times include effects of other work.
        heated_s: full load of all cores before the measurement.
    """

    key: PointKey
    ran_on: Text
    query: Distribution
    rested: Distribution
    prepare_ms: Milliseconds
    run_ms: Milliseconds
    offline_per_s: Amount
    load_ms: Milliseconds
    first_ms: Milliseconds
    moved: QueryBytes
    peak_memory_bytes: Reading
    processor_ms: Milliseconds
    energy_mj: Reading
    queued: Distribution | None = None
    waited_share: Amount = 0.0
    heated_s: Amount = 0.0


class RefusedPoint(Struct, frozen=True):
    """A point that could not be measured here, with the reason."""

    key: PointKey
    reason: Annotated[str, Meta(max_length=REASON_CHARACTERS)]


class Profile(Struct, frozen=True):
    """All points of one bundle on one machine.

    Attributes:
        bundle, version: for people; validity is decided by the digests in the points' keys.
        machine: name of the machine and of the profile's file.
        fingerprint: of its hardware and software, `Catalogue.fingerprint`; points of another one are invalid.
        accuracy: share of right answers by `Model.digest`, as stated in the bundle's manifest.
        hardware: its catalogue; None if unknown.
        made_s: wall time of the latest point.
        agent_version: of Firstline.
    """

    bundle: Name
    version: Annotated[int, Meta(ge=1)]
    machine: Name
    fingerprint: Annotated[str, Meta(min_length=1, max_length=64)]
    points: Annotated[tuple[Point, ...], Meta(max_length=POINTS)] = ()
    refused: Annotated[tuple[RefusedPoint, ...], Meta(max_length=POINTS)] = ()
    accuracy: Annotated[dict[Sha256, Annotated[float, Meta(ge=0, le=1)]], Meta(max_length=POINTS)] = {}
    hardware: Catalogue | None = None
    made_s: Amount = 0.0
    agent_version: Annotated[str, Meta(max_length=64)] = ""
    format: int = FORMAT

    def __post_init__(self) -> None:
        keys = [point.key for point in self.points]
        if len(set(keys)) != len(keys):
            raise ValueError("a profile has each point once")


def of_one_row(points: Iterable[Point], model_digest: str) -> list[Point]:
    """Returns the points of a model (`Model.digest`) with one row a query, on a machine that is not hot."""
    return [point for point in points if point.key.model_digest == model_digest and point.key.of_one_row]


def sweet_spot(points: Iterable[Point]) -> Point | None:
    """Returns the smallest batch that is nearly as fast as the best one: a larger batch only adds latency.

    Args:
        points: of one variant, provider, number of threads and condition.
    """
    found = sorted(points, key=lambda point: point.key.batch)
    most = max((point.offline_per_s for point in found), default=0.0)
    return next((point for point in found if point.offline_per_s >= _NEARLY * most), None)


def encode(profile: Profile) -> bytes:
    """Returns the profile as JSON."""
    return msgspec.json.encode(profile)


def decode(content: bytes, where: str) -> Profile:
    """Reads a profile.

    Args:
        content: JSON, at most `LIMIT_BYTES`.
        where: its source, for the error.

    Raises:
        ProtocolError: too long, not JSON, no profile, or of another format.
    """
    advice = "; name a file that `firstline profile create` or `edge-agent profile create` wrote"
    return read_json_document(content, Profile, where, LIMIT_BYTES, "is not a profile", advice=advice)
