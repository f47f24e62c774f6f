"""The document about a full model cut in two: head on the device, tail in the cloud, a checkpoint sent between them.

With B the link's bytes per second, the full model's answer takes

    on the device       s (prepare + model)
    sending the input   g (prepare + model) + round trip + input / B
    split               s (prepare + head + pack) + g (unpack + tail) + round trip + checkpoint / B

where s and g are the slowdowns of device and gateway over the measured machine. This is the sum that Neurosurgeon
minimises over the layers of a network (Kang et al., "Neurosurgeon: Collaborative Intelligence Between the Cloud and
Mobile Edge", ASPLOS 2017, https://doi.org/10.1145/3037697.3037698, algorithm 1), plus a round trip. Each way is a line
over 1 / B, so the fastest way by bandwidth is the exact lower envelope of a few lines.

A network that was not made for it seldom gains from a cut: few have a bottleneck that is early and narrow; early
tensors are larger than a compressed image, and late ones leave the cloud little to do
(Matsubara, Levorato and Restuccia, "Split Computing and Early Exiting for Deep Learning Applications: Survey and
Research Challenges", ACM Computing Surveys 55(5), 2022, https://doi.org/10.1145/3527155). So it is measured first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

from firstline_core.storage.structs import FORMAT, read_json_document
from firstline_core.types import Name, Sha256, Share

DOCUMENT = "split.json"
"""Name of the document's file, in a bundle or in the folder of the halves."""
LIMIT_BYTES = 1024 * 1024
MOST_CUTS = 64

_Text = Annotated[str, Meta(max_length=500)]
_Amount = Annotated[float, Meta(ge=0, le=1e12)]

FormName = Literal["fp32", "fp16", "int8"]
"""fp32: unchanged. fp16: halved. int8: 256 steps by channel and row."""


class Form(Struct, frozen=True):
    """One encoding of a checkpoint.

    Attributes:
        raw_bytes: of a row's numbers.
        sent_bytes: of the same, compressed; mean over rows.
        pack_ms, unpack_ms: median, on the measured machine.
        disagreement: share of rows for which the tail gives another class than the whole model.
        accuracy_loss: accuracy of the whole model less that through the checkpoint; None without labels.
    """

    name: FormName
    raw_bytes: _Amount
    sent_bytes: _Amount
    pack_ms: _Amount
    unpack_ms: _Amount
    disagreement: Share
    accuracy_loss: Annotated[float, Meta(ge=-1, le=1)] | None = None


class Cut(Struct, frozen=True):
    """One place to cut.

    Attributes:
        tensor: the only tensor that crosses it.
        shape: of the tensor, of one row.
        head_ms, tail_ms: median of one row, on the measured machine.
    """

    tensor: _Text
    shape: tuple[int, ...]
    head_ms: _Amount
    tail_ms: _Amount
    forms: Annotated[tuple[Form, ...], Meta(max_length=8)] = ()


class Splits(Struct, frozen=True):
    """The measured cuts of one full model.

    Attributes:
        model_digest: of the model and its processing, `Model.digest`; the cuts are valid for no other one.
        prepare_ms: decoding and preprocessing a row, median.
        model_ms: the whole model, with its postprocessing, median.
        input_bytes: of an encoded input, mean.
        rows: number of measured rows.
        points: number of places that only one tensor crosses; `cuts` are the promising ones.
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


class SplitEnvironment(NamedTuple):
    """The environment of the two halves.

    Attributes:
        round_trip_ms: of a message without a body.
        device_slowdown, gateway_slowdown: time over that of the measured machine.
        most_disagreement: largest disagreement that a checkpoint may cause.
    """

    round_trip_ms: float = 0.0
    device_slowdown: float = 1.0
    gateway_slowdown: float = 1.0
    most_disagreement: float = 0.0


class Way(Struct, frozen=True):
    """One way to the full model's answer: a line over seconds per byte.

    Attributes:
        kind: where the model runs; "input" is in the cloud, on the encoded input.
        tensor, form: of a split's checkpoint; "" for other kinds.
        fixed_ms: time over a link of infinite bandwidth.
        sent_bytes: bytes that cross the link.
    """

    kind: Literal["device", "input", "split"]
    fixed_ms: float
    sent_bytes: float
    tensor: str = ""
    form: str = ""

    def latency_ms(self, bytes_per_s: float) -> float:
        """Returns the time of a row over a link of this bandwidth."""
        if not self.sent_bytes:
            return self.fixed_ms
        return self.fixed_ms + (1000 * self.sent_bytes / bytes_per_s if bytes_per_s > 0 else math.inf)


class Stretch(Struct, frozen=True):
    """A way, and the bandwidths between which it is the fastest."""

    way: Way
    from_bytes_per_s: float
    to_bytes_per_s: float


def ways(splits: Splits, around: SplitEnvironment) -> list[Way]:
    """Returns all ways: the whole model on either side, and each cut in each form with little enough disagreement."""
    s, g = around.device_slowdown, around.gateway_slowdown
    whole_ms = splits.prepare_ms + splits.model_ms
    found = [Way("device", s * whole_ms, 0.0), Way("input", g * whole_ms + around.round_trip_ms, splits.input_bytes)]
    for cut in splits.cuts:
        for form in cut.forms:
            if form.disagreement <= around.most_disagreement:
                device_ms = s * (splits.prepare_ms + cut.head_ms + form.pack_ms)
                gateway_ms = g * (form.unpack_ms + cut.tail_ms)
                fixed_ms = device_ms + gateway_ms + around.round_trip_ms
                found.append(Way("split", fixed_ms, form.sent_bytes, cut.tensor, form.name))
    return found


def best(of: Iterable[Way], bytes_per_s: float) -> Way:
    """Returns the fastest way over a link of this bandwidth; the first of equal ones.

    Raises:
        ValueError: there is none.
    """
    return min(of, key=lambda way: way.latency_ms(bytes_per_s))


def stretches(of: Sequence[Way]) -> list[Stretch]:
    """Returns the fastest way by bandwidth, from the narrowest link to the widest: the lower envelope of the lines.

    Raises:
        ValueError: there is no way.
    """
    # Over x = 1 / B: the smallest fixed time is the fastest at x = 0; from there only ways that send less follow.
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
    """Returns the document as JSON."""
    return msgspec.json.format(msgspec.json.encode(splits), indent=1) + b"\n"


def decode(content: bytes, where: str) -> Splits:
    """Reads the document.

    Args:
        content: JSON, at most `LIMIT_BYTES`.
        where: its source, for the error.

    Raises:
        ProtocolError: too long, not JSON, something else, or of a newer format.
    """
    return read_json_document(content, Splits, where, LIMIT_BYTES, "does not say how a model splits")
