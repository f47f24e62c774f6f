"""The profile of a plan: the device's own."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from support.agent import DIGITS
from support.profiles import point

from firstline_core.bundle.store import open_bundle
from firstline_core.hardware.kernel_files import Tree
from firstline_core.hardware.survey import describe_device
from firstline_core.profile.profile import Profile, encode
from firstline_edge.cli import plan
from firstline_edge.cli.parser import parse
from firstline_edge.state import StatePaths


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
        assert plan.command(parse(["plan", "explain", "digits", "--config", str(config)])) == 0
        return capsys.readouterr().out

    assert "edge-onnx by CPUExecutionProvider, 1 thread(s): 7 ms a row" in planned()
    path.write_bytes(b"{")
    output = planned()
    assert "open      No profile" in output and f"open      {path} is not a profile" in output
