"""The link of a plan: from options, else from the running agent's calls, else unknown."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.agent import DIGITS, edge_settings
from support.profiles import point

from firstline_core.bundle.store import open_bundle
from firstline_core.hardware.kernel_files import Tree
from firstline_core.hardware.survey import describe_device
from firstline_core.planning.plan import Link
from firstline_core.profile.profile import Profile, encode
from firstline_core.routing.timing import LinkTiming
from firstline_edge.cli import plan_explain
from firstline_edge.cli.parser import parse
from firstline_edge.cli.plan_explain import link_for_plan, with_measurements
from firstline_edge.state import StatePaths


def status(timing: LinkTiming | None) -> dict[str, Any]:
    """The status of an agent with an unused link and this one."""
    report = timing.report(0.0) if timing is not None else None
    return {"links": {"mqtt": {"timing": None}, "http": {"timing": report and asdict(report)}}}


def used(*sizes_bytes: int, service_s: float | None = 0.1) -> LinkTiming:
    timing = LinkTiming()
    for size_bytes in sizes_bytes * 20:
        timing.answered(size_bytes, 0.02 + size_bytes / 1e6 + 0.1, 0.0, service_s)
    return timing


def test_the_running_agents_link_is_the_default() -> None:
    link, notes = with_measurements(Link(), status(used(1_000, 20_000, 60_000)))
    assert link.bytes_per_s == pytest.approx(1e6, rel=0.1) and link.round_trip_ms == pytest.approx(20, rel=0.1)
    assert len(notes) == 2 and all("over 'http'" in each for each in notes)


def test_stated_values_take_precedence() -> None:
    link, notes = with_measurements(Link(round_trip_ms=4.0), status(used(1_000, 60_000)))
    assert link.round_trip_ms == 4.0 and link.bytes_per_s is not None
    assert len(notes) == 1 and "bandwidth" in notes[0]
    link, notes = with_measurements(Link(bytes_per_s=5.0), status(used(1_000, 60_000)))
    assert link.bytes_per_s == 5.0 and len(notes) == 1 and "round trip" in notes[0]


def test_payloads_of_one_size_give_no_bandwidth() -> None:
    link, notes = with_measurements(Link(), status(used(30_000)))
    assert link.bytes_per_s is None and link.round_trip_ms == pytest.approx(50, rel=0.1)
    assert "payloads of 30000 bytes" in notes[0] and "shows no bandwidth" in notes[1]


def test_an_unknown_gateway_time_leaves_the_round_trip_open() -> None:
    link, notes = with_measurements(Link(), status(used(30_000, service_s=None)))
    assert link == Link() and "does not say what of 'http' is its own time" in notes[0]


def test_an_agent_without_calls_knows_no_link() -> None:
    assert with_measurements(Link(), status(None)) == (
        Link(), ["The running agent has sent nothing recently, so it has not measured its link."]
    )  # fmt: skip


def test_a_missing_agent_is_noted(tmp_path: Path) -> None:
    settings = edge_settings(tmp_path)
    link, notes = link_for_plan(8.0, None, settings)
    assert link == Link(bytes_per_s=1e6) and "No agent" in notes[0]
    assert link_for_plan(8.0, 4.0, settings) == (Link(1e6, 4.0), [])


def test_the_plan_uses_the_profile_and_reports_damage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, state_dir = tmp_path / "edge-agent.toml", tmp_path / "state"
    config.write_text(f'[agent]\nstate_dir = "{state_dir}"\n[models]\ndirectories = ["{DIGITS}"]\n')
    (edge,) = (model for model in open_bundle(DIGITS).manifest.edge if model.id == "edge-onnx")
    found = replace(point(7.0), key=replace(point(7.0).key, variant=edge.id, model_digest=edge.digest))
    path = StatePaths(state_dir).device_profile_path("digits")
    path.parent.mkdir(parents=True)
    path.write_bytes(
        encode(Profile("digits", 1, "here", describe_device(Tree(Path("/")), state_dir).fingerprint, (found,)))
    )

    def planned() -> str:
        assert plan_explain.command(parse(["plan", "explain", "digits", "--config", str(config)])) == 0
        return capsys.readouterr().out

    assert "edge-onnx by CPUExecutionProvider, 1 thread(s): 7 ms a row" in planned()
    path.write_bytes(b"{")
    output = planned()
    assert "open      No profile" in output and f"open      {path} is not a profile" in output
