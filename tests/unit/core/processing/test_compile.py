import io
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps
from support.images import encode, images, turned
from support.sample_bundles import IMAGES

from firstline_core.errors import InferenceError, InvalidTensorError, ModelLoadError, PayloadTooLargeError
from firstline_core.processing.compile import check_needs, compile_postprocess, compile_preprocess, softmax
from firstline_core.processing.geometry import GEOMETRY
from firstline_core.processing.standardize import OBSERVED, STANDARDIZATION
from firstline_core.processing.steps import (
    CenterCrop,
    Columns,
    Decode,
    Detrend,
    Flatten,
    Graph,
    InputSpec,
    LabelOffset,
    Layout,
    Observed,
    PreStep,
    Resize,
    Scale,
    Sigmoid,
    Softmax,
    Standardize,
)
from firstline_core.protocol.limits import DEFAULT_DECODING_LIMITS, DecodingLimits
from firstline_core.storage.artefact import Artefact
from firstline_core.types import Tensor

RNG = np.random.default_rng(0)
NUMBERS = InputSpec("x", "FP32", (-1, 4))
GRAPH = Graph(Artefact("graph.onnx", "0" * 64, 1))


def no_graph(step: Graph) -> Any:
    raise AssertionError(step)


def pre(*steps: PreStep, spec: InputSpec = IMAGES, limits: DecodingLimits = DEFAULT_DECODING_LIMITS) -> Any:
    run = compile_preprocess(steps, spec, no_graph, limits).run
    return lambda tensor: run(tensor).rows


def photo(height: int = 10, width: int = 14) -> Any:
    return RNG.integers(0, 256, (height, width, 3), dtype=np.uint8)


def test_a_png_is_decoded_to_its_pixels() -> None:
    pixels = photo()
    np.testing.assert_array_equal(pre(Decode())(images(encode(pixels))), pixels[None])


def test_a_jpeg_is_decoded_as_pillow_does() -> None:
    encoded = encode(photo(), "JPEG")
    expected = np.asarray(Image.open(io.BytesIO(encoded)))
    np.testing.assert_array_equal(pre(Decode())(images(encoded)), expected[None])


def test_rows_keep_their_order() -> None:
    rows = [photo() for _ in range(5)]
    np.testing.assert_array_equal(pre(Decode())(images(*map(encode, rows))), np.stack(rows))


def test_grey_has_one_channel_and_colour_becomes_grey() -> None:
    grey = RNG.integers(0, 256, (4, 5), dtype=np.uint8)
    np.testing.assert_array_equal(pre(Decode("L"))(images(encode(grey))), grey[None, :, :, None])
    colour = photo()
    expected = np.asarray(Image.fromarray(colour).convert("L"))
    np.testing.assert_array_equal(pre(Decode("L"))(images(encode(colour)))[0, :, :, 0], expected)


def test_bgr_reverses_the_channels_of_images_and_pixels() -> None:
    pixels = photo()
    for tensor in (images(encode(pixels)), Tensor("image", pixels[None])):
        np.testing.assert_array_equal(pre(Decode("BGR"))(tensor)[0], pixels[:, :, ::-1])
    np.testing.assert_array_equal(pre(Decode("BGR"))(images(encode(pixels[:, :, 0])))[0], pixels[:, :, :1].repeat(3, 2))


def test_a_letterbox_keeps_the_aspect_ratio() -> None:
    pixels = photo(8, 16)
    found = pre(Decode(), Resize(16, 16, letterbox="center", pad=7))(images(encode(pixels)))[0]
    np.testing.assert_array_equal(found[4:12], pixels)
    assert (found[:4] == 7).all() and (found[12:] == 7).all()
    grey = pre(Decode("L"), Resize(16, 16, letterbox="corner"))(images(encode(pixels[:, :, 0])))[0]
    np.testing.assert_array_equal(grey[:8], pixels[:, :, :1])
    assert not grey[8:].any()


@pytest.mark.parametrize(
    ("mode", "kind"), [("P", "PNG"), ("LA", "PNG"), ("RGBA", "PNG"), ("1", "PNG"), ("CMYK", "JPEG")]
)
def test_other_modes_are_converted(mode: str, kind: str) -> None:
    file = io.BytesIO()
    Image.fromarray(photo()).convert(mode).save(file, kind)
    expected = np.asarray(Image.open(io.BytesIO(file.getvalue())).convert("RGB"))
    np.testing.assert_array_equal(pre(Decode())(images(file.getvalue())), expected[None])


@pytest.mark.parametrize(
    ("step", "low", "high"),
    [
        (Decode("L"), 7000, 9040),
        (Decode("L"), 0, 4080),
        (Decode("L", bits=12), 0, 4095),
        (Decode("L", bits=16), 0, 65535),
    ],
)
def test_16_bits_are_scaled_by_their_range_or_the_declared_depth(step: Decode, low: int, high: int) -> None:
    wide = np.linspace(low, high, 256).round().astype(np.uint16).reshape(16, 16)
    found = pre(step)(images(encode(wide)))[0, :, :, 0]
    np.testing.assert_allclose(found, np.arange(256).reshape(16, 16), atol=1)


def test_a_value_over_the_declared_depth_is_refused() -> None:
    with pytest.raises(InvalidTensorError, match="the value 4096, but the bundle declares images of 12 bits"):
        pre(Decode("L", bits=12))(images(encode(np.full((4, 4), 4096, np.uint16))))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_exif_orientation_is_applied(kind: str, orientation: int) -> None:
    encoded = turned(photo(10, 14), orientation, kind)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(encoded))).convert("RGB")
    np.testing.assert_array_equal(pre(Decode())(images(encoded))[0], np.asarray(expected))


@pytest.mark.parametrize(("background", "expected"), [((0, 0, 0), [0, 0, 0]), ((255, 0, 51), [128, 0, 26])])
@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparency_shows_the_background(mode: str, background: tuple[int, int, int], expected: list[int]) -> None:
    ink = np.zeros((4, 4, 4), np.uint8)
    ink[:, :, 3] = 127
    file = io.BytesIO()
    Image.fromarray(ink).convert(mode).save(file, "PNG")
    found = pre(Decode(background=background))(images(file.getvalue()))
    np.testing.assert_allclose(found[0, 0, 0], expected, atol=1)


GOOD_PNG, GOOD_JPEG = encode(photo()), encode(photo(), "JPEG")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (b"", "empty"),
        (GOOD_PNG[:60], "is a truncated PNG"),
        (GOOD_PNG[:8], "is a broken PNG of 8 bytes"),
        (GOOD_JPEG[:-40], "is a broken JPEG"),
        (GOOD_JPEG[:3], "is a broken JPEG of 3 bytes"),
        ("text", "is of type str; encoded images are bytes"),
    ],
)
def test_garbage_names_its_row(bad: Any, message: str) -> None:
    with pytest.raises(
        InvalidTensorError, match=f"Row 1 of input 'image' {message}|Row 1 of input 'image' is {message}"
    ):
        pre(Decode())(images(GOOD_PNG, bad))


def test_large_images_are_limited_before_they_are_resized(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firstline_core.processing.images.SOURCE_PIXELS_LIMIT", 1000)
    run = pre(Decode(), Resize(3, 3), limits=DecodingLimits(pixels=1000))
    with pytest.raises(PayloadTooLargeError, match="more than 1000 pixels by row 7"):
        run(images(*[GOOD_PNG] * 100))
    pixels = np.zeros((8, 14, 10, 3), np.uint8)
    with pytest.raises(PayloadTooLargeError, match="more than 1000 pixels by row 7"):
        run(Tensor("image", pixels))
    assert run(Tensor("image", pixels[:7])).shape == (7, 3, 3, 3)


def test_many_small_files_cannot_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firstline_core.processing.images.PIXELS_LIMIT", 1000)
    with pytest.raises(PayloadTooLargeError, match="more than 1000 pixels by row 7"):
        pre(Decode())(images(*[GOOD_PNG] * 100))
    assert pre(Decode(), Resize(3, 3))(images(*[GOOD_PNG] * 100)).shape == (100, 3, 3, 3)


def test_rows_of_different_sizes_need_a_resize() -> None:
    with pytest.raises(InvalidTensorError, match="Row 2 of input 'image' has 14x11 pixels and row 0 has 14x10"):
        pre(Decode())(images(encode(photo()), encode(photo()), encode(photo(11, 14))))
    assert pre(Decode(), Resize(6, 5))(images(encode(photo()), encode(photo(11, 14)))).shape == (2, 5, 6, 3)


@pytest.mark.parametrize(("fraction", "side"), [(1.0, 10), (0.875, 9), (0.5, 5), (0.01, 1)])
def test_the_central_square_of_the_short_side(fraction: float, side: int) -> None:
    pixels = photo(10, 15)
    left, top = (15 - side) // 2, (10 - side) // 2
    found = pre(Decode(), CenterCrop(fraction))(images(encode(pixels)))
    np.testing.assert_array_equal(found[0], pixels[top : top + side, left : left + side])


@pytest.mark.parametrize("name", ["nearest", "bilinear", "bicubic", "lanczos"])
def test_resizes_as_pillow_does(name: Any) -> None:
    pixels = photo(40, 30)
    expected = Image.fromarray(pixels).resize((7, 5), Image.Resampling[name.upper()])
    np.testing.assert_array_equal(pre(Decode(), Resize(7, 5, name))(images(encode(pixels)))[0], np.asarray(expected))


def test_steps_run_in_the_order_declared() -> None:
    pixels = photo(40, 30)
    expected = Image.fromarray(pixels).crop((2, 7, 28, 33)).resize((8, 8), Image.Resampling.BILINEAR)
    found = pre(Decode(), CenterCrop(0.875), Resize(8, 8))(images(encode(pixels)))
    np.testing.assert_array_equal(found[0], np.asarray(expected))


def test_decoded_pixels_pass_and_give_the_same() -> None:
    rows = np.stack([photo(), photo()])
    run = pre(Decode(), CenterCrop(0.8), Resize(5, 5), Scale())
    np.testing.assert_array_equal(run(Tensor("image", rows)), run(images(*map(encode, rows))))
    untouched = pre(Decode())(Tensor("image", rows))
    assert untouched is rows


def test_decoded_pixels_are_converted_to_the_mode() -> None:
    rows = photo()[None]
    assert pre(Decode("L"))(Tensor("image", rows)).shape == (1, 10, 14, 1)
    assert pre(Decode("RGB"))(Tensor("image", rows[..., :1])).shape == (1, 10, 14, 3)
    with pytest.raises(InvalidTensorError, match=r"shape \[1, 10, 14, 2\]; pixels come as UINT8"):
        pre(Decode())(Tensor("image", rows[..., :2]))


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (Scale(), lambda x: x / 255),
        (Scale((127.5,), (127.5,)), lambda x: (x - 127.5) / 127.5),
        (Scale((1.0, 2.0, 3.0), (4.0,)), lambda x: (x - np.array([1, 2, 3])) / 4),
        (Scale((0.0,), (4.0, 5.0, 6.0)), lambda x: x / np.array([4, 5, 6])),
    ],
)
def test_scale(step: Scale, expected: Any) -> None:
    pixels = photo()
    found = pre(Decode(), step)(images(encode(pixels)))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[0], expected(pixels.astype(np.float64)), rtol=1e-6, atol=1e-6)


def test_layout_and_flatten() -> None:
    pixels = photo()
    first = pre(Decode(), Layout("NCHW"))(images(encode(pixels)))
    np.testing.assert_array_equal(first[0], pixels.transpose(2, 0, 1))
    assert first.flags.c_contiguous
    np.testing.assert_array_equal(pre(Decode(), Layout("NHWC"))(images(encode(pixels)))[0], pixels)
    np.testing.assert_array_equal(pre(Decode(), Flatten())(images(encode(pixels)))[0], pixels.reshape(-1))


def test_the_callers_array_is_not_changed() -> None:
    x = np.array([[1, 2, 3, 4]], np.float32)
    original = x.copy()
    np.testing.assert_allclose(pre(Scale((1.0,), (2.0,)), spec=NUMBERS)(Tensor("x", x)), [[0, 0.5, 1, 1.5]])
    np.testing.assert_array_equal(x, original)
    assert pre(spec=NUMBERS)(Tensor("x", x)) is x


def test_a_graph_is_a_step() -> None:
    run = compile_preprocess((Scale((0.0,), (2.0,)), GRAPH), NUMBERS, lambda _: lambda x: x + 1).run
    np.testing.assert_allclose(run(Tensor("x", np.full((1, 4), 4, np.float32))).rows, np.full((1, 4), 3.0))


@pytest.mark.parametrize(
    ("steps", "spec", "message"),
    [
        ((), IMAGES, "decode comes first"),
        ((Decode(), Decode()), IMAGES, "decode must be the first step"),
        ((Decode(), Scale(), Resize(4, 4)), IMAGES, "come before scale"),
        ((Decode(),), NUMBERS, "image steps need an image or UINT8"),
        ((Decode(), Scale((0.0,), (0.0,))), IMAGES, "no std of 0"),
        ((Decode(), Scale((), (1.0,))), IMAGES, "0 means"),
        ((Decode(), Scale((1.0, 2.0), (1.0, 2.0, 3.0))), IMAGES, "2 means and 3 stds"),
        ((Decode("L"), Scale((1.0, 2.0, 3.0))), IMAGES, "3 channels, but the input has 1"),
        ((Decode(), Layout("NCHW"), Scale((1.0, 2.0, 3.0))), IMAGES, "by channel comes before layout"),
        ((Decode("L"), Detrend()), IMAGES, "signals take numbers that are no image"),
        ((Scale(), Standardize()), NUMBERS, "standardize comes first, once"),
        ((Standardize(), Standardize()), NUMBERS, "standardize comes first, once"),
        ((Scale(), Observed()), NUMBERS, "observed comes first, once"),
        ((Observed(), Observed()), NUMBERS, "observed comes first, once"),
        ((Standardize(), Observed()), NUMBERS, "observed comes first, once"),
    ],
)
def test_steps_that_make_no_sense_are_refused_at_load(steps: Any, spec: InputSpec, message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        pre(*steps, spec=spec)


def test_rows_are_standardised_one_by_one() -> None:
    steps = (Standardize(), Scale((0.0,), (2.0,)))
    x = np.array([[6e7, 6e7 + 200, 6e7 + 400, 6e7 + 600], [7, 7, 7, 7]], np.float64)
    found = compile_preprocess(steps, InputSpec("x", "FP64", (-1, 4)), no_graph).run(Tensor("x", x))
    deviation = 5**0.5 * 100
    np.testing.assert_allclose(
        found.rows, [[-150 / deviation, -50 / deviation, 50 / deviation, 150 / deviation], [0] * 4]
    )
    assert found.rows.dtype == np.float32
    np.testing.assert_allclose(found.side[STANDARDIZATION], [[6e7 + 300, deviation], [7, 1]])  # a flat row is shifted


def test_observed_numbers_are_in_the_units_of_the_rows() -> None:
    x = np.array([[6e7, 6e7 + 200, 6e7 + 400, 6e7 + 600, 6e7 + 300], [7, 7, 7, 7, 9]], np.float64)
    spec = InputSpec("x", "FP64", (-1, 5))
    plain = compile_preprocess((Observed(2),), spec, no_graph).run(Tensor("x", x))
    assert (plain.rows.tolist(), plain.side[OBSERVED].tolist()) == (x[:, :3].tolist(), x[:, 3:].tolist())
    standard = compile_preprocess((Observed(), Standardize()), spec, no_graph).run(Tensor("x", x))
    assert standard.rows.shape == (2, 4)
    assert standard.side[OBSERVED].tolist() == [[0], [2]]
    with pytest.raises(InvalidTensorError, match=r"rows of shape \[5\]; the last 5 numbers"):
        compile_preprocess((Observed(5),), spec, no_graph).run(Tensor("x", x))


@pytest.mark.parametrize("needs", [GEOMETRY, STANDARDIZATION, OBSERVED])
def test_a_missing_step_is_named(needs: str) -> None:
    with pytest.raises(ModelLoadError, match=r"so it needs decode|need standardize|needs observed"):
        check_needs([compile_preprocess((), NUMBERS, no_graph)], (needs,))


def test_softmax_is_stable_and_right() -> None:
    found = softmax(np.array([[1000, 1000, -1000], [0, np.log(3), -np.inf]], np.float32))
    np.testing.assert_allclose(found, [[0.5, 0.5, 0], [0.25, 0.75, 0]], rtol=1e-6)


@pytest.mark.parametrize("classes", [1, 2, 7, 8, 9, 10, 32, 33, 129, 1000])
def test_softmax_of_a_row_does_not_depend_on_others(classes: int) -> None:
    logits = (RNG.normal(size=(50, classes)) * 5).astype(np.float32)
    together = softmax(logits)
    for row, found in zip(logits, together, strict=True):
        np.testing.assert_array_equal(softmax(row[None])[0], found)


def test_softmax_of_nan_is_nan() -> None:
    for row in ([np.nan, 1.0], [1.0, np.nan], [1.0, np.nan, 2.0]):
        assert np.isnan(softmax(np.array([row], np.float32))).all()


def test_a_label_offset_leaves_a_column() -> None:
    run = compile_postprocess((LabelOffset(2), Softmax()), no_graph)
    assert run(np.zeros((1, 3), np.float32)).tolist() == [[1]]
    with pytest.raises(InferenceError, match="label_offset drops 2 columns, but the output has 2"):
        run(np.zeros((1, 2), np.float32))


def test_post_steps() -> None:
    logits = RNG.normal(size=(4, 6)).astype(np.float64)
    run = compile_postprocess((Softmax(), LabelOffset(2)), no_graph)
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    found = run(logits.reshape(4, 1, 1, 6))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected[:, 2:], rtol=1e-5)
    np.testing.assert_allclose(
        compile_postprocess((Sigmoid(), Columns((2, 0))), no_graph)(logits),
        1 / (1 + np.exp(-logits[:, [2, 0]])),
        rtol=1e-5,
    )
    doubled = compile_postprocess((GRAPH,), lambda _: lambda x: x.astype(np.float64) * 2)(logits)
    assert doubled.dtype == np.float32
    np.testing.assert_allclose(doubled, logits * 2, rtol=1e-6)
