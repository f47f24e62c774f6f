"""The pages about boards, followed on this machine: what needs the board, root or an index is named with the reason."""

import os
import re
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

from support import containers
from support.readme import Reader

CHECKOUT = Path(__file__).parents[2]


def test_the_page_about_the_raspberry_pi_is_true(reader: Reader) -> None:
    shutil.copytree(CHECKOUT / "models" / "digits" / "bundle", reader.folder / "digits")
    shutil.rmtree(reader.folder / "models")
    shutil.copy(CHECKOUT / "edge_agent" / "edge-agent.service", reader.folder)
    reader.skipped = {
        "scp ": "needs the board",
        "sudo /opt/firstline/bin/pip install ": "needs a package index; see tests/deploy/test_wheel.py",
        "sudo systemctl enable ": "needs systemd as the first process",
        "systemctl is-active ": "needs the service",
    }
    board = reader.folder / "board"
    reader.ports = {
        **reader.ports,
        "sudo ": "",
        "-m venv": "-m venv --without-pip",
        "/opt/firstline/bin/edge-agent": "edge-agent",
    } | {folder: f"{board}{folder}" for folder in ("/opt/firstline", "/etc/firstline", "/etc/systemd")}
    page = (CHECKOUT / "docs" / "how-to" / "raspberry-pi.md").read_text()
    for command in reader.skipped:
        assert f"$ {command}" in page
    reader.follow(page)
    assert "/opt/firstline/bin/edge-agent init" in reader.executed
    installed = board / "etc/systemd/system/edge-agent.service"
    assert installed.read_bytes() == (CHECKOUT / "edge_agent" / "edge-agent.service").read_bytes()
    unit = dict(line.split("=", 1) for line in installed.read_text().splitlines() if re.match(r"\w+=", line))
    variable, _, state = unit["Environment"].partition("=")
    # What the unit starts with these files; test_compose.py has systemd verify the unit.
    started = unit["ExecStart"].replace("/opt/firstline/bin/", "").replace("/etc/firstline", f"{board}/etc/firstline")
    checked = subprocess.run(
        shlex.split(started.replace(" run ", " doctor ")),
        env={**reader.environ, variable: f"{board}{state}"},
        cwd=board,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_page_about_the_jetson_is_true(reader: Reader) -> None:
    """Without containers: their commands run here."""
    shutil.copytree(CHECKOUT / "models" / "digits" / "bundle", reader.folder / "digits")
    shutil.rmtree(reader.folder / "models")
    programs = reader.folder / "programs"
    programs.mkdir()
    containers.install(programs)
    reader.environ = {**reader.environ, "PATH": f"{programs}{os.pathsep}{reader.environ['PATH']}"}
    page = (CHECKOUT / "docs" / "how-to" / "jetson.md").read_text()
    try:
        reader.follow(page)
    finally:
        running = reader.folder / "docker.pid"
        if running.exists():
            os.kill(int(running.read_text()), signal.SIGTERM)
    assert [command.split()[0] for command in reader.executed] == [
        "docker",
        "docker",
        "mkdir",
        "docker",
        "docker",
        "curl",
    ]
