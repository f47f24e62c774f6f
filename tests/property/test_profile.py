"""Profiles are encoded and decoded without loss, and their quantiles describe the sample."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstline_core.errors import ProtocolError
from firstline_core.hardware.readings import Absent, Measured, Modelled, Reading
from firstline_core.profile.profile import (
    LIMIT_BYTES,
    QUANTILES,
    Distribution,
    Point,
    PointKey,
    Profile,
    QueryBytes,
    decode,
    distribution,
    encode,
    sweet_spot,
)

_AMOUNTS = st.floats(0, 1e6)
_COUNTS = st.integers(0, 2**40)
DISTRIBUTIONS = st.lists(st.floats(1e-7, 10.0), min_size=1, max_size=30).map(distribution)
_SOME = st.sampled_from([distribution(times) for times in ([1e-7], [1e-3, 10.0], [k / 7 for k in range(1, 31)])])
"""Few, for they are dear to make: of what is in a point, and is neither reckoned nor drawn from."""
_READINGS: st.SearchStrategy[Reading] = st.one_of(
    st.builds(Measured, _AMOUNTS, st.just("energy_uj")),
    st.builds(Modelled, _AMOUNTS, st.just("stated costs")),
    st.builds(Absent, st.just("no counter")),
)
_KEYS = st.builds(
    PointKey,
    variant=st.sampled_from(["edge-a", "full"]),
    model_digest=st.sampled_from(["a" * 64, "b" * 64]),
    provider=st.sampled_from(["CPUExecutionProvider", "tflite"]),
    threads=st.integers(0, 4),
    batch=st.integers(1, 32),
    condition=st.sampled_from(["warm", "sustained"]),
)
POINTS = st.builds(
    Point,
    key=_KEYS,
    ran_on=st.just("CPUExecutionProvider"),
    query=_SOME,
    rested=_SOME,
    queued=st.none() | _SOME,
    prepare_ms=_AMOUNTS,
    run_ms=_AMOUNTS,
    offline_per_s=_AMOUNTS,
    load_ms=_AMOUNTS,
    first_ms=_AMOUNTS,
    moved=st.builds(QueryBytes, _COUNTS, _COUNTS, _COUNTS),
    peak_memory_bytes=_READINGS,
    processor_ms=_AMOUNTS,
    energy_mj=_READINGS,
)
PROFILES = st.builds(
    Profile,
    bundle=st.just("digits"),
    version=st.integers(1, 99),
    machine=st.just("board-1"),
    fingerprint=st.just("f" * 16),
    points=st.lists(POINTS, max_size=3, unique_by=lambda point: point.key).map(tuple),
    accuracy=st.dictionaries(st.sampled_from(["a" * 64, "b" * 64]), st.floats(0, 1)),
)


@given(PROFILES)
def test_an_encoded_document_is_decoded_equally(profile: Profile) -> None:
    assert decode(encode(profile), "a file") == profile


@given(PROFILES)
def test_unknown_fields_are_ignored(profile: Profile) -> None:
    document = msgspec.to_builtins(profile) | {"something_newer": 1}
    assert decode(msgspec.json.encode(document), "a file") == profile


@given(st.binary(max_size=200))
def test_other_bytes_are_refused(content: bytes) -> None:
    with pytest.raises(ProtocolError, match="a file is not a profile"):
        decode(content, "a file")


def test_a_huge_file_is_refused() -> None:
    content = encode(Profile("digits", 1, "board-1", "f", ()))
    assert decode(content + b" " * (LIMIT_BYTES - len(content)), "a file").bundle == "digits"
    with pytest.raises(ProtocolError, match="at most"):
        decode(content + b" " * (LIMIT_BYTES - len(content) + 1), "a file")


@given(POINTS)
def test_a_repeated_point_is_refused(point: Point) -> None:
    document = msgspec.to_builtins(Profile("digits", 1, "board-1", "f", (point,)))
    document["points"] = [*document["points"], *document["points"]]
    with pytest.raises(ProtocolError, match="each point once"):
        decode(msgspec.json.encode(document), "a file")


@given(st.lists(st.floats(1e-6, 10.0), min_size=1, max_size=500))
def test_quantiles_are_those_of_the_sample(seconds: list[float]) -> None:
    found = distribution(seconds)
    for share, value_ms in ((0.5, found.p50_ms), (0.9, found.quantile_ms(0.9)), (0.99, found.p99_ms)):
        assert value_ms == pytest.approx(1000 * float(np.quantile(seconds, share)), rel=1e-4)
    assert found.mean_ms == pytest.approx(1000 * float(np.mean(seconds)), rel=1e-4)


@given(DISTRIBUTIONS, st.integers(0, 2**32))
def test_drawn_times_have_the_same_mean_and_bounds(found: Distribution, seed: int) -> None:
    drawn = found.at(np.random.default_rng(seed).random(4_000))
    assert drawn.min() >= found.quantiles_ms[0] and drawn.max() <= found.quantiles_ms[-1]
    spread = found.quantiles_ms[-1] - found.quantiles_ms[0]
    middle = float(np.mean(found.at(np.linspace(0, 1, 20 * QUANTILES + 1))))
    assert abs(drawn.mean() - middle) <= 0.1 * spread + 1e-9


@given(stalls=st.integers(1, 40), times=st.floats(2, 1000), seed=st.integers(0, 2**32))
def test_rare_stalls_are_drawn_as_rarely_as_measured(stalls: int, times: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    seconds = np.append(random.uniform(1e-3, 1.2e-3, 10_000 - stalls), times * random.uniform(1e-3, 1.2e-3, stalls))
    found = distribution(seconds)
    drawn_ms = found.at((np.arange(200_000) + 0.5) / 200_000)
    assert drawn_ms.mean() == pytest.approx(found.mean_ms, rel=0.01)
    assert (np.diff(drawn_ms) >= 0).all()
    assert np.mean(drawn_ms > 500 * times + 0.6) <= 2 * stalls / 10_000  # half way there


@given(st.lists(POINTS, min_size=1, max_size=6))
def test_the_sweet_spot_is_the_smallest_nearly_best_batch(points: list[Point]) -> None:
    spot = sweet_spot(points)
    enough = 0.95 * max(point.offline_per_s for point in points)
    assert spot.offline_per_s >= enough
    assert all(point.offline_per_s < enough for point in points if point.key.batch < spot.key.batch)
