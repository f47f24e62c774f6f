"""What `spell` writes, `parse_*` reads back, for all steps that a manifest may hold."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from firstline.workbench.step_syntax import parse_postprocess, parse_preprocess, spell
from firstline_core.processing.steps import (
    Anchors,
    BandEnergies,
    BoxRows,
    CenterCrop,
    ClassMap,
    Confidence,
    Crop,
    Decode,
    DecodeAudio,
    DecodeText,
    Detr,
    Detrend,
    Envelope,
    FastestDet,
    Flatten,
    LabelOffset,
    Layout,
    Mel,
    Mono,
    Pad,
    Resample,
    Resize,
    Scale,
    Softmax,
    Ssd,
    Suppress,
    Welch,
    Windows,
    Yolo,
    Yolox,
)

_sides = st.integers(1, 16384)
_numbers = st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=4).map(tuple)
_filters = st.sampled_from(["nearest", "bilinear", "bicubic", "lanczos"])
_before = st.one_of(
    st.builds(Decode, mode=st.sampled_from(["RGB", "BGR", "L"])),
    st.builds(CenterCrop, fraction=st.floats(0, 1, exclude_min=True)),
    st.builds(Resize, width=_sides, height=_sides, filter=_filters),
    st.builds(
        Resize,
        width=_sides,
        height=_sides,
        filter=_filters,
        letterbox=st.sampled_from(["corner", "center"]),
        pad=st.one_of(st.just(UNSET), st.integers(0, 255)),
    ),
    st.builds(Scale, mean=_numbers, std=_numbers),
    st.builds(Layout, to=st.sampled_from(["NHWC", "NCHW"])),
    st.just(Flatten()),
    st.builds(Detrend, kind=st.sampled_from(["linear", "constant"])),
    st.builds(Welch, rate_hz=st.floats(0.5, 1e6), samples=_sides, hop=st.sampled_from([0, 16384])),
    st.builds(BandEnergies, rate_hz=st.integers(1, 1000), edges_hz=st.just((0.0, 0.5, 10.0))),
    st.just(Envelope()),
    st.builds(
        Mel,
        rate_hz=st.just(8000),
        samples=_sides,
        hop=st.just(16384),
        bands=st.integers(1, 512),
        low_hz=st.floats(0, 100),
        high_hz=st.sampled_from([0.0, 4000.0, 3999.5]),
        log=st.booleans(),
        frames=st.sampled_from(["first", "last"]),
    ),
    st.just(DecodeAudio()),
    st.builds(DecodeText, form=st.sampled_from(["", "NFC", "NFKD"]), lower=st.booleans(), strip=st.booleans()),
    st.just(Mono()),
    st.builds(Resample, rate_hz=st.integers(1000, 384_000)),
    st.builds(Crop, samples=_sides, keep=st.sampled_from(["start", "center", "end"])),
    st.builds(Pad, samples=_sides, side=st.sampled_from(["end", "both"])),
    st.builds(Windows, samples=st.just(16384), hop=_sides, combine=st.sampled_from(["mean", "max"])),
)
_shares = st.floats(0, 1)
_names = st.text("aZ09_:", min_size=1)
_after = st.one_of(
    st.just(Softmax()),
    st.builds(Confidence, output=_names),
    st.builds(LabelOffset, offset=_sides),
    st.builds(Yolox, strides=st.lists(_sides, min_size=1).map(tuple)),
    st.just(FastestDet()),
    st.builds(Yolo, objectness=st.booleans(), unit=st.sampled_from(["pixels", "fractions"])),
    st.builds(Detr, logits=_names, boxes=_names, activation=st.sampled_from(["softmax", "sigmoid"])),
    st.just(Ssd()),
    st.builds(Ssd, boxes=_names, classes=_names, scores=_names, count=st.one_of(st.just(""), _names)),
    st.builds(
        Anchors,
        offsets=_names,
        scores=_names,
        activation=st.sampled_from(["sigmoid", "softmax", "none"]),
        strides=st.lists(_sides, min_size=2, max_size=16).map(tuple),
        least=_shares,
        ratios=st.lists(st.floats(0.01, 10), min_size=1).map(tuple),
        lowest=st.sampled_from([0, 3]),
    ),
    st.builds(BoxRows, unit=st.sampled_from(["pixels", "fractions"])),
    st.builds(ClassMap, to=st.lists(st.integers(-1, 100), min_size=1).map(tuple)),
    st.builds(Suppress, score=_shares, iou=_shares, floor=_shares, limit=st.integers(1, 4096)),
)


@given(st.lists(_before, max_size=6).map(tuple))
def test_preprocessing(steps: tuple[Decode, ...]) -> None:
    assert parse_preprocess(spell(steps)) == steps


@given(st.lists(_after, max_size=4).map(tuple))
def test_postprocessing(steps: tuple[Softmax, ...]) -> None:
    assert parse_postprocess(spell(steps)) == steps
