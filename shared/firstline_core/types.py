"""Requests and answers, for both tiers and every transport. No I/O, no wire format."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from operator import attrgetter
from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta, Struct, field, structs
from numpy.typing import NDArray

from firstline_core.errors import NAME_CHARACTERS, InvalidTensorError, listed

# \Z, because $ also matches before a newline at the end.
NAME_PATTERN = rf"^{NAME_CHARACTERS}\Z"

Name = Annotated[str, Meta(pattern=NAME_PATTERN)]
"""The name of a bundle, model, device or token: text that is safe in paths, MQTT topics and logs."""

Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]

Share = Annotated[float, Meta(ge=0, le=1)]
OpenShare = Annotated[float, Meta(gt=0, lt=1)]
"""A share that is neither 0 nor 1."""
Amount = Annotated[float, Meta(ge=0, le=1e18)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Finite = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
"""A number that is neither infinite nor NaN; msgspec checks it when it decodes."""

# Open Inference Protocol V2 datatypes and the numpy dtypes that carry them. BYTES elements are `bytes`.
DATATYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BYTES": np.dtype(np.object_),
}
_DATATYPE_OF = {dtype: name for name, dtype in DATATYPES.items()}

Array = NDArray[Any]

Arrays = Mapping[str, Array]
"""Named arrays that share the first axis, the rows."""

PROBABILITIES = "probabilities"
"""The only output of a classifier, on both tiers: FP32, (rows, classes)."""


def object_array(elements: Sequence[object]) -> Array:
    """Returns elements of BYTES, or texts, in one axis."""
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    return array


def row_count(arrays: Arrays) -> int:
    """Returns the number of rows of named arrays, of which there is at least one."""
    return len(next(iter(arrays.values())))


def slice_rows(arrays: Arrays, start: int, end: int) -> Arrays:
    """Returns the rows from `start` up to, but not including, `end` as views."""
    return {name: array[start:end] for name, array in arrays.items()}


def take_rows(arrays: Arrays, rows: Sequence[int]) -> Arrays:
    """Returns some of the rows in the given order; views if they are consecutive."""
    count, first = len(rows), rows[0] if rows else 0
    if list(rows) != list(range(first, first + count)):
        return {name: array[list(rows)] for name, array in arrays.items()}
    if count == row_count(arrays):
        return arrays
    return slice_rows(arrays, first, first + count)


def payload_bytes(arrays: Iterable[Array]) -> int:
    """Returns the bytes of payload: of the numbers, or of the elements of BYTES."""
    total = 0
    for array in arrays:
        total += sum(map(len, array.flat)) if array.dtype.hasobject else array.nbytes
    return total


def join_rows(parts: Sequence[Arrays]) -> Arrays:
    """Returns the rows of all parts in their order; the parts have equal names, and at least one is given."""
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def all_finite(array: Array) -> bool:
    """Returns whether all numbers are finite.

    A finite sum of squares proves it in one pass without a temporary array. Otherwise large numbers may be the reason,
    and each number is checked.
    """
    return math.isfinite(np.vdot(array, array)) or bool(np.isfinite(array).all())


_ARRAY = attrgetter("array")


class Tensor(Struct, frozen=True, eq=False):
    """A named array. The first axis counts rows; the datatype follows from the array's dtype.

    Args:
        name: of the input or output in the bundle.
        array: C-contiguous, little-endian, of a dtype in `DATATYPES`; an object array holds `bytes`.
    """

    name: str
    array: Array

    @property
    def datatype(self) -> str:
        try:
            return _DATATYPE_OF[self.array.dtype]
        except KeyError:
            raise InvalidTensorError(
                f"Tensor '{self.name}' has dtype {self.array.dtype}, which V2 cannot carry; "
                f"use one of {', '.join(DATATYPES)}."
            ) from None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape


class TensorSpec(Struct, frozen=True):
    """The name, datatype and shape of an input or output; -1 is a free size."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class Tier(StrEnum):
    """The tier that computed an answer."""

    EDGE = "edge"
    CACHE = "cache"
    CLOUD = "cloud"


class Status(StrEnum):
    FINAL = "final"  # no better answer will follow
    PROVISIONAL = "provisional"  # a correction, or `expired`, will follow under this id
    EXPIRED = "expired"  # no correction will come: too late, refused or its record damaged; this answer stands


class Route(StrEnum):
    AUTO = "auto"
    EDGE = "edge"
    CLOUD = "cloud"


class Privacy(StrEnum):
    """Whether a request may leave the device.

    Enforced in `routing/policy.py: before`; on the device in `LinkChain.infer`, `Outbox.put`, `Hedging.start`,
    `Auditor.observe_decisions`, `ResultCache.put` (`private`) and the recorder; on the gateway in
    `serving/data_plane.py: check`.
    """

    ANY = "any"
    LOCAL_ONLY = "local_only"  # never sent, audited, hedged, queued or put into telemetry


class Wait(StrEnum):
    FINAL = "final"
    FIRST = "first"


class Reason(StrEnum):
    """Why this answer was given: a closed list, safe as a metric label.

    When you add a value, give it its sentence here and a row in docs/reference/answers.md. In the table of
    docs/concepts/architecture.md, the rows "which reasons can an answer have?" and "what does a new reason touch?" list
    the code.

    Attributes:
        explanation: a sentence for people; `{scores}` is the place of the score and the threshold.
    """

    explanation: str

    def __new__(cls, value: str, explanation: str = "") -> Reason:
        reason = str.__new__(cls, value)
        reason._value_, reason.explanation = value, explanation
        return reason

    CONFIDENT = "confident", "This device's model was sure enough{scores}, so its answer was accepted."
    UNCERTAIN = "uncertain", "This device's model was not sure enough{scores}, so the full model was to answer."
    HEAVY = (
        "heavy",
        "This device could not answer: it does not run the model, the model failed or was busy, or the payload was "
        "over its limit.",
    )
    REQUESTED = "requested", "The caller asked for this by `route` or `wait`."
    LOCAL_ONLY = "local_only", "The caller's `privacy` kept the request on this device."
    LINK_DOWN = (
        "link_down",
        "The full model was to answer, but no gateway was reachable or it was busy; this device's answer stood in.",
    )
    DEADLINE = "deadline", "The full model was to answer, but not before the deadline; this device's answer stood in."
    BUDGET = "budget", "The full model was to answer, but a budget or quota forbade it; this device's answer stood in."
    VALUABLE = "valuable", "This device's model was sure enough{scores}, yet asking the full model was worth its price."
    POLICY = "policy", "The device's policy (policy.kind) decided without a look at the score."
    OUTBOX_FULL = (
        "outbox_full",
        "The full model did not answer in time, and the outbox or the disk had no room for a promise.",
    )
    PARTIAL_INPUTS = (
        "partial_inputs",
        "The request had only the inputs of this device's model, so the full model could not be asked.",
    )
    CLOUD_ERROR = "cloud_error", "The full model was to answer, but the gateway refused; this device answered."


DEFAULT_PRIORITY, LOWEST_PRIORITY = 2, 3
"""Levels of `InferRequest.priority` go from 1, the highest, to `LOWEST_PRIORITY`."""


TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
_TRACE_VERSION = "00"


class TraceContext(Struct, frozen=True):
    """The place of a request in a distributed trace, on this tier (W3C Trace Context, level 2).

    Args:
        trace_id: 32 hexadecimal digits, the same on every tier.
        span_id: 16 hexadecimal digits, of the work of this tier.
        parent_id: span id of the caller; "" if unknown.
        flags: whether the caller records the trace, and whether its id is random.
        state: the `tracestate` header as received; "" if there is none, or none that may be passed on.
    """

    trace_id: str
    span_id: str
    parent_id: str
    flags: int
    state: str = ""

    @property
    def traceparent(self) -> str:
        """The header for the next server in the chain."""
        return f"{_TRACE_VERSION}-{self.trace_id}-{self.span_id}-{self.flags:02x}"

    def headers(self) -> dict[str, str]:
        """Returns the headers to forward; the names are the same over HTTP, gRPC and MQTT."""
        return {TRACEPARENT: self.traceparent} | ({TRACESTATE: self.state} if self.state else {})

    def facts(self) -> dict[str, str]:
        """Returns the fields of a log line, named as OpenTelemetry names them."""
        return {"trace_id": self.trace_id, "span_id": self.span_id}


_Probability = Annotated[float, Meta(gt=0, le=1)]
_EVENTS_LIMIT = 1024


class AuditNote(Struct, frozen=True, rename=lambda name: f"audit_{name}"):
    """A device's report of an audited edge answer: one row. The gateway computes its loss from `edge_outputs`.

    Args:
        propensity: the probability with which this answer was drawn for an audit, in (0, 1], before it was known
            whether its source pauses after another audit; see `routing/sampling.py`.
        epsilon: the share of disagreement that the audits test, in (0, 1); with events, the largest of theirs.
        threshold: the score that the edge answer reached at least.
        edge_digest: `Model.digest` of the edge variant, as its certificate names it.
        events: the tested share of each event, see `Certificate.audit_bounds`; empty for a contract about all rows.
    """

    propensity: _Probability
    epsilon: OpenShare
    threshold: Finite
    edge_digest: Sha256
    events: Annotated[dict[str, OpenShare], Meta(max_length=_EVENTS_LIMIT)] = {}

    @property
    def bounds(self) -> dict[str, float]:
        """Returns the tested shares by event, as `Certificate.audit_bounds` does."""
        return self.events or {"": self.epsilon}


class ContractAlarm(Struct, frozen=True, omit_defaults=True, rename=lambda name: f"alarm_{name}"):
    """A device's report that its own audits found the contract of an edge variant broken.

    Args:
        edge_digest: `Model.digest` of the edge variant, as its certificate names it.
        event: the event whose promise is broken, such as "missed person"; "" without one.
    """

    edge_digest: Sha256
    event: str = ""


class ContractNotice(Struct, frozen=True, omit_defaults=True):
    """A gateway's notice to a device about the accuracy contract of its bundle version.

    Args:
        alarm: the audits of all devices together show that the contract is broken.
        escalations_per_hour: how many additional answers this device may escalate because of an alarm; None for no
            bound. Escalations that it would make without an alarm are not counted.
        devices: how many devices audit the contract, this one included.
        event: the event whose promise is broken, such as "missed person"; "" without one.
    """

    alarm: bool = field(name="contract_alarm")
    escalations_per_hour: Annotated[float, Meta(ge=0, le=sys.float_info.max)] | None = None
    devices: Annotated[int, Meta(ge=1, lt=2**31)] = field(name="contract_devices", default=1)
    event: str = field(name="contract_event", default="")


class RequestedOutput(Struct, frozen=True):
    """An output that the caller named.

    Args:
        name: of the output.
        binary: whether it travels as binary data; None for the request's default.
        classification: number of most likely classes to return instead of the numbers; 0 for the numbers.
    """

    name: str
    binary: bool | None = None
    classification: int = 0


SOURCE_LIMIT = 128
"""Largest length of `InferRequest.source` (characters)."""


class InferRequest(Struct, frozen=True):
    """An inference request, independent of its transport.

    Args:
        model: the bundle's name.
        inputs: at least one tensor; all share the first axis, the rows.
        request_id: created by Firstline where the request enters.
        version: the bundle's version, or "" for the current one.
        id: of the client, only echoed.
        outputs: requested ones; empty means all.
        binary_output: whether outputs travel as binary data by default.
        deadline_s: on the receiving tier's monotonic clock; None means no deadline.
        full_model_digest: of an escalation, the full model of the edge's bundle; "" otherwise.
        principal: the caller that the transport authenticated.
        audit: of a device's request that audits an edge answer; None otherwise.
        edge_outputs: of an audit, the canonical outputs of the edge answer, one row; empty otherwise.
        priority: under overload 1 goes first and `LOWEST_PRIORITY` last; 0 is the default.
        source: the camera, microphone or machine that the input comes from, of at most `SOURCE_LIMIT` characters; "" if
            the caller names none. Audits of one source keep a minimum distance in time.
        alarm: of a device's request, the alarm of this device's own audits; None without one.
        promised: of a device's request for a promised correction: it takes effect once, however often it is sent.
        trace: with this tier's span; None without a trace.
    """

    model: str
    inputs: tuple[Tensor, ...]
    request_id: str
    version: str = ""
    id: str = ""
    outputs: tuple[RequestedOutput, ...] = ()
    binary_output: bool = False
    route: Route = Route.AUTO
    privacy: Privacy = Privacy.ANY
    wait: Wait = Wait.FINAL
    deadline_s: float | None = None
    full_model_digest: str = ""
    principal: str = ""
    audit: AuditNote | None = None
    edge_outputs: Arrays = {}
    priority: int = 0
    source: str = ""
    alarm: ContractAlarm | None = None
    promised: bool = False
    trace: TraceContext | None = None

    @property
    def rows(self) -> int:
        rows: int = self.inputs[0].array.shape[0]
        return rows

    @property
    def arrays(self) -> Arrays:
        """Returns the arrays of the inputs by name."""
        return {tensor.name: tensor.array for tensor in self.inputs}

    @property
    def size_bytes(self) -> int:
        """Returns the bytes of payload: of the inputs, and of the edge outputs that an audit carries."""
        return payload_bytes(chain(map(_ARRAY, self.inputs), self.edge_outputs.values()))

    def take(self, rows: Sequence[int]) -> InferRequest:
        """Returns the request with some of its rows, in the given order."""
        return self.with_inputs(take_rows(self.arrays, rows))

    def with_inputs(self, arrays: Arrays) -> InferRequest:
        """Returns the request with other inputs."""
        return structs.replace(self, inputs=tuple([Tensor(name, array) for name, array in arrays.items()]))


HEDGED = "hedge"
"""The outcome of a hedged attempt that was not needed."""


class Attempt(Struct, frozen=True):
    """An attempt to answer: `outcome` is "ok", an error's code, or `HEDGED`."""

    tier: Tier
    outcome: str
    ms: Finite


class RowAnswer(Struct, frozen=True):
    """The answer's metadata for one row of a batch."""

    tier: Tier
    reason: Reason
    status: Status
    certified: bool
    confidence: Finite | None
    model_digest: str


class Answer(Struct, frozen=True, omit_defaults=True):
    """The metadata of every answer. For several rows it is the summary; `rows` has each.

    Args:
        status: provisional if any row is.
        certified: covered by a valid certificate or computed by the full model; for a batch, every row.
        durable: whether the promise of a correction is fsynced.
        tier: for a batch, the farthest that answered a row.
        confidence: the edge score, the lowest of a batch; None if the edge model did not run.
        model_digest: of the model that answered (of a batch, the farthest tier's).
        changed: of a final answer that corrected a provisional one: whether it differs from that in any row, by
            the task's loss; None otherwise.
        refusal: with the reason `cloud_error`, why the gateway refused, in sentences; "" otherwise.
        contract: from a gateway to a device, if the contract of the bundle's version is broken or bounded.
    """

    request_id: str
    status: Status
    certified: bool
    durable: bool
    tier: Tier
    reason: Reason
    confidence: Finite | None
    model_digest: str
    attempts: tuple[Attempt, ...] = ()
    rows: tuple[RowAnswer, ...] = ()
    changed: bool | None = None
    refusal: str = ""
    contract: ContractNotice | None = None


class InferResponse(Struct, frozen=True):
    """Outputs and the answer's metadata; only foreign servers leave `answer` None."""

    model: str
    version: str
    outputs: tuple[Tensor, ...]
    id: str = ""
    answer: Answer | None = None

    @property
    def arrays(self) -> Arrays:
        """Returns the arrays of the outputs by name."""
        return {tensor.name: tensor.array for tensor in self.outputs}

    def arrays_of(self, specs: Iterable[TensorSpec]) -> Arrays:
        """Returns the arrays of these outputs, without others that a server may add.

        Raises:
            InvalidTensorError: an output is absent.
        """
        return {spec.name: self.output(spec.name) for spec in specs}

    def output(self, name: str) -> Array:
        """Returns the array of an output.

        Raises:
            InvalidTensorError: the answer has no such output.
        """
        for tensor in self.outputs:
            if tensor.name == name:
                return tensor.array
        names = listed(name, (tensor.name for tensor in self.outputs), "it has:")
        raise InvalidTensorError(f"The answer has no output '{name}'{names}")


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """The model metadata of V2, and Firstline's additions.

    Attributes:
        labels: of the classes, in their order; () if the task has none.
        files: names of the inputs of BYTES that are images or recordings; the others are text.
        task: the manifest's, see `firstline_core/tasks`; None if it is unknown.
    """

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    labels: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    task: object = None


ModelVersion = tuple[str, str]
"""The name and version of a model, as requests have them."""


class ModelKey(NamedTuple):
    """The name and version of a bundle, or of a configuration."""

    name: str
    version: int
