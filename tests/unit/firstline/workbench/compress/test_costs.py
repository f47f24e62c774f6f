"""Costs on the target machine: measured here, or read from the profile of another machine."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from functools import partial
from itertools import chain, cycle, repeat
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import msgspec
import pytest
from msgspec.structs import replace
from rich.console import Console
from support.points_here import measure_here
from support.profiles import point
from typer.testing import CliRunner

from firstline.cli.app import app
from firstline.cli.compress import OutOptions, RuleOptions, RunOptions, StudentOptions, compress_command
from firstline.cli.options import DataReading, GatewayOptions
from firstline.workbench.compress import compression, costs
from firstline.workbench.compress.costs import TRIES, Cost, measured_costs, read_costs, stated_joules, target_of
from firstline_core.bundle.store import Bundle, open_bundle
from firstline_core.errors import ConfigError
from firstline_core.hardware.kernel_files import Tree
from firstline_core.hardware.readings import Absent, Measured, Modelled
from firstline_core.hardware.survey import describe_device
from firstline_core.profile import measure
from firstline_core.profile.measure import ProfileOptions, measure_profile
from firstline_core.profile.measure_point import Job
from firstline_core.profile.profile import Point, Profile, Refused, encode

_DIGITS = Path(__file__).parents[5] / "models/digits"
_FEW = ("--limit", 250, "--epsilon", 0.1, "--delta", 0.1)


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return open_bundle(_DIGITS / "bundle")


def _run(*arguments: object, code: int = 0) -> Any:
    command = ("compress", _DIGITS / "bundle", "--data", _DIGITS / "heldout", *_FEW, *arguments)
    result = CliRunner().invoke(app, [*map(str, command)])
    assert result.exit_code == code, result.output
    return result


def _judged(profile: Path) -> tuple[Any, str]:
    """The report of one compression for a machine, as JSON and as text."""
    report = compress_command(
        _DIGITS / "bundle",
        data=_DIGITS / "heldout",
        reading=DataReading(),
        run=RunOptions(for_=str(profile), limit=250),
        rules=RuleOptions(epsilon=0.1, delta=0.1),
        student=StudentOptions(),
        next_=OutOptions(),
        gateway=GatewayOptions(),
    )
    text = Console(file=io.StringIO(), width=200, highlight=False, markup=False)
    for part in report.text:
        text.print(part, soft_wrap=True)
    return msgspec.json.decode(msgspec.json.encode(report.value)), text.file.getvalue()  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The digits' bundle with all candidates."""
    out = tmp_path_factory.mktemp("forced") / "all"
    _run("--out", out, "--force")
    return open_bundle(out)


def _profile(*points: Point, fingerprint: str = "another") -> Profile:
    return Profile("digits", 1, "board", fingerprint, points=points)


def _points(bundle: Bundle, **ms: float) -> list[Point]:
    """Points of the bundle's models, 1 ms by default."""
    return [point(ms.get(model.id, 1.0), variant=model.id, digest=model.digest) for model in bundle.manifest.models]


def test_the_profile_of_another_machine_needs_a_candidate(bundle: Bundle) -> None:
    own, candidate = _points(bundle), point(0.5, digest="c" * 64)
    with pytest.raises(ConfigError, match=r"--force and --out DIR.* no model but the bundle's own"):
        target_of(_profile(*own), bundle.manifest, Tree())
    assert not target_of(_profile(candidate), bundle.manifest, Tree()).here  # too small a machine for all else
    many = replace(candidate, key=replace(candidate.key, batch=4))
    with pytest.raises(ConfigError, match="no model but the bundle's own"):
        target_of(_profile(*own, many), bundle.manifest, Tree())
    found = target_of(_profile(*own, candidate), bundle.manifest, Tree())
    assert (found.machine, found.here) == ("board", False)
    here = describe_device(Tree(), Path("/")).fingerprint
    assert target_of(_profile(*own, fingerprint=here), bundle.manifest, Tree()).here


def test_the_best_measured_way_counts_on_another_machine(bundle: Bundle) -> None:
    first, second = bundle.manifest.edge[:2]
    said = Measured(7.0, "a rail")
    points = [
        replace(point(2.0, variant=first.id, digest=first.digest), energy_mj=said),
        point(1.98, variant=first.id, digest=first.digest, threads=4),  # not worth three threads
    ]
    found = read_costs([first, second], _profile(*points))
    assert found.known[first.id].latency_ms == 2.0
    assert (found.known[first.id].ran, found.known[first.id].energy_mj) == ("CPU, 1 thread", said)
    assert set(found.known) == {first.id}
    assert "never ran on 'board'" in found.unknown[second.id]


def test_the_round_that_chooses_a_way_does_not_count(bundle: Bundle) -> None:
    model = bundle.manifest.edge[0]
    times = {1: iter([3.0, 2.0, 2.2, 2.1]), 2: iter([5.0])}
    asked: list[Job] = []

    def measure(job: Job) -> Point:
        asked.append(job)
        made = point(next(times[job.key.threads]), variant=model.id, digest=model.digest, threads=job.key.threads)
        return replace(made, energy_mj=Modelled(2 * job.joules_per_core_s, "stated"))

    known = [point(1.0, threads=1), replace(point(4.0, threads=2), energy_mj=Modelled(12.0, "stated"))]
    assert stated_joules(known) == 3.0
    told: list[tuple[int, int]] = []
    found = measured_costs(bundle, [model], _profile(*known), measure=measure, progress=lambda *done: told.append(done))
    assert [job.key.threads for job in asked] == [1, 2, 1, 1, 1]
    assert all(job.alone and job.key.batch == 1 for job in asked)
    assert found.known[model.id].latency_ms == 2.1  # the median, without the 3.0 that chose
    assert found.known[model.id].energy_mj == Modelled(6.0, "stated")
    assert told[-1] == (5, 5)


def test_undisturbed_points_count_on_another_machine(bundle: Bundle) -> None:
    model = bundle.manifest.edge[0]
    disturbed = replace(point(1.0, variant=model.id, digest=model.digest), waited_share=0.3)
    calm = point(1.5, variant=model.id, digest=model.digest, threads=2)
    assert read_costs([model], _profile(disturbed, calm)).known[model.id].latency_ms == 1.5
    alone = read_costs([model], _profile(disturbed)).known[model.id]
    assert (alone.latency_ms, alone.waited_share) == (1.0, 0.3)


def _measured_while(bundle: Bundle, waited: Iterator[float]) -> tuple[Cost, int]:
    """The cost of a model whose milliseconds are 10 times its waited share, and the number of measurements."""
    model, asked = bundle.manifest.edge[0], 0

    def measure(_: Job) -> Point:
        nonlocal asked
        asked += 1
        share = next(waited)
        return replace(point(1 + 10 * share, variant=model.id, digest=model.digest), waited_share=share)

    found = measured_costs(bundle, [model], _profile(point(1.0)), measure=measure, rounds=3)
    return found.known[model.id], asked


def test_a_disturbed_measurement_is_repeated(bundle: Bundle) -> None:
    assert _measured_while(bundle, repeat(0.01)) == (Cost(1.1, ANY, "CPU, 1 thread", 0.01), 3)
    once = _measured_while(bundle, chain([0.4, 0.02], repeat(0.02)))
    assert once == (Cost(1.2, ANY, "CPU, 1 thread", 0.02), 4)
    a_round_long = _measured_while(bundle, chain(repeat(0.4, TRIES), repeat(0.02)))
    assert a_round_long == (Cost(1.2, ANY, "CPU, 1 thread", 0.02), TRIES + 2)
    least = _measured_while(bundle, cycle([0.4, 0.3, 0.5]))
    assert least == (Cost(4.0, ANY, "CPU, 1 thread", 0.3), 3 * TRIES)


def test_a_model_that_does_not_run_has_a_reason(bundle: Bundle) -> None:
    model = bundle.manifest.edge[0]
    found = measured_costs(
        bundle, [model], _profile(point(1.0)), measure=lambda job: Refused(job.key, "onnxruntime", "No such provider.")
    )
    assert (found.known, found.unknown) == ({}, {model.id: "No such provider."})


def test_real_models_are_measured_in_processes_of_their_own(bundle: Bundle) -> None:
    models = bundle.manifest.edge[:2]
    found = measured_costs(bundle, models, _profile(point(1.0)), rounds=1, seconds=0.05)
    assert found.unknown == {}
    assert [found.known[model.id].ran for model in models] == ["CPU, 1 thread", "tflite, 1 thread"]
    assert all(0 < found.known[model.id].latency_ms < 1000 for model in models)
    assert all(isinstance(found.known[model.id].energy_mj, Absent | Measured) for model in models)


def test_all_models_are_measured_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        compression, "measured_costs", partial(measured_costs, rounds=1, seconds=0.05, measure=measure_here)
    )
    monkeypatch.setattr(costs, "TRIES", 1)  # other tests disturb the measurement; the figures do not matter here
    path, here = tmp_path / "here.json", describe_device(Tree(), tmp_path).fingerprint
    path.write_bytes(encode(_profile(point(1.0, threads=1), fingerprint=here)))
    text = _run("--for", path).stdout
    assert "Latency is of 'board', measured now, in turns, each model in its best way. Energy is " in text
    ways = re.findall(r"^ (edge-\S+|full) .* (CPU|tflite), 1 thread ", text, re.MULTILINE)
    assert len(ways) == 8  # those that are there, and four candidates
    assert dict(ways)["edge-onnx-static-int8"] == "CPU"


def test_candidates_are_judged_by_the_targets_figures(
    tmp_path: Path, everything: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "measure_in_process", measure_here)
    path = tmp_path / "board.json"
    measured = measure_profile(
        everything,
        path,
        ProfileOptions(threads=(1,), batches=(1,), total_s=0.3, joules_per_core_s=2.0),
        machine="board",
    )
    assert len(measured.points) == 8
    # As on that machine: fast quantised kernels, and one candidate that was not run.
    kept = [one for one in measured.points if not one.key.variant.endswith("fp16")]
    quick = point(1e-4, variant="edge-onnx-static-int8")
    quick = next(
        replace(quick, key=one.key, energy_mj=Modelled(1e-4, "stated"))
        for one in kept
        if one.key.variant == "edge-onnx-static-int8"
    )
    points = tuple(quick if one.key == quick.key else one for one in kept)
    path.write_bytes(encode(replace(measured, fingerprint="another", points=points)))
    found, text = _judged(path)
    assert found["target"] == {"machine": "board", "here": False}
    by_technique = {one["technique"]: one for one in found["candidates"]}
    static = by_technique["static-int8"]
    assert static["accepted"]
    assert static["figures"]["latency_ms"] == 1e-4
    assert static["figures"]["energy_mj"]["kind"] == "modelled"
    assert any("times thriftier" in reason for reason in static["reasons"])
    assert by_technique["fp16"]["figures"] is None
    assert "never ran on 'board'" in by_technique["fp16"]["reasons"][0]
    assert "Latency is of 'board', as its profile has it. Energy is modelled: stated 2 J a core-second" in text
    assert "fp16 is not judged: it never ran on 'board'" in text


def test_models_that_never_ran_on_the_target_are_not_compared(tmp_path: Path, everything: Bundle) -> None:
    path = tmp_path / "board.json"
    made = {model.id: model for model in everything.manifest.edge}

    def ran(**ms: float) -> list[Point]:
        return [point(one, variant=name, digest=made[name].digest) for name, one in ms.items()]

    small = {
        "edge-tflite-int8": 1.0,
        "edge-onnx-fp16": 0.5,
        "edge-onnx-static-int8": 0.4,
        "edge-onnx-int8-weights": 9.0,
    }
    path.write_bytes(encode(_profile(*ran(**small))))
    found, text = _judged(path)
    assert set(found["unmeasured"]) == {"edge-onnx", "edge-tflite-float", "full"}
    by_technique = {one["technique"]: one for one in found["candidates"]}
    assert by_technique["static-int8"]["times_better"] == {
        "edge-tflite-int8": {"latency": 2.5, "size": pytest.approx(0.83, abs=0.1)}
    }
    assert by_technique["fp16"]["accepted"]
    assert by_technique["int8-weights"]["figures"]["latency_ms"] == 9.0
    assert "edge-onnx is not compared: it never ran on 'board': its profile has no model of this digest." in text
    path.write_bytes(encode(_profile(*ran(**{"edge-onnx-fp16": 0.5}))))
    _, text = _judged(path)
    assert "edge-onnx-fp16 is accepted: nothing that is there is as accurate and runs there." in text


def test_the_order_follows_the_preference(tmp_path: Path) -> None:
    behind = "edge-onnx-int8-weights comes after "
    kept = _run().stdout
    assert "a device takes the first that it can load, and the others only if it adapts. The order is by kept" in kept
    assert behind in kept
    out = tmp_path / "next"
    by_size = _run("--prefer", "size", "--out", out).stdout
    assert behind not in by_size
    assert open_bundle(out).manifest.edge[0].id == "edge-onnx-int8-weights"


def test_a_missing_profile_is_refused(tmp_path: Path) -> None:
    assert "There is no profile at" in _run("--for", tmp_path / "none.json", code=2).output
    (tmp_path / "bad.json").write_text("{")
    assert "is not a profile" in _run("--for", tmp_path / "bad.json", code=2).output
