"""What the images build and start, without containers: built and started in a folder that replaces their root."""

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from support.broker import Broker, free_port
from support.images import encode
from support.installed import make_environment, outside, run
from support.yaml_files import read_yaml

from firstline.fleet.client import open_fleet

pytestmark = pytest.mark.mosquitto

CHECKOUT = Path(__file__).parents[2]
SERVICES: dict[str, dict[str, Any]] = read_yaml(CHECKOUT / "docker-compose.yml")["services"]
# What a container has at these places is below the test's folder here.
PLACES = re.compile(r"/(etc/firstline|var/lib/firstline-broker|var/lib/firstline|run/secrets|models)(?![\w-])")


def dockerfile(service: str) -> list[tuple[str, str]]:
    """(instruction, arguments) in order, continued lines joined."""
    text = re.sub(r"\\\n", " ", (CHECKOUT / SERVICES[service]["build"]["dockerfile"]).read_text())
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in text.splitlines() if line[:1].isupper()]


def build_context(folder: Path) -> Path:
    """What `docker build` would see of the checkout: `.dockerignore` lets in by name and keeps caches out."""
    lines = (CHECKOUT / ".dockerignore").read_text().splitlines()
    assert lines[0] == "*"
    let_in = [line.removeprefix("!") for line in lines if line.startswith("!")]
    kept_out = [line.removeprefix("**/") for line in lines[1:] if not line.startswith("!")]
    for pattern in let_in:
        for source in CHECKOUT.glob(pattern):
            target = folder / source.relative_to(CHECKOUT)
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns(*kept_out))
            else:
                shutil.copy(source, target)
    return folder


def build_steps(service: str) -> list[tuple[str, str]]:
    """The image's first stage, with the locks of both images."""
    steps = dockerfile(service)
    first_stage = steps[: [name for name, _ in steps].index("FROM", 1)]
    locks = "requirements/edge.lock requirements/gateway.lock"
    return [(name, re.sub(r"requirements/(edge|gateway)\.lock", locks, arguments)) for name, arguments in first_stage]


def build(folder: Path) -> Path:
    """Carries out the COPY and `pip wheel` steps of both images, and installs the result as they do."""
    context, source, wheels = build_context(folder / "context"), folder / "src", folder / "wheels"
    source.mkdir()
    first_stage = build_steps("gateway")
    assert build_steps("edge-agent") == first_stage
    for name, arguments in first_stage:
        if name == "COPY":
            *sources, target = arguments.split()
            for found in (context / path for path in sources):
                if found.is_dir():
                    shutil.copytree(found, source / target)
                else:
                    (source / target).mkdir(parents=True, exist_ok=True)
                    shutil.copy(found, source / target)
    commands = [part.strip() for name, argument in first_stage if name == "RUN" for part in argument.split("&&")]
    (wheel_command,) = (shlex.split(command) for command in commands if " wheel " in command)
    assert wheel_command[0] == "/build/bin/pip"
    arguments = [str(wheels) if part == "/dist" else part for part in wheel_command[1:]]
    run(sys.executable, "-m", "pip", *arguments, cwd=source)
    (wheel,) = wheels.glob("*.whl")
    return make_environment(wheel, folder / "environment")


class Container:
    """One service's command in a folder that has what compose mounts.

    Args:
        service: its name in docker-compose.yml.
        folder: empty.
        programs: folder of the installed ones.
        replaced: texts of the environment and what they are here, such as other services' addresses.
        added: to the environment.
    """

    def __init__(self, service: str, folder: Path, programs: Path, replaced: dict[str, str], **added: str) -> None:
        self._service = SERVICES[service]
        self._steps = dict(dockerfile(service))  # of each instruction the last one
        self._root = folder / "root"
        self._bin = programs
        self.port = free_port()
        (exposed,) = self._service["ports"]
        self._exposed = exposed.rpartition(":")[2]
        self._replaced = replaced
        self._added = added
        for volume in self._service["volumes"]:
            source, target = volume.split(":")[:2]
            if source.startswith("./"):
                self.path(target).parent.mkdir(parents=True, exist_ok=True)
                self.path(target).symlink_to(CHECKOUT / source)
        self.path("/run/secrets").mkdir(parents=True)
        self.path(self._steps["WORKDIR"]).mkdir(parents=True)

    def path(self, place: str) -> Path:
        return self._root / place.lstrip("/")

    def moved(self, text: str) -> str:
        """The text with the container's places, port and neighbours as they are here."""
        for before, after in self._replaced.items():
            text = text.replace(before, after)
        return PLACES.sub(lambda found: str(self._root) + found[0], text)

    @property
    def environment(self) -> dict[str, str]:
        variables = {key: self.moved(value) for key, value in self._service["environment"].items()}
        variables = {key: "127.0.0.1" if value == "0.0.0.0" else value for key, value in variables.items()}
        return (
            outside()
            | {key: str(self.port) if key.endswith("_API__PORT") else value for key, value in variables.items()}
            | {"PATH": f"{self._bin}:/usr/bin:/bin", **self._added}
        )

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self._bin / command[0], *map(self.moved, command[1:])],
            cwd=self.path(self._steps["WORKDIR"]),
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=30,
        )

    def healthy(self) -> bool:
        kind, *command = self._service["healthcheck"]["test"]
        assert kind == "CMD"
        return self.run(*(part.replace(f":{self._exposed}/", f":{self.port}/") for part in command)).returncode == 0

    @contextmanager
    def started(self) -> Iterator[None]:
        """The image's CMD, until the end of the block: SIGTERM must end it with code 0."""
        command = json.loads(self._steps["CMD"])
        log = (self._root / "log").open("w+")
        process = subprocess.Popen(
            [self._bin / command[0], *map(self.moved, command[1:])],
            cwd=self.path(self._steps["WORKDIR"]),
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        try:
            line = process.stdout.readline()
            scheme = "https" if self.environment.get("FIRSTLINE_GATEWAY_TLS__ENABLED") == "true" else "http"
            assert line == f"listening on {scheme}://127.0.0.1:{self.port}\n", (line, (self._root / "log").read_text())
            yield
            process.send_signal(signal.SIGTERM)
            assert process.wait(float(self._service["stop_grace_period"].removesuffix("s"))) == 0
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            process.stdout.close()
            log.close()


def test_the_images_commands_serve_as_compose_starts_them(tmp_path: Path) -> None:
    devices, gateways, programs = str(free_port()), str(free_port()), build(tmp_path) / "bin"
    folder = tmp_path / "gateway" / "root" / "var" / "lib" / "firstline-broker"
    gateway = Container(
        "gateway",
        tmp_path / "gateway",
        programs,
        {"mosquitto": "127.0.0.1", "/127.0.0.1/config": "/var/lib/firstline-broker"},
        FIRSTLINE_GATEWAY_MQTT__PORT=gateways,
        FIRSTLINE_GATEWAY_BROKER__PORT=devices,
        FIRSTLINE_GATEWAY_BROKER__GATEWAY_PORT=gateways,
        FIRSTLINE_GATEWAY_IDENTITY__BROKER_PORT=devices,
    )
    agent = Container("edge-agent", tmp_path / "agent", programs, {})
    agent.path("/run/secrets/edge_api_tokens").write_text("app:" + "a" * 48 + "\n")
    assert not gateway.healthy()
    assert not agent.healthy()

    url = f"https://127.0.0.1:{gateway.port}"
    created = gateway.run(
        *("firstline-gateway", "key", "create", "ops", "--scope", "fleet", "--scope", "infer"),
        *("--config", "/etc/firstline/gateway.toml"),
    )
    assert created.returncode == 0, created.stderr
    with gateway.started():
        assert gateway.healthy()
        authority = gateway.path("/var/lib/firstline/identity/authorities.pem")
        with open_fleet(url, created.stdout.strip(), authority) as fleet:
            (invitation,) = fleet.invite(["edge-1"], 3600)
        token = tmp_path / "token"
        token.write_text(invitation.token)
        joined = agent.run("edge-agent", "join", url, "--token-file", str(token))
        assert joined.returncode == 0, joined.stderr
        with Broker(tmp_path / "broker", config=folder / "mosquitto.conf", port=int(gateways)), agent.started():
            assert agent.healthy()
            body = encode(np.full((8, 8), 90, np.uint8))
            infer = f"http://127.0.0.1:{agent.port}/firstline/v1/models/digits/infer"
            headers = {"Authorization": "Bearer " + "a" * 48}
            for route in ("edge", "cloud"):
                reply = httpx.post(infer, params={"route": route, "timeout": "10000000"}, content=body, headers=headers)
                assert (reply.status_code, reply.json()["tier"]) == (200, route), reply.text
            links: dict[str, Any] = {}
            while {link["state"] for link in links.values()} != {"up"} or len(links) != 2:
                time.sleep(0.05)  # it is another process
                links = httpx.get(f"http://127.0.0.1:{agent.port}/firstline/v1/status", headers=headers).json()["links"]
