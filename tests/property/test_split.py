"""Splits: the lower envelope equals the minimum over all ways, and checkpoints decode within their error."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from firstline.workbench.splitting.checkpoint import Checkpoint
from firstline_core.errors import ProtocolError
from firstline_core.planning import split

_MS = st.floats(0, 1e4).map(lambda value: round(value, 3))
_BYTES = st.integers(1, 10**6).map(float)
_WAYS = st.lists(st.builds(split.Way, st.just("split"), _MS, _BYTES, st.text("abc", max_size=3)), max_size=12).flatmap(
    lambda sent: _MS.map(lambda fixed_ms: [split.Way("device", fixed_ms, 0.0), *sent])
)
_FORMS = st.builds(
    split.Form,
    st.sampled_from(["fp32", "fp16", "int8"]),
    _BYTES,
    _BYTES,
    _MS,
    _MS,
    st.floats(0, 1),
    st.none() | st.floats(-1, 1),
)
_SPLITS = st.builds(
    split.Splits,
    bundle=st.just("digits"),
    version=st.integers(1, 9),
    model=st.just("full"),
    model_digest=st.just("a" * 64),
    runtime=st.just("CPUExecutionProvider"),
    threads=st.just(1),
    prepare_ms=_MS,
    model_ms=_MS,
    input_bytes=_BYTES,
    rows=st.just(3),
    points=st.just(3),
    cuts=st.lists(
        st.builds(split.Cut, st.text(max_size=9), st.just((1, 4)), _MS, _MS, st.lists(_FORMS, max_size=3).map(tuple)),
        max_size=3,
    ).map(tuple),
)
_IMAGES = arrays.arrays(
    np.float32,
    st.tuples(st.just(1), st.integers(1, 4), st.integers(1, 5), st.integers(1, 5)),
    elements=st.floats(-1e4, 1e4, width=32),
)


@given(_WAYS, st.floats(1, 1e9))
def test_the_envelope_equals_the_minimum_over_all_ways(of: list[split.Way], bytes_per_s: float) -> None:
    found = split.stretches(of)
    assert found[0].from_bytes_per_s == 0.0
    assert found[-1].to_bytes_per_s == math.inf
    assert all(one.to_bytes_per_s == other.from_bytes_per_s for one, other in pairwise(found))
    [stretch] = [one for one in found if one.from_bytes_per_s <= bytes_per_s < one.to_bytes_per_s]
    quickest_ms = split.best(of, bytes_per_s).latency_ms(bytes_per_s)
    assert stretch.way.latency_ms(bytes_per_s) == pytest.approx(quickest_ms, rel=1e-6, abs=1e-6)


@given(_WAYS)
def test_a_narrower_link_never_sends_more(of: list[split.Way]) -> None:
    sent = [stretch.way.sent_bytes for stretch in split.stretches(of)]
    assert sent == sorted(sent)


@given(_SPLITS, st.builds(split.SplitEnvironment, _MS, st.floats(0.1, 100), st.floats(0.1, 100), st.floats(0, 1)))
def test_predicted_times_are_sums_of_measured_parts(splits: split.Splits, around: split.SplitEnvironment) -> None:
    device, sent, *cut = split.ways(splits, around)
    whole_ms = splits.prepare_ms + splits.model_ms
    assert device.latency_ms(0.0) == device.fixed_ms == pytest.approx(around.device_slowdown * whole_ms)
    assert sent.latency_ms(1000 * splits.input_bytes) == pytest.approx(
        around.gateway_slowdown * whole_ms + around.round_trip_ms + 1
    )
    allowed = [
        (one, form) for one in splits.cuts for form in one.forms if form.disagreement <= around.most_disagreement
    ]
    assert len(cut) == len(allowed)
    for way, (one, form) in zip(cut, allowed, strict=True):
        near_ms = around.device_slowdown * (splits.prepare_ms + one.head_ms + form.pack_ms)
        far_ms = around.gateway_slowdown * (form.unpack_ms + one.tail_ms)
        assert way.fixed_ms == pytest.approx(near_ms + far_ms + around.round_trip_ms)
        assert way.latency_ms(0.0) == math.inf


@given(_SPLITS)
def test_an_encoded_document_is_decoded_equally(splits: split.Splits) -> None:
    assert split.decode(split.encode(splits), "a file") == splits


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"{}", "a file does not say"), (b"\xff", "a file does not say"), (b" " * (split.LIMIT_BYTES + 1), "are read")],
)
def test_other_documents_are_refused(content: bytes, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        split.decode(content, "a file")


@given(_IMAGES)
def test_a_decoded_checkpoint_is_within_its_forms_error(values: np.ndarray) -> None:
    shape = values.shape
    for axis in (None, 1, 3):
        int8 = Checkpoint("int8", shape, axis)
        others = tuple(one for one in range(4) if one != axis)
        step = np.ptp(values.astype(np.float64), axis=others, keepdims=True) / 255
        found = int8.unpack(int8.pack(values))
        # A step is a number of 32 bits: below the smallest normal one there is none to tell values apart by.
        near = 0.51 * step + 1e-6 * np.abs(values).max() + np.finfo(np.float32).tiny
        assert (np.abs(found - values) <= near).all()
    whole, half = Checkpoint("fp32", shape), Checkpoint("fp16", shape)
    assert (whole.unpack(whole.pack(values)) == values).all()
    np.testing.assert_allclose(half.unpack(half.pack(values)), values, rtol=1e-3, atol=1e-4)
