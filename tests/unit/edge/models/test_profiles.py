"""Profiles of models before they are loaded: used if valid, ignored otherwise, never fatal."""

import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.agent import DIGITS, edge_settings
from support.images import images
from support.logs import captured_lines
from support.profiles import point

from firstline_core.bundle.store import Bundle, open_bundle
from firstline_core.hardware.kernel_files import Tree
from firstline_core.hardware.survey import describe_device
from firstline_core.profile.profile import Point, Profile, distribution, encode
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.types import InferRequest
from firstline_edge.app import EdgeAgent
from firstline_edge.models.loading import load_bundle
from firstline_edge.models.models import EdgeModel, RelativeRunTimes
from firstline_edge.models.profiles import Profiles, fastest_options
from firstline_edge.models.workers import Workers
from firstline_edge.state import StatePaths

ROOT = Path("/")
SECONDS = [0.2] * 9 + [0.3] * 9 + [0.6] * 2  # the quickest 200 ms, the median 300
OTHER = "0" * 32


@pytest.fixture
def workers() -> Iterator[Workers]:
    found = Workers(1, 1)
    yield found
    found.close()


def document(bundle: Bundle, state_dir: Path, *points: Point, fingerprint: str = "") -> Profile:
    of_here = describe_device(Tree(ROOT), state_dir).fingerprint
    return Profile(bundle.manifest.name, 1, "here", fingerprint or of_here, points)


def written(path: Path, profile: Profile) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode(profile))
    return path


def measured(bundle: Bundle) -> Point:
    (edge,) = (model for model in bundle.manifest.edge if model.id == "edge-onnx")
    return replace(point(200, variant=edge.id, digest=edge.digest), query=distribution(SECONDS))


def loaded(
    path: Path, state_dir: Path, workers: Workers, profiles: Profiles | None = None, *, as_planned: bool = False
) -> EdgeModel:
    profiles = profiles or Profiles(state_dir, ROOT)
    found = load_bundle(path, RuntimeOptions(), workers, profiles=profiles, as_planned=as_planned).edge
    found.loaded.close()
    return found


def asked(size_bytes: int = 1) -> InferRequest:
    return InferRequest("digits", (images(b"x" * size_bytes),), "")


def test_a_profile_gives_the_models_time_before_it_runs(tmp_path: Path, workers: Workers) -> None:
    bundle = open_bundle(DIGITS)
    written(StatePaths(tmp_path).device_profile_path("digits"), document(bundle, tmp_path, measured(bundle)))
    edge = loaded(DIGITS, tmp_path, workers)
    assert edge.profiled is not None
    assert edge.row_ms == 200 and edge.sample_bytes == edge.profiled.moved.received_bytes == 1
    assert edge.pace.factor * edge.measured_ms(1) == pytest.approx(300)
    assert edge.sure_ms(asked(), 1) == pytest.approx(600)
    assert not edge.quick(edge.measured_ms(1))  # where nothing was known it is, by far


@pytest.mark.parametrize(("as_planned", "row_ms"), [(True, 100), (False, 200)])
def test_a_variant_runs_in_its_fastest_way(tmp_path: Path, workers: Workers, as_planned: bool, row_ms: float) -> None:
    bundle = open_bundle(DIGITS)
    slow = measured(bundle)
    quick = replace(slow, key=replace(slow.key, threads=2), query=distribution([each / 2 for each in SECONDS]))
    written(StatePaths(tmp_path).device_profile_path("digits"), document(bundle, tmp_path, slow, quick))
    assert loaded(DIGITS, tmp_path, workers, as_planned=as_planned).row_ms == row_ms


def test_an_unmeasured_variant_runs_as_configured(tmp_path: Path) -> None:
    bundle = open_bundle(DIGITS)
    configured = RuntimeOptions(threads=3)
    hot = measured(bundle)
    profile = document(bundle, tmp_path, replace(hot, key=replace(hot.key, condition="sustained")))
    assert all(fastest_options(profile, configured, model) == configured for model in bundle.manifest.edge)


def test_a_bundle_may_contain_the_profile_of_this_machine(tmp_path: Path, workers: Workers) -> None:
    path = tmp_path / "bundles" / "digits"
    shutil.copytree(DIGITS, path)
    bundle, state_dir = open_bundle(path), tmp_path / "state"
    state_dir.mkdir()
    written(path / "profiles" / "digits@board.json", document(bundle, state_dir, fingerprint=OTHER))
    written(path / "profiles" / "digits@here.json", document(bundle, state_dir, measured(bundle)))
    assert loaded(path, state_dir, workers).row_ms == 200


@pytest.mark.parametrize("other", ["digest", "machine", "provider", "ran_on", "threads", "batch", "condition", "zero"])
def test_a_stale_profile_is_ignored(tmp_path: Path, workers: Workers, other: str) -> None:
    bundle = open_bundle(DIGITS)
    found, fingerprint = measured(bundle), OTHER if other == "machine" else ""
    keys: dict[str, dict[str, Any]] = {
        "digest": {"model_digest": "e" * 64},
        "provider": {"provider": "CUDAExecutionProvider"},
        "threads": {"threads": 2},
        "batch": {"batch": 4},
        "condition": {"condition": "sustained"},
    }
    found = replace(found, key=replace(found.key, **keys.get(other, {})))
    if other == "ran_on":
        found = replace(found, ran_on="XnnpackExecutionProvider")
    if other == "zero":
        found = replace(found, query=distribution([0.0, 0.1]))
    written(
        StatePaths(tmp_path).device_profile_path("digits"), document(bundle, tmp_path, found, fingerprint=fingerprint)
    )
    profiles = Profiles(tmp_path, ROOT)
    edge = loaded(DIGITS, tmp_path, workers, profiles)
    assert edge.profiled is None and 0 < edge.row_ms < 200  # as measured at load
    assert profiles.problems == {}


@pytest.mark.parametrize("content", [b"", b"{", b'{"bundle": 7}', b"\xff\x00", b"[" * 100_000])
def test_a_damaged_profile_is_reported_and_ignored(tmp_path: Path, workers: Workers, content: bytes) -> None:
    path = StatePaths(tmp_path).device_profile_path("digits")
    path.parent.mkdir()
    path.write_bytes(content)
    profiles = Profiles(tmp_path, ROOT)
    with captured_lines() as lines:
        edge = loaded(DIGITS, tmp_path, workers, profiles)
    assert edge.profiled is None and math.isfinite(edge.row_ms)
    assert [line["path"] for line in lines if line["level"] == "warning"] == [str(path)]
    assert (
        "is not a profile" in profiles.problems[path] and "edge-agent profile create digits" in profiles.problems[path]
    )
    bundle = open_bundle(DIGITS)
    written(path, document(bundle, tmp_path, measured(bundle)))
    assert loaded(DIGITS, tmp_path, workers, profiles).row_ms == 200 and profiles.problems == {}
    path.write_bytes(content)
    loaded(DIGITS, tmp_path, workers, profiles)
    assert path in profiles.problems
    path.unlink()
    loaded(DIGITS, tmp_path, workers, profiles)
    assert profiles.problems == {}


async def test_status_shows_sources_of_times_and_damaged_profiles(tmp_path: Path) -> None:
    path = StatePaths(tmp_path).device_profile_path("digits")
    bundle = open_bundle(DIGITS)
    written(path, document(bundle, tmp_path, measured(bundle)))
    settings = edge_settings(tmp_path, models__directories=[str(DIGITS)])
    async with EdgeAgent(settings) as agent:
        (model,) = agent.operations.status()["models"]
        assert (model["row_ms"], model["row_ms_from"]) == (200, "profile")
    path.write_bytes(b"{")
    async with EdgeAgent(settings) as agent:
        status = agent.operations.status()
        assert status["models"][0]["row_ms_from"] == "load"
        assert [problem["path"] for problem in status["problems"]] == [str(path)]
        assert agent.data_plane.ready()


def test_own_runs_outweigh_the_profile() -> None:
    pace = RelativeRunTimes.of(distribution(SECONDS))
    assert (pace.factor, pace.sure) == pytest.approx((1.5, 3.0))
    for _ in range(60):  # each a tenth above the quickest
        pace.ran(0.22, 0.2)
    assert pace.factor == pytest.approx(1.1, rel=0.06)
    for _ in range(600):  # a tail is forgotten more slowly, as one run in twenty makes it
        pace.ran(0.22, 0.2)
    assert pace.sure == pytest.approx(1.1, rel=0.06)
    for _ in range(60):
        pace.ran(0.8, 0.2)
    assert pace.factor == pytest.approx(4, rel=0.06) and pace.sure == pytest.approx(4, rel=0.06)


def test_one_run_in_twenty_exceeds_the_95th_percentile() -> None:
    pace, late = RelativeRunTimes(), []
    for at in range(4000):
        took_s = 0.2 if at % 20 else 0.5
        late.append(took_s > pace.sure * 0.2)
        pace.ran(took_s, 0.2)
    assert sum(late[2000:]) / 2000 <= 0.05 and pace.factor == pytest.approx(1, abs=0.06)
