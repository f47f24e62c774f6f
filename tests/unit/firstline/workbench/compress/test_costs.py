"""Costs on another machine: read from its profile."""

from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.cli import in_one_line, json_of, run
from support.profiles import point

from firstline.workbench.compress import evaluation
from firstline.workbench.compress.evaluation import Cost, profiled_costs
from firstline_core.bundle.store import Bundle, open_bundle
from firstline_core.hardware.readings import Measured, Modelled
from firstline_core.profile.profile import Point, Profile, encode

_DIGITS = Path(__file__).parents[5] / "models/digits"
_COMMAND = ("compress", _DIGITS / "bundle", "--data", _DIGITS / "heldout")
_run, _json = (partial(each, *_COMMAND, "--limit", 150, "--epsilon", 0.1, "--delta", 0.1) for each in (run, json_of))


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return open_bundle(_DIGITS / "bundle")


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The digits' bundle with all candidates."""
    out = tmp_path_factory.mktemp("forced") / "all"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "TURNS", 10)  # times decide nothing here
        _run("--out", out, "--force")
    return open_bundle(out)


def _profile(*points: Point) -> Profile:
    return Profile("digits", 1, "board", "another", points=points)


def test_the_fastest_measured_way_counts(bundle: Bundle) -> None:
    first, second = bundle.manifest.edge[:2]
    rail = Measured(7.0, "a rail")
    points = [
        replace(point(2.0, variant=first.id, digest=first.digest, threads=4), energy_mj=rail),
        point(3.0, variant=first.id, digest=first.digest),
        replace(point(1.0, variant=first.id, digest=first.digest, threads=2), waited_share=0.3),  # disturbed
    ]
    assert profiled_costs([first, second], _profile(*points)) == {first.id: Cost(2.0, rail)}
    assert profiled_costs([first], _profile(points[2])) == {first.id: Cost(1.0, points[2].energy_mj, 0.3)}


def test_the_profile_of_another_machine_needs_a_candidate(bundle: Bundle, tmp_path: Path) -> None:
    own = [point(1.0, variant=model.id, digest=model.digest) for model in bundle.manifest.models]
    batch = point(0.5, digest="c" * 64)
    (tmp_path / "board.json").write_bytes(encode(_profile(*own, replace(batch, key=replace(batch.key, batch=4)))))
    refused = in_one_line(_run("--for", tmp_path / "board.json", code=2).output)
    assert "no model but the bundle's own" in refused and "--force and --out DIR" in refused


def test_a_profile_without_the_source_is_refused(tmp_path: Path) -> None:
    (tmp_path / "board.json").write_bytes(encode(_profile(point(1.0, digest="c" * 64))))
    refused = in_one_line(_run("--for", tmp_path / "board.json", code=2).output)
    assert "no 'edge-onnx', which the candidates are made of" in refused


def test_candidates_are_judged_by_the_targets_figures(tmp_path: Path, everything: Bundle) -> None:
    models = {model.id: model for model in everything.manifest.models}

    def ran(ms: float, name: str, energy_mj: float) -> Point:
        return replace(point(ms, variant=name, digest=models[name].digest), energy_mj=Modelled(energy_mj, "stated"))

    ways = (ran(1.0, "edge-onnx", 2.0), ran(0.1, "edge-onnx-static-int8", 0.1), ran(2.0, "edge-onnx-dynamic-int8", 3.0))
    (tmp_path / "board.json").write_bytes(encode(_profile(*ways)))
    found = _json("--for", tmp_path / "board.json")
    assert found["target"] == "board"
    by_technique = {one["technique"]: one for one in found["candidates"]}
    static, dynamic = by_technique["static-int8"], by_technique["dynamic-int8"]
    assert static["accepted"] and static["figures"]["latency_ms"] == 0.1
    assert static["figures"]["energy_mj"]["kind"] == "modelled"
    assert "10.00 times faster" in static["reasons"][0] and "20.00 times thriftier" in static["reasons"][0]
    assert not dynamic["accepted"] and "2.00 times slower" in dynamic["reasons"][0]
    assert by_technique["fp16"]["figures"] is None
    assert "never ran on 'board'" in by_technique["fp16"]["reasons"][0]
    assert [one["id"] for one in found["there"] if one["latency_ms"] is not None] == ["edge-onnx"]
    text = in_one_line(_run("--for", tmp_path / "board.json").stdout)
    assert "Latency and energy are those of the profile of 'board'. It has no point of edge-tflite-float" in text
    assert "fp16 is not judged: it never ran on 'board'" in text


def test_a_missing_profile_is_refused(tmp_path: Path) -> None:
    assert "There is no profile at" in _run("--for", tmp_path / "none.json", code=2).output
