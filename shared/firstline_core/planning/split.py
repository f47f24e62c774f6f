"""A full model cut in two: head on the device, tail in the cloud, and between them a checkpoint that travels.

What was measured of it, as a document, and what it comes to over a link. With B the link's bytes per second, the full
model's answer takes

    on the device       s (prepare + model)
    sending the input   g (prepare + model) + round trip + input / B
    split               s (prepare + head + pack) + g (unpack + tail) + round trip + checkpoint / B

where s and g say how many times slower than the measured machine the device and the gateway are. It is the sum that
Neurosurgeon minimises over the layers of a network (Kang et al., "Neurosurgeon: Collaborative Intelligence Between the
Cloud and Mobile Edge", ASPLOS 2017, https://doi.org/10.1145/3037697.3037698, algorithm 1), and a round trip. Each way
is a line over 1 / B, so that the best one by bandwidth is the lower envelope of a few lines, and is told exactly.

That a cut wins is not to be expected of a network that was not made for it: few have a natural bottleneck, a place that
is early and narrow; early tensors are larger than a compressed image, and late ones leave the cloud little to do
(Matsubara, Levorato and Restuccia, "Split Computing and Early Exiting for Deep Learning Applications: Survey and
Research Challenges", ACM Computing Surveys 55(5), 2022, https://doi.org/10.1145/3527155). So it is measured first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

from firstline_core.protocol.json_document import read_json_document
from firstline_core.storage.artefact import Sha256
from firstline_core.types import Name

FORMAT = 1
LIMIT_BYTES = 1024 * 1024
MOST_CUTS = 64

_Text = Annotated[str, Meta(max_length=500)]
_Amount = Annotated[float, Meta(ge=0, le=1e12)]
_Share = Annotated[float, Meta(ge=0, le=1)]

FormName = Literal["fp32", "fp16", "int8", "native"]
"""fp32: as it is. fp16: halved. int8: 256 steps a channel and row. native: the model's own integers, without loss."""


class Form(Struct, frozen=True):
    """One way to write a checkpoint down.

    Attributes:
        raw_bytes: of its numbers, a row.
        sent_bytes: of the same, compressed; mean over rows.
        pack_ms, unpack_ms: median, on the measured machine.
        disagreement: share of rows for which the tail says another class than the whole model.
        accuracy_loss: share of rows that the whole model has right, less those through the checkpoint; None where the
            data has no labels.
    """

    name: FormName
    raw_bytes: _Amount
    sent_bytes: _Amount
    pack_ms: _Amount
    unpack_ms: _Amount
    disagreement: _Share
    accuracy_loss: Annotated[float, Meta(ge=-1, le=1)] | None = None


class Cut(Struct, frozen=True):
    """One place to cut.

    Attributes:
        tensor: the only one that crosses it.
        shape: of it, of one row.
        head_ms, tail_ms: median of one row, on the measured machine.
    """

    tensor: _Text
    shape: tuple[int, ...]
    head_ms: _Amount
    tail_ms: _Amount
    forms: Annotated[tuple[Form, ...], Meta(max_length=8)] = ()


class Splits(Struct, frozen=True):
    """What was measured of one full model.

    Attributes:
        model_digest: of the model and its processing, `Model.digest`; others do not hold.
        prepare_ms: decoding and preprocessing a row, median.
        model_ms: the whole model, with its postprocessing, median.
        input_bytes: of an encoded input, mean.
        rows: that all this was measured on.
        points: places at which one tensor alone crosses; `cuts` are those worth measuring.
    """

    bundle: Name
    version: Annotated[int, Meta(ge=1)]
    model: Name
    model_digest: Sha256
    runtime: _Text
    threads: Annotated[int, Meta(ge=0, le=1024)]
    prepare_ms: _Amount
    model_ms: _Amount
    input_bytes: _Amount
    rows: Annotated[int, Meta(ge=1)]
    points: Annotated[int, Meta(ge=0)]
    cuts: Annotated[tuple[Cut, ...], Meta(max_length=MOST_CUTS)] = ()
    format: int = FORMAT


class Surroundings(NamedTuple):
    """Where the two halves would run.

    Attributes:
        round_trip_ms: of a message without a body.
        device_slowdown, gateway_slowdown: times slower than the measured machine.
        most_disagreement: that a checkpoint may cause.
    """

    round_trip_ms: float = 0.0
    device_slowdown: float = 1.0
    gateway_slowdown: float = 1.0
    most_disagreement: float = 0.0


class Way(Struct, frozen=True):
    """One way to the full model's answer: a line over seconds per byte.

    Attributes:
        kind: where the model runs; "input" is in the cloud, on the input as it came.
        tensor, form: of a split's checkpoint; "" elsewhere.
        fixed_ms: over a link of endless bandwidth.
        sent_bytes: that cross the link.
    """

    kind: Literal["device", "input", "split"]
    fixed_ms: float
    sent_bytes: float
    tensor: str = ""
    form: str = ""

    def latency_ms(self, bytes_per_s: float) -> float:
        """What a row takes over a link of this bandwidth; what sends nothing needs no link."""
        if not self.sent_bytes:
            return self.fixed_ms
        return self.fixed_ms + (1000 * self.sent_bytes / bytes_per_s if bytes_per_s > 0 else math.inf)


class Stretch(Struct, frozen=True):
    """A way, and between which bandwidths it is the best one."""

    way: Way
    from_bytes_per_s: float
    to_bytes_per_s: float


def ways(splits: Splits, around: Surroundings) -> list[Way]:
    """All that there are: the whole model on either side, and each cut in each form that loses little enough."""
    s, g = around.device_slowdown, around.gateway_slowdown
    whole_ms = splits.prepare_ms + splits.model_ms
    found = [
        Way("device", s * whole_ms, 0.0),
        Way("input", g * whole_ms + around.round_trip_ms, splits.input_bytes),
    ]
    for cut in splits.cuts:
        for form in cut.forms:
            if form.disagreement <= around.most_disagreement:
                device_ms = s * (splits.prepare_ms + cut.head_ms + form.pack_ms)
                gateway_ms = g * (form.unpack_ms + cut.tail_ms)
                fixed_ms = device_ms + gateway_ms + around.round_trip_ms
                found.append(Way("split", fixed_ms, form.sent_bytes, cut.tensor, form.name))
    return found


def best(of: Iterable[Way], bytes_per_s: float) -> Way:
    """The quickest one over a link of this bandwidth; the first of those that are equal.

    Raises:
        ValueError: there is none.
    """
    return min(of, key=lambda way: way.latency_ms(bytes_per_s))


def stretches(of: Sequence[Way]) -> list[Stretch]:
    """Which way is the best at which bandwidth, from the narrowest link to the widest: the lower envelope of the lines.

    Raises:
        ValueError: there is no way.
    """
    # Over x = 1 / B: at the widest link (x = 0) the least fixed time wins, and then only ever what sends less.
    way = min(of, key=lambda way: (way.fixed_ms, way.sent_bytes))
    found, x = [], 0.0
    while True:
        crossings = [
            (max(x, (other.fixed_ms - way.fixed_ms) / (1000 * (way.sent_bytes - other.sent_bytes))), other)
            for other in of
            if other.sent_bytes < way.sent_bytes
        ]
        if not crossings:
            found.append(Stretch(way, 0.0, _inverse(x)))
            return [one for one in reversed(found) if one.from_bytes_per_s < one.to_bytes_per_s]
        at, following = min(crossings, key=lambda crossing: (crossing[0], crossing[1].sent_bytes))
        found.append(Stretch(way, _inverse(at), _inverse(x)))
        way, x = following, at


def _inverse(x: float) -> float:
    return 1 / x if x > 0 else math.inf


def encode(splits: Splits) -> bytes:
    """As JSON."""
    return msgspec.json.format(msgspec.json.encode(splits), indent=1) + b"\n"


def decode(content: bytes, where: str) -> Splits:
    """Reads the document.

    Args:
        content: JSON, at most `LIMIT_BYTES`.
        where: whence it came, for the error.

    Raises:
        ProtocolError: too long, not JSON, something else, or of a newer format.
    """
    return read_json_document(
        content, Splits, where=where, limit_bytes=LIMIT_BYTES, known=FORMAT, fault="does not say how a model splits"
    )
