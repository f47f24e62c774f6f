"""What `spell` writes, `parse_*` reads back, for all steps that a manifest may hold."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from firstline.workbench.step_syntax import parse_postprocess, parse_preprocess, spell
from firstline_core.processing.steps import CenterCrop, Decode, Flatten, LabelOffset, Layout, Resize, Scale, Softmax

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
)
_after = st.one_of(st.just(Softmax()), st.builds(LabelOffset, offset=_sides))


@given(st.lists(_before, max_size=6).map(tuple))
def test_preprocessing(steps: tuple[Decode, ...]) -> None:
    assert parse_preprocess(spell(steps)) == steps


@given(st.lists(_after, max_size=4).map(tuple))
def test_postprocessing(steps: tuple[Softmax, ...]) -> None:
    assert parse_postprocess(spell(steps)) == steps
