"""`firstline profile predict`: a mixed load on a machine whose profile is stated."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.cli import run
from support.profiles import point, profile
from typer.testing import Result

from firstline_core.profile.profile import Profile, distribution, encode


@pytest.fixture
def stated() -> Profile:
    """A fast and a slow model; the fast one also with two threads."""
    edge, full = point(10.0), point(30.0, variant="full", digest="b" * 64)
    return replace(profile(), points=(edge, point(6.0, threads=2), full))


def predicted(tmp_path: Path, stated: Profile, *arguments: str, code: int = 0) -> Result:
    file = tmp_path / "digits@bench.json"
    file.write_bytes(encode(stated))
    return run("profile", "predict", file, *arguments, code=code)


def test_a_mix_is_described_in_one_sentence(tmp_path: Path, stated: Profile) -> None:
    found = predicted(tmp_path, stated, "edge=5", "full=1")
    first, second = found.stdout.splitlines()
    assert first == "digits version 1 on bench, edge 5/s (threads 1), full 1/s (threads 1); servers: 1."
    assert second.startswith("Load: 8 % of what can be answered; p50 10 ms")


def test_json_has_the_prediction_and_the_highest_rates(tmp_path: Path, stated: Profile) -> None:
    found = predicted(tmp_path, stated, "edge=4", "full=2", "--within", "100", "-o", "json")
    prediction = json.loads(found.stdout)
    assert prediction["utilisation"] == pytest.approx(0.1) and prediction["p50_ms"] == pytest.approx(10.0)
    highest = {stream["key"]["variant"]: stream["highest_per_s"] for stream in prediction["streams"]}
    assert highest["edge"] == pytest.approx(2 * highest["full"])
    above = [f"{variant}={1.1 * rate}" for variant, rate in highest.items()]
    assert json.loads(predicted(tmp_path, stated, *above, "-o", "json").stdout)["p99_ms"] > 100
    lower_rates = [f"{variant}={0.99 * rate}" for variant, rate in highest.items()]
    assert json.loads(predicted(tmp_path, stated, *lower_rates, "-o", "json").stdout)["p99_ms"] <= 100


def test_unmeasured_threads_are_refused(tmp_path: Path, stated: Profile) -> None:
    assert "p50 6 ms" in predicted(tmp_path, stated, "edge=1", "--threads", "2").stdout
    found = predicted(tmp_path, stated, "edge=1", "--threads", "3", code=2)
    assert "with --threads 3, but with 1, 2" in found.output


def test_an_overload_has_no_times(tmp_path: Path, stated: Profile) -> None:
    found = predicted(tmp_path, stated, "full=40", "--within", "29")
    assert "Load: 120 % of what can be answered, so that the queue grows without end." in found.stdout
    assert "No rate keeps p99 within 29 ms." in found.stdout
    assert json.loads(predicted(tmp_path, stated, "full=40", "-o", "json").stdout)["p99_ms"] is None


def test_a_disturbed_profile_gives_a_warning(tmp_path: Path, stated: Profile) -> None:
    busy = replace(stated, points=tuple(replace(one, waited_share=0.4) for one in stated.points))
    found = predicted(tmp_path, busy, "edge=1", "-o", "json")
    assert "other work had the core for up to 40 % of the time" in found.stderr
    assert json.loads(found.stdout)["machine"] == "bench"


@pytest.mark.parametrize(
    ("arguments", "reasons"),
    [
        (["edge=40"], []),
        (["edge=40", "--within", "11"], []),
        (["edge=140"], []),  # which has no times
        (["edge=30", "full=5"], ["models slow each other down"]),
        (["edge=5"], ["light load"]),
        (["edge=80"], ["high load"]),
        (["edge=40", "--within", "100"], ["--within can be too high"]),
        (["edge=1", "full=1", "--within", "200"], ["each other", "light load", "--within"]),
    ],
)
def test_an_inexact_prediction_warns(tmp_path: Path, stated: Profile, arguments: list[str], reasons: list[str]) -> None:
    found = predicted(tmp_path, stated, *arguments)
    assert found.stderr.count("warning:") == bool(reasons)
    parts = found.stderr.split(";")
    assert len(parts) == max(1, len(reasons))
    for part, reason in zip(parts, reasons, strict=False):
        assert reason in part


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["edge"], "'edge' is not a load; write MODEL=PER_SECOND, such as edge=20, with a rate from 1e-06 to 1e+09."),
        (["edge=0"], "'edge=0' is not a load"),
        (["edge=inf"], "'edge=inf' is not a load"),
        (["edge=1e300"], "from 1e-06 to 1e+09"),
        (["edge=1e-300"], "from 1e-06 to 1e+09"),
        (["edge=1", "edge=2"], "edge appears twice; add its rates up."),
        (["other=1"], "no point of 'other' with one row a query; it has: edge, full."),
        (["edge=1", "--within", "0"], "--within 0 is not a time above 0; give milliseconds, such as 5."),
    ],
)
def test_invalid_arguments_are_explained(tmp_path: Path, stated: Profile, arguments: list[str], sentence: str) -> None:
    assert sentence in predicted(tmp_path, stated, *arguments, code=2).output


@pytest.mark.parametrize("name", ["n" * 300, f"digits/1/{'n' * 300}", f"{'n' * 300}.json"])
def test_an_impossible_file_name_is_refused(name: str) -> None:
    assert name[:30] in run("profile", "predict", name, "edge=1", code=2).output


def test_a_profile_of_zero_times_is_refused(tmp_path: Path, stated: Profile) -> None:
    nothing = replace(stated, points=(replace(stated.points[0], query=distribution([0.0])),))
    found = predicted(tmp_path, nothing, "edge=5", "--within", "5", code=2)
    assert "By this profile edge takes no time at all" in found.output
