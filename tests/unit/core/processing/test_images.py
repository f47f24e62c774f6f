import base64
import struct
import zlib
from functools import cache

import numpy as np
import pytest
from msgspec import UNSET, UnsetType
from msgspec.structs import replace
from support.images import encode, images, png_chunk, raw_png

from firstline_core.errors import FirstlineError, InvalidTensorError, PayloadTooLargeError
from firstline_core.processing.cost import DecodingCost
from firstline_core.processing.image_header import ImageHeader, check_limits, read_header
from firstline_core.processing.images import ImageProcessing, decode
from firstline_core.processing.steps import Decode, Resize
from firstline_core.protocol.limits import DEFAULT_DECODING_LIMITS, DecodingLimits


def encoded(kind: str, side: int = 64, **options: object) -> bytes:
    return encode(np.random.default_rng(0).integers(0, 256, (side, side, 3), np.uint8), kind, **options)


def segment(marker: int, content: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(content) + 2) + content


JPEG, PROGRESSIVE, PNG = encoded("JPEG"), encoded("JPEG", progressive=True), encoded("PNG")
LAST_SCAN = PROGRESSIVE[PROGRESSIVE.rindex(b"\xff\xda") : -2]
FILL = b"\xff" * 10_000

DEAR = {
    "segments": JPEG[:2] + segment(0xE5, b"x") * 10_000 + JPEG[2:],
    "scans": PROGRESSIVE[:-2] + LAST_SCAN * 100 + PROGRESSIVE[-2:],
    "an end inside a comment, then scans": PROGRESSIVE[:-2]
    + segment(0xFE, b"\xff\xd9")
    + LAST_SCAN * 100
    + PROGRESSIVE[-2:],
    "junk between segments": JPEG[:2] + segment(0xE5, b"x") + b"\0" * 10_000 + JPEG[2:],
    "padding": JPEG[:2] + b"\xff" * 10_000 + JPEG[2:],
    "padding in the only scan": JPEG[:-2] + FILL + JPEG[-2:],
    "padding in the only scan, without an end": JPEG[:-2] + FILL,
    "padding in a later scan": PROGRESSIVE[:-2] + FILL + PROGRESSIVE[-2:],
    "padding after a comment after the scan": JPEG[:-2] + segment(0xFE, b"x") + FILL + JPEG[-2:],
    "padding after a comment at the end of the file": JPEG[:-2] + segment(0xFE, b"x") + FILL,
    "what Pillow reads byte by byte": JPEG[:2] + b"\xff\xf0" * 10_000 + JPEG[2:],
    "EXIF by the megabyte": JPEG[:2] + segment(0xE1, b"Exif\0\0" + bytes(65_000)) * 300 + JPEG[2:],
    "EXIF in small parts": JPEG[:2] + segment(0xE1, b"Exif\0\0" + bytes(4_000)) * 300 + JPEG[2:],
    "chunks": PNG[:33] + png_chunk(b"abCd", b"") * 10_000 + PNG[33:],
    "text chunks": PNG[:33] + png_chunk(b"tEXt", b"k\0v") * 10_000 + PNG[33:],
    "chunks after the picture": PNG[:-12] + png_chunk(b"IDAT", b"") * 10_000 + PNG[-12:],
}
BOMBS = {
    "compressed text": lambda: png_chunk(b"zTXt", b"k\0\0" + bomb()),
    "compressed international text": lambda: png_chunk(b"iTXt", b"k\0\1\0\0\0" + bomb()),
    "colour profile": lambda: png_chunk(b"iCCP", b"k\0\0" + bomb()),
    "many texts": lambda: b"".join(png_chunk(b"zTXt", b"%d\0\0" % number + bomb(1_000_000)) for number in range(70)),
}


@cache  # not when the tests are collected, which each worker does
def bomb(inflated_bytes: int = 100_000_000) -> bytes:
    return zlib.compress(bytes(inflated_bytes), 9)


@pytest.mark.parametrize("name", DEAR)
def test_costly_images_are_refused_before_decoding(name: str) -> None:
    with pytest.raises(PayloadTooLargeError, match=r"Row 0 is a (JPEG|PNG) .*which takes too long to read"):
        read_header(DEAR[name], "Row 0")


@pytest.mark.parametrize("name", BOMBS)
def test_metadata_that_inflates_is_refused(name: str) -> None:
    with pytest.raises(FirstlineError, match="Row 0 is a broken PNG"):
        decode(PNG[:33] + BOMBS[name]() + PNG[33:], Decode(), "Row 0")


@pytest.mark.parametrize("options", [{}, {"quality": 5}, {"progressive": True}, {"restart_marker_blocks": 1}])
def test_images_of_common_encoders_are_decoded(options: dict[str, object]) -> None:
    plain = encoded("JPEG", **options)
    assert read_header(plain, "Row 0").pixels == 64 * 64
    profiled = plain[:2] + segment(0xE2, bytes(65_000)) * 100 + plain[2:]
    assert read_header(profiled, "Row 0").pixels == 64 * 64


def test_the_cost_counts_the_bytes_of_the_file() -> None:
    cost = DecodingCost((ImageProcessing(Decode(), ()).check_and_measure(images(PNG, JPEG)),))
    assert cost.encoded_bytes == len(PNG) + len(JPEG)


def test_padding_between_segments_is_skipped() -> None:
    padded = JPEG[:2] + b"\xff" * 500 + segment(0xE5, b"x") + b"\0" * 500 + JPEG[2:]
    assert read_header(padded, "Row 0").pixels == 64 * 64
    assert decode(padded, Decode(), "Row 0").size == (64, 64)


def test_large_pictures_in_many_scans_are_refused() -> None:
    twelve, nineteen = (ImageHeader("JPEG", width, width * 3 // 4, 3, scans=26) for width in (3500, 5000))
    check_limits(twelve, DEFAULT_DECODING_LIMITS, "Row 0")
    with pytest.raises(PayloadTooLargeError, match=r"in 26 scans, which takes too long to read"):
        check_limits(nineteen, DEFAULT_DECODING_LIMITS, "Row 0")


def test_scans_after_a_complete_one_are_not_decoded() -> None:
    scan = JPEG[JPEG.index(b"\xff\xda") : -2]
    repeated = JPEG[:-2] + scan * 100 + JPEG[-2:]
    assert read_header(repeated, "Row 0").scans == 1
    with pytest.raises(InvalidTensorError, match="Row 0 is a broken JPEG"):
        decode(repeated, Decode(), "Row 0")


def test_a_second_picture_after_the_end_does_not_count() -> None:
    assert read_header(JPEG + JPEG * 200, "Row 0").scans == 1
    assert read_header(JPEG + FILL + JPEG, "Row 0").scans == 1


@pytest.mark.parametrize("side", [1, 64, 1000])
def test_png_images_of_common_encoders_are_decoded(side: int) -> None:
    assert read_header(encoded("PNG", side), "Row 0").pixels == side * side


@pytest.mark.parametrize("content", [JPEG, PROGRESSIVE, PNG])
def test_truncated_images_are_refused_without_other_errors(content: bytes) -> None:
    for end in range(3, len(content), 97):
        with pytest.raises(InvalidTensorError):
            decode(content[:end], Decode(), "Row 0")


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_the_transparent_value_of_greyscale_is_that_of_the_file(bits: int) -> None:
    """Two pixels: the value 0, and the transparent one."""
    key = 2**bits - 1
    row = int(f"{0:0{bits}b}{key:0{bits}b}".ljust(8 if bits < 8 else 16, "0"), 2)
    data = b"\0" + row.to_bytes(1 if bits < 8 else 2, "big")
    transparent = png_chunk(b"tRNS", struct.pack(">H", key))
    content = raw_png(2, 1, bits=bits, extra=transparent, data=data)
    found = np.asarray(decode(content, Decode(background=(10, 20, 30)), "Row 0"))
    assert found.tolist() == [[[0, 0, 0], [10, 20, 30]]]


def wide_grey(values: list[int], alphas: list[int] | None = None, key: int | None = None) -> bytes:
    """A PNG of one row with 16 bits, of which one value may be transparent."""
    pairs = list(values) if alphas is None else [each for pair in zip(values, alphas, strict=True) for each in pair]
    transparent = b"" if key is None else png_chunk(b"tRNS", struct.pack(">H", key))
    data = b"\0" + struct.pack(f">{len(pairs)}H", *pairs)
    return raw_png(len(values), 1, 0 if alphas is None else 4, 16, extra=transparent, data=data)


@pytest.mark.parametrize("bits", [UNSET, 12, 16])
@pytest.mark.parametrize("values", [[1000, 1255, 1510, 2020], [0, 7, 100, 255], [3, 3, 3, 3], [0, 17, 2048, 4095]])
def test_wide_greyscale_with_alpha_is_scaled_like_that_without(values: list[int], bits: int | UnsetType) -> None:
    step = Decode("L", background=(200, 200, 200), bits=bits)
    expected = np.asarray(decode(wide_grey(values), step, "Row 0"))
    np.testing.assert_array_equal(decode(wide_grey(values, [65_535] * 4), step, "Row 0"), expected)
    half_seen = decode(wide_grey(values, [65_535, 65_535, 0, 0]), step, "Row 0")
    assert np.asarray(half_seen).tolist() == [[*expected[0, :2].tolist(), 200, 200]]
    with_key = np.asarray(decode(wide_grey(values, key=values[2]), step, "Row 0"))
    assert with_key.tolist() == np.where(np.array([values]) == values[2], 200, expected).tolist()


@pytest.mark.parametrize("height", [1, 64, 65, 200])
def test_wide_greyscale_is_scaled_by_its_whole_range(height: int) -> None:
    values = np.linspace(1000, 3000, 3 * height).round().astype(np.uint16).reshape(height, 3)
    found = np.asarray(decode(encode(values), Decode("L"), "Row 0"))
    np.testing.assert_array_equal(found, np.floor((values - 1000.0) * (255 / 2000) + 0.5))


def test_wide_greyscale_with_alpha_is_checked_like_that_without() -> None:
    with pytest.raises(InvalidTensorError, match="has the value 4096, but the bundle declares images of 12 bits"):
        decode(wide_grey([4096, 0], [65_535, 0]), Decode(bits=12), "Row 0")
    damaged = bytearray(wide_grey([5, 6], [1, 1]))
    damaged[29] ^= 1  # the checksum of the header
    with pytest.raises(InvalidTensorError, match="broken PNG"):
        decode(bytes(damaged), Decode(), "Row 0")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (raw_png(1, 40_000_000), "Row 0 of input 'image' has 1x40000000 pixels; a side has at most 65500"),
        (raw_png(65_501, 1), "a side has at most 65500"),
        (raw_png(8001, 8000), "8001x8000 pixels; at most 64000000"),
        (raw_png(8000, 8000, 6), "8000x8000 pixels, which take 51.* bytes of memory; at most 268435456"),
        (raw_png(65_500, 900, 6, 16), "bytes of memory; at most 268435456"),
    ],
)
def test_declared_sizes_over_a_limit_are_refused(content: bytes, message: str) -> None:
    with pytest.raises(PayloadTooLargeError, match=message):
        ImageProcessing(Decode(), (Resize(224, 224),)).check_and_measure(images(content))


def test_the_largest_photo_within_the_limits_costs_as_much_as_allowed() -> None:
    content = JPEG[: JPEG.index(b"\xff\xc0")] + segment(0xC0, struct.pack(">BHHB", 8, 8000, 8000, 3) + bytes(9))
    cost = DecodingCost((ImageProcessing(Decode(), (Resize(224, 224),)).check_and_measure(images(content)),))
    assert cost.pixels == 64_000_000
    assert 256_000_000 < cost.memory_bytes <= 256 << 20


def test_a_larger_limit_of_one_image_replaces_that_of_all_rows() -> None:
    larger, fewer = (ImageProcessing(Decode("L"), (Resize(8, 8),), DecodingLimits(most)) for most in (10**9, 10**8))
    content = raw_png(16_000, 12_500)
    assert DecodingCost((larger.check_and_measure(images(content)),)).pixels == 200_000_000
    with pytest.raises(PayloadTooLargeError, match="at most 100000000 are decoded"):
        fewer.check_and_measure(images(content))
    with pytest.raises(PayloadTooLargeError, match="more than 160000000 pixels by row 1"):
        fewer.check_and_measure(images(raw_png(9000, 9000), raw_png(9000, 9000)))


def test_headers_that_were_read_are_not_read_again() -> None:
    processing = ImageProcessing(Decode(), ())
    tensor = images(PNG, JPEG, PNG)
    costs = processing.check_and_measure(tensor)
    np.testing.assert_array_equal(processing.run(tensor, costs), processing.run(tensor))
    turned = costs[0]._replace(header=replace(costs[0].header, orientation=3))
    found = processing.run(images(PNG, JPEG), (turned, costs[1]))
    np.testing.assert_array_equal(found[0], processing.run(images(PNG))[0][::-1, ::-1])


def test_rows_that_are_done_count_while_others_are_processed() -> None:
    costs = ImageProcessing(Decode("L"), (Resize(100, 100),), later_bytes=8).check_and_measure(images(PNG, JPEG, PNG))
    cost, largest = DecodingCost((costs,)), max(image.working_bytes for image in costs)
    assert cost.memory_bytes == largest + 3 * 10 * 100 * 100
    assert cost.take([2]).memory_bytes == costs[2].working_bytes
    assert cost.take([2, 0]).pixels == 2 * 64 * 64


def test_two_sizes_in_one_file_are_refused() -> None:
    twice = PNG[:8] + png_chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0)) + PNG[8:]
    with pytest.raises(InvalidTensorError, match="declares two sizes"):
        decode(twice, Decode(), "Row 0")


@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize("bits", [12, 16])
def test_jpeg_of_more_than_8_bits_is_refused(bits: int, channels: int) -> None:
    frame = segment(0xC0, struct.pack(">BHHB", bits, 64, 64, channels) + bytes(3 * channels))
    with pytest.raises(InvalidTensorError, match=f"Row 0 is a JPEG of {bits} bits a channel"):
        decode(JPEG[: JPEG.index(b"\xff\xc0")] + frame + JPEG[JPEG.index(b"\xff\xc4") :], Decode(), "Row 0")


@pytest.mark.parametrize(("interlace", "whole_bytes"), [(0, 16 * 17), (1, 286)])
def test_compressed_data_that_ends_early_is_truncated(interlace: int, whole_bytes: int) -> None:
    whole = raw_png(16, 16, data=bytes(whole_bytes), interlace=interlace)
    assert decode(whole, Decode("L"), "Row 0").size == (16, 16)
    for data_bytes in (0, 17, whole_bytes // 2, whole_bytes - 17, whole_bytes - 1):
        content = raw_png(16, 16, data=bytes(data_bytes), interlace=interlace)
        with pytest.raises(InvalidTensorError, match=r"truncated PNG|broken PNG"):
            decode(content, Decode("L"), "Row 0")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (PNG[:33] + png_chunk(b"acTL", bytes(8)) + PNG[33:], "is an animated PNG; send one still image a row"),
        (PNG.replace(b"\r", b"").replace(b"\n", b""), "is neither .* line breaks were removed, as `curl -d` does"),
        (JPEG.replace(b"\r", b"").replace(b"\n", b""), "is a broken JPEG .*no line break.* `curl --data-binary @FILE`"),
        (base64.b64encode(PNG), "is neither JPEG nor PNG, but text in base64; send the bytes"),
        (b"data:image/png;base64," + base64.b64encode(PNG), "is neither JPEG nor PNG, but text in base64"),
    ],
)
def test_the_refusal_says_what_the_file_is(content: bytes, message: str) -> None:
    with pytest.raises(InvalidTensorError, match=f"Row 0 {message}"):
        decode(content, Decode(), "Row 0")


def test_exif_entries_that_refer_to_the_same_data_are_refused() -> None:
    entry = struct.pack("<HHII", 0x010E, 2, 60_000, 8)
    exif = b"Exif\0\0II*\0" + struct.pack("<IH", 8, 4000) + entry * 4000
    with pytest.raises(PayloadTooLargeError, match="EXIF entries that refer to the same data"):
        read_header(JPEG[:2] + segment(0xE1, exif) + JPEG[2:], "Row 0")


def test_orientation_after_the_picture_does_not_count() -> None:
    exif = segment(0xE1, b"Exif\0\0II*\0" + struct.pack("<IHHHIII", 8, 1, 0x0112, 3, 1, 6, 0))
    assert read_header(JPEG[:2] + exif + JPEG[2:], "Row 0").orientation == 6
    assert read_header(JPEG[:-2] + exif + JPEG[-2:], "Row 0").orientation == 1


@pytest.mark.parametrize("content", [JPEG, PROGRESSIVE, PNG])
def test_the_size_is_known_before_the_scans_of_a_picture(content: bytes) -> None:
    assert read_header(content, "Row 0", whole=False).upright_size == (64, 64)
    assert read_header(DEAR["scans"], "Row 0", whole=False).scans == 1
