"""The document: what each variant of a bundle costs on one machine. Structs and their JSON; no I/O.

A point is one variant with one provider, number of threads and batch size, in one condition of the machine. Its
scenarios are after those of MLPerf Inference (Reddi et al., "MLPerf Inference Benchmark", ISCA 2020, section IV.B; its
rules: https://github.com/mlcommons/inference_policies/blob/master/inference_rules.adoc#scenarios):

SingleStream    one query of one sample after the other, each as soon as the one before is answered; told by the 90th
                percentile of the latency.
MultiStream     the same with eight samples a query, told by the 99th; here with whatever batch the point has.
Server          queries of one sample, as a Poisson process; told by the highest rate at which the 99th percentile of
                the latency stays within a bound that the rules state for each benchmark, and that is stated here in
                medians of a query. From when a query is due, whether or not the machine was free.
Offline         all samples are there at once, in one query of 24,576 or more; told by samples per second. Here they are
                worked off in queries of the batch, back to back.

These are no MLPerf results: the rules ask for ten minutes of each, LoadGen's own queries, and samples that are not the
same few again and again. A reader passes over fields that it does not know.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from firstline_core.hardware.catalogue import Catalogue
from firstline_core.hardware.readings import Reading
from firstline_core.profile.course import Course
from firstline_core.profile.distribution import Distribution, Milliseconds
from firstline_core.protocol.json_document import read_json_document
from firstline_core.storage.artefact import Sha256
from firstline_core.types import Name

FORMAT = 1
LIMIT_BYTES = 4 * 1024 * 1024
POINTS = 512
"""Most points of one profile."""
REASON_CHARACTERS = 500
HALF_LOAD = 0.5
"""The load of `Point.rested`, `Point.queued` and `Point.beside`: of what keeps a server busy, asked back to back."""
OPERATORS = 24
"""Most kinds of operators of one point."""

Condition = Literal["warm", "sustained", "emulated"]
"""warm: short runs on a machine at rest, past the first runs; what is asked for where nobody says otherwise. Throttled:
sustained is after minutes of full load, as the board itself throttles; emulated is with a share of processor time,
because the machine does not throttle."""

Text = Annotated[str, Meta(max_length=200)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Amount = Annotated[float, Meta(ge=0, le=1e18)]


class Key(Struct, frozen=True, order=True):
    """Which point: what tells it from the other points of one machine.

    Attributes:
        variant: the model's id in the bundle.
        model_digest: of its bytes and its processing, `Model.digest`.
        provider: that was asked for, "CPUExecutionProvider"; for TFLite "tflite".
        threads: that one run may use; 0 leaves it to the runtime.
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
        """Whether a query is one row, and nothing held the machine back."""
        return self.batch == 1 and self.condition == "warm"


class Server(Struct, frozen=True):
    """Queries as a Poisson process, after MLPerf's Server scenario.

    Attributes:
        rate_per_s: the highest that was tried and kept the bound; 0 where none did.
        bound_ms: for the 99th percentile.
        latency: at that rate, or at the lowest that was tried; from when a query was due to its answer.
    """

    rate_per_s: Amount
    bound_ms: Milliseconds
    latency: Distribution


class Beside(Struct, frozen=True):
    """Queries under load as `rested` and `queued`, among another model's: rests are others, and so are the caches.

    `Distribution.usual_ms` of each; None where there were too few.

    Attributes:
        variant: the other model's id.
        rested_ms, queued_ms: after a query of this model.
        rested_turned_ms, queued_turned_ms: after one of the other.
        own_share: of the queries there, those of this model.
    """

    variant: Name
    rested_ms: Milliseconds | None = None
    queued_ms: Milliseconds | None = None
    rested_turned_ms: Milliseconds | None = None
    queued_turned_ms: Milliseconds | None = None
    own_share: Annotated[float, Meta(gt=0, lt=1)] = 0.5

    @property
    def is_known(self) -> bool:
        """Whether any of the times is."""
        times = (self.rested_ms, self.queued_ms, self.rested_turned_ms, self.queued_turned_ms)
        return any(each is not None for each in times)


class Light(Struct, frozen=True):
    """Queries as `Point.rested` and `Point.queued`, under a light load: what rests longer is slower to wake.

    `Distribution.usual_ms` of each; None where there were too few.

    Attributes:
        load: as a share of what keeps a server busy that answers back to back; of the point itself it is `HALF_LOAD`.
    """

    load: Annotated[float, Meta(gt=0, lt=HALF_LOAD)]
    rested_ms: Milliseconds | None = None
    queued_ms: Milliseconds | None = None


class WarmUp(Struct, frozen=True):
    """From nothing to steady.

    Attributes:
        load_ms: to read the files and make the runtime ready; its own first run of zeros is part of it.
        first_ms: the first query.
        queries: before they were steady: from then on, the median of five is within a tenth of the steady median.
        total_ms: that those took.
    """

    load_ms: Milliseconds
    first_ms: Milliseconds
    queries: Count
    total_ms: Milliseconds


class Moved(Struct, frozen=True):
    """Bytes of one query.

    Attributes:
        received_bytes: as it came: encoded images, say.
        input_bytes: as the model takes it.
        output_bytes: as the model gives it.
        weights_bytes: of the model's file: read from memory once a query, where no cache holds them.
    """

    received_bytes: Count
    input_bytes: Count
    output_bytes: Count
    weights_bytes: Count


class Operator(Struct, frozen=True):
    """All nodes of one kind.

    Attributes:
        kind: as the runtime names it, "Conv".
        nodes: how many there are.
        query_ms: that they take together, mean over queries, with the runtime's profiler on.
        provider: that ran them.
    """

    kind: Annotated[str, Meta(max_length=64)]
    nodes: Count
    query_ms: Milliseconds
    provider: Annotated[str, Meta(max_length=64)] = ""


class Point(Struct, frozen=True):
    """One point.

    Attributes:
        key: which.
        runtime: name and version of what ran it, "onnxruntime 1.23.2".
        ran_on: the provider that really executed it.
        query: SingleStream: from an encoded query to probabilities, back to back.
        rested: the same after a rest of two queries in the mean, from when it was due: threads sleep, timers are late.
        queued: of the queries between such rests, each from the end of the one before: a rest cools more than one query
            warms. None where none had to wait, as in profiles of before it was measured.
        light: under a lighter load. Of one row and a warm machine; None elsewhere, where queries take too long for
            that, and in profiles of before it was measured.
        course: of `rested` and `queued`, in which order they were slow. Of one row and a warm machine; None elsewhere,
            and in profiles of before it was kept.
        beside: of batch 1 alone; None where it was not measured, as in profiles of before it was.
        prepare: of `query`: decoding and preprocessing.
        run: of `query`: the model and its postprocessing.
        offline_per_s: samples a second, one batch after the other.
        server: of batch 1 alone; None where it was not measured.
        peak_memory_bytes: how much more memory the process had at most than before it loaded the model.
        processor_ms: of all cores, a query back to back.
        operators: the dearest first; empty where `operators_absent` says why.
        energy_mj: a query back to back takes, in millijoules.
        processor_share: of the time for which an emulated point's process ran; 1 elsewhere.
        heated_s: for which every core was busy before a sustained point was measured; 0 elsewhere.
        heat_limit_s: for which it might have been at most; less is enough where heat has settled. 0 likewise.
        alone: measured at the priority of a service, as nothing else ran there; else at the lowest.
        given_s: to measure for; the more, the more queries tell of it.
        seconds: that it took to measure all this.
        waited_share: of them, in which the measuring thread waited for a core that others had: near 0, or the times
            tell of the machine's other work.
    """

    key: Key
    runtime: Text
    ran_on: Text
    query: Distribution
    rested: Distribution
    prepare: Distribution
    run: Distribution
    offline_per_s: Amount
    warm_up: WarmUp
    moved: Moved
    peak_memory_bytes: Reading
    processor_ms: Milliseconds
    energy_mj: Reading
    server: Server | None = None
    operators: Annotated[tuple[Operator, ...], Meta(max_length=OPERATORS)] = ()
    operators_absent: Text = ""
    beside: Beside | None = None
    queued: Distribution | None = None
    light: Light | None = None
    course: Course | None = None
    processor_share: Annotated[float, Meta(gt=0, le=1)] = 1.0
    heated_s: Amount = 0.0
    heat_limit_s: Amount = 0.0
    alone: bool = False
    given_s: Amount = 0.0
    seconds: Amount = 0.0
    waited_share: Amount = 0.0


class Refused(Struct, frozen=True):
    """A point that could not be measured here, and why."""

    key: Key
    runtime: Text
    reason: Annotated[str, Meta(max_length=REASON_CHARACTERS)]


class Profile(Struct, frozen=True):
    """All points of one bundle on one machine.

    Attributes:
        bundle, version: for people; what holds is told by the digests in the points' keys.
        machine: the name of the machine, and of the profile's file.
        fingerprint: of its hardware and software, `Catalogue.fingerprint`; points of another one do not hold.
        accuracy: shares of right answers by `Model.digest`, as the bundle's manifest said them.
        outdated: points that hold until they are measured anew, as somebody asked for.
        hardware: what it is; None where nobody looked.
        made_s: wall time of the latest point.
        agent_version: of Firstline.
    """

    bundle: Name
    version: Annotated[int, Meta(ge=1)]
    machine: Name
    fingerprint: Annotated[str, Meta(min_length=1, max_length=64)]
    points: Annotated[tuple[Point, ...], Meta(max_length=POINTS)] = ()
    refused: Annotated[tuple[Refused, ...], Meta(max_length=POINTS)] = ()
    accuracy: Annotated[dict[Sha256, Annotated[float, Meta(ge=0, le=1)]], Meta(max_length=POINTS)] = {}
    outdated: Annotated[tuple[Key, ...], Meta(max_length=POINTS)] = ()
    hardware: Catalogue | None = None
    made_s: Amount = 0.0
    agent_version: Annotated[str, Meta(max_length=64)] = ""
    format: int = FORMAT

    def __post_init__(self) -> None:
        keys = [point.key for point in self.points]
        if len(set(keys)) != len(keys):
            raise ValueError("a profile has each point once")

    def point(
        self, model_digest: str, *, threads: int, batch: int = 1, provider: str = "", condition: Condition = "warm"
    ) -> Point | None:
        """The point of this very model; any provider where none is named; None where it was not measured."""
        wanted = (model_digest, threads, batch, condition)
        for point in self.points:
            key = point.key
            found = (key.model_digest, key.threads, key.batch, key.condition)
            if found == wanted and provider in ("", key.provider):
                return point
        return None


def sweet_spot(points: Iterable[Point], share: float = 0.95) -> Point | None:
    """The smallest batch that is nearly as good as the best: a larger one only makes people wait.

    Args:
        points: of one variant, provider, number of threads and condition.
        share: of the highest rate of samples.
    """
    found = sorted(points, key=lambda point: point.key.batch)
    most = max((point.offline_per_s for point in found), default=0.0)
    return next((point for point in found if point.offline_per_s >= share * most), None)


def encode(profile: Profile) -> bytes:
    """As JSON."""
    return msgspec.json.encode(profile)


def decode(content: bytes, where: str) -> Profile:
    """Reads a profile.

    Args:
        content: JSON, at most `LIMIT_BYTES`.
        where: whence it came, for the error.

    Raises:
        ProtocolError: too long, not JSON, no profile, or of another format.
    """
    return read_json_document(
        content, Profile, where=where, limit_bytes=LIMIT_BYTES, known=FORMAT, fault="is no profile"
    )
