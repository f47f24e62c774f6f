import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstline.workbench.compress.judge import GAIN, HARM, WORTH_A_TRADE, Figures, judge
from firstline_core.hardware.readings import Absent, Measured, Modelled, Reading

SOURCE = Figures("source", accuracy=0.9, latency_ms=10.0, size_bytes=1000, kept=0.8)


def candidate(**fields: float | Reading | None) -> Figures:
    return msgspec.structs.replace(SOURCE, id="new", **fields)


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        (
            candidate(accuracy=0.87, latency_ms=1.0),
            "it loses 3.00 points of accuracy against source, and 2 are allowed",
        ),
        (candidate(latency_ms=1.0, kept=0.7), "it keeps 70.0 % where source keeps 80.0 % for the same promise"),
        (candidate(latency_ms=1.0, kept=0.0), "it is not certified where source keeps 80.0 %"),
        (candidate(latency_ms=9.5), "a tenth better in latency or size is the least that counts"),
        (candidate(latency_ms=13.0, size_bytes=700), "1.30 times slower, 1.43 times smaller against source: worse in"),
        (candidate(latency_ms=5.5, size_bytes=2000), "worse in size"),
    ],
)
def test_refused_candidates_have_reasons(figures: Figures, message: str) -> None:
    found = judge(figures, SOURCE, [SOURCE], 0.02)
    assert not found.accepted
    assert any(message in reason for reason in found.reasons), found.reasons


@pytest.mark.parametrize(
    "figures",
    [
        candidate(accuracy=0.88, latency_ms=5.0),  # exactly what may be lost
        candidate(latency_ms=10.4, size_bytes=800),  # a little slower is nothing
        candidate(latency_ms=20.0, size_bytes=500),  # a trade worth making
        candidate(latency_ms=9.0, kept=0.73),
    ],
)
def test_better_candidates_are_accepted(figures: Figures) -> None:
    found = judge(figures, SOURCE, [SOURCE], 0.02)
    assert found.accepted, found.reasons
    assert found.reasons[0].endswith("against source")


def test_energy_counts_if_both_sides_have_it() -> None:
    spends = msgspec.structs.replace(SOURCE, energy_mj=Measured(10.0, "a rail"))
    found = judge(candidate(energy_mj=Measured(5.0, "a rail")), spends, [spends], 0.02)
    assert found.accepted
    assert "2.00 times thriftier" in found.reasons[0]
    assert not judge(candidate(energy_mj=Measured(5.0, "a rail")), SOURCE, [SOURCE], 0.02).accepted
    assert not judge(candidate(energy_mj=Modelled(5.0, "stated")), spends, [spends], 0.02).accepted
    absent = msgspec.structs.replace(SOURCE, energy_mj=Absent("No sensor."))
    assert not judge(candidate(energy_mj=Absent("No sensor.")), absent, [absent], 0.02).accepted


def test_a_candidate_competes_with_all_equally_accurate_models() -> None:
    small = Figures("small", accuracy=0.885, latency_ms=4.0, size_bytes=400, kept=0.8)
    worse = msgspec.structs.replace(small, id="worse", accuracy=0.8)
    figures = candidate(latency_ms=6.0, size_bytes=600)
    assert judge(figures, SOURCE, [SOURCE, worse], 0.02).accepted
    refused = judge(figures, SOURCE, [SOURCE, small, worse], 0.02)
    assert not refused.accepted
    assert len(refused.reasons) == 1
    assert "against small" in refused.reasons[0]


@pytest.mark.parametrize("disturbed", ["source", "new"])
@pytest.mark.parametrize("latency_ms", [1.0, 100.0])
def test_a_disturbed_latency_does_not_count(disturbed: str, latency_ms: float) -> None:
    def waited(one: Figures) -> Figures:
        return msgspec.structs.replace(one, waited_share=0.49 if one.id == disturbed else 0.0)

    source = waited(SOURCE)
    alike = judge(waited(candidate(latency_ms=latency_ms)), source, [source], 0.02)
    assert not alike.accepted  # 10 times faster, it seems
    smaller = judge(waited(candidate(latency_ms=latency_ms, size_bytes=800)), source, [source], 0.02)
    assert smaller.accepted  # 10 times slower, it seems
    for found in (alike, smaller):
        assert not any("faster" in reason or "slower" in reason for reason in found.reasons)
        assert "other work had the core for 49 % of its measurement" in found.reasons[-1]
    assert ("against source" in alike.reasons[-1]) == (disturbed == "source")


def test_an_unmeasured_source_is_not_compared() -> None:
    source = msgspec.structs.replace(SOURCE, latency_ms=None)
    other = Figures("other", accuracy=0.9, latency_ms=4.0, size_bytes=400, kept=0.8)
    assert judge(candidate(latency_ms=2.0, size_bytes=200), source, [other], 0.02).accepted
    assert not judge(candidate(latency_ms=5.0), source, [other], 0.02).accepted
    assert not judge(candidate(accuracy=0.8, latency_ms=2.0), source, [other], 0.02).accepted
    assert judge(candidate(), source, [], 0.02).accepted


def test_a_certified_bundle_needs_certified_candidates() -> None:
    unproved = [msgspec.structs.replace(SOURCE, kept=0.0)]
    figures = candidate(latency_ms=5.0, kept=0.0)
    assert judge(figures, unproved[0], unproved, 0.02).accepted
    refused = judge(figures, unproved[0], unproved, 0.02, promised=True)
    assert refused.reasons == (
        "it is not certified on this data, and a model of the bundle has a certificate; give more images",
    )


positive = st.floats(0.1, 1000)


@given(positive, positive, st.floats(0, 0.92), st.integers(1, 10**6))
def test_accepted_candidates_are_a_tenth_better(
    latency_ms: float, there_ms: float, accuracy: float, size_bytes: int
) -> None:
    there = msgspec.structs.replace(SOURCE, latency_ms=there_ms)
    found = judge(candidate(latency_ms=latency_ms, accuracy=accuracy, size_bytes=size_bytes), there, [there], 0.02)
    ratios = (there_ms / latency_ms, 1000 / size_bytes)
    if found.accepted:
        assert accuracy >= 0.88 - 1e-6
        assert max(ratios) >= GAIN
        assert min(ratios) >= 1 / HARM or max(ratios) >= WORTH_A_TRADE
    else:
        assert accuracy < 0.88 or max(ratios) < GAIN or min(ratios) < 1 / HARM
