"""The device's catalogue in an agent and on the command line, with the survey in a real process."""

import json
import subprocess
from pathlib import Path

from support.agent import edge_settings, serving_agent
from support.boards import board, say
from support.forks import run_forked
from support.waiting import until

from firstline_core.clock import SimulatedClock
from firstline_core.hardware.kernel_files import Tree
from firstline_core.hardware.readings import measured
from firstline_core.hardware.survey import describe_device, measure_device
from firstline_edge.app import EdgeAgent
from firstline_edge.hardware.surveyor import Surveyor


def edge_agent(*arguments: str, state_dir: Path) -> subprocess.CompletedProcess[str]:
    return run_forked("firstline_edge", *arguments, "--set", f"agent.state_dir={state_dir}")


async def test_a_device_is_measured_only_once(tmp_path: Path) -> None:
    measured_here = measure_device(describe_device(Tree(), tmp_path))
    assert measured_here.measured
    assert measured_here.engines
    assert measured_here.engine("onnx", "CPUExecutionProvider")
    news: list[bool] = []
    keeper = Surveyor(Tree(), tmp_path, on_change=lambda: news.append(True))
    keeper.store(measured_here)
    await keeper.run()  # it would take half a minute if it measured again
    assert news == [True]
    assert keeper.catalogue.engines == measured_here.engines
    printed = edge_agent("hardware", "get", state_dir=tmp_path)
    assert printed.returncode == 0, printed.stderr
    assert "onnx CPUExecutionProvider works" in printed.stdout
    report = json.loads(edge_agent("hardware", "get", "-o", "json", state_dir=tmp_path).stdout)
    assert report["catalogue"]["fingerprint"] == measured_here.fingerprint
    assert report["sensors"]["cpu_busy_share"]["kind"] == "measured"


async def test_an_agent_surveys_after_half_a_minute(tmp_path: Path) -> None:
    clock = SimulatedClock()
    async with EdgeAgent(edge_settings(tmp_path, hardware__survey=True), clock=clock) as agent:
        await until(lambda: agent.surveyor.catalogue is not None)
        assert not agent.surveyor.catalogue.measured
        await clock.advance(30.0)
        await until(lambda: agent.surveyor.catalogue.measured, 60)
        await until(lambda: agent.surveyor.read_stored() == agent.surveyor.catalogue)


async def test_a_damaged_catalogue_is_measured_again(tmp_path: Path) -> None:
    (tmp_path / "hardware.json").write_text('{"format": 1}\nbroken\n')
    keeper = Surveyor(Tree(), tmp_path, measures=False)
    assert keeper.read_stored() is None
    await keeper.run()
    assert not keeper.catalogue.measured


async def test_a_missing_state_directory_has_no_storage(tmp_path: Path) -> None:
    keeper = Surveyor(Tree(), tmp_path / "absent", measures=False)
    await keeper.run()
    assert keeper.catalogue.storage is None


async def test_status_and_metrics_show_the_sensors(tmp_path: Path) -> None:
    with board("raspberry-pi-4", tmp_path / "board") as root:
        settings = edge_settings(tmp_path / "state", hardware__root=str(root), hardware__period_s=0.1)
        async with serving_agent(settings) as (agent, _):
            sampler = agent.sampler

            await until(lambda: measured(sampler.latest.hottest_c) == 82.277)
            assert agent.operations.status()["hardware"]["throttling"]["under_voltage"]["value"] == 1
            assert (
                'firstline_edge_device_throttling{cause="throttled"} 1.0' in agent.operations.exposition()[0].decode()
            )
            say(root, "sys/class/thermal/thermal_zone0/temp", "61000")

            await until(lambda: measured(sampler.latest.hottest_c) == 61.0)
            catalogue = agent.surveyor.catalogue
            assert catalogue.board.startswith("Raspberry Pi 4")
