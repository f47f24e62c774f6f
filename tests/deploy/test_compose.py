"""docker-compose.yml, the Dockerfiles and the unit fit each other, the checkout and the programs they start."""

import configparser
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from support.yaml_files import read_yaml

import firstline.console.access
import firstline.console.settings
import firstline_edge.settings.load
import firstline_edge.settings.settings
import firstline_gateway.settings.load
import firstline_gateway.settings.settings
from firstline_gateway.settings.settings import BROKER_USER

CHECKOUT = Path(__file__).parents[2]
COMPOSE = read_yaml(CHECKOUT / "docker-compose.yml")
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
BUILT = {service: found for service, found in SERVICES.items() if "build" in found}
DOCKERFILES = {service: CHECKOUT / found["build"]["dockerfile"] for service, found in BUILT.items()}
UNIT = CHECKOUT / "edge_agent" / "edge-agent.service"


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    """(instruction, arguments) in order, continued lines joined."""
    text = re.sub(r"\\\n", " ", dockerfile.read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines]


def mounts(service: str) -> dict[str, str]:
    """Path in the container to path in the checkout, of what is mounted from there."""
    pairs = [volume.split(":") for volume in SERVICES[service].get("volumes", [])]
    return {target[0]: source for source, *target in pairs if source.startswith("./")}


def test_the_file_follows_the_compose_specification() -> None:
    from jsonschema import Draft201909Validator  # two seconds, which every process of pytest would take to collect

    schema = json.loads((Path(__file__).parent / "compose_spec.json").read_text())
    Draft201909Validator(schema).validate(COMPOSE)


@pytest.mark.parametrize("service", SERVICES)
def test_each_service_is_confined_and_watched(service: str) -> None:
    found = SERVICES[service]
    assert found["read_only"] is True
    assert found["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in found["security_opt"]
    assert found["pids_limit"] <= 512
    assert found["mem_limit"] in {"256m", "512m", "1g", "2g"}
    assert found["healthcheck"]["test"][0] == "CMD"
    assert all(port.startswith("127.0.0.1:") for port in found.get("ports", []))


@pytest.mark.parametrize("service", SERVICES)
def test_mounted_files_exist(service: str) -> None:
    missing = [source for source in mounts(service).values() if not (CHECKOUT / source).exists()]
    assert missing == []


def test_grafana_finds_the_dashboards_and_their_data() -> None:
    monitoring = CHECKOUT / "cloud_gateway" / "monitoring" / "grafana"
    (provider,) = read_yaml(monitoring / "dashboards.yml")["providers"]
    (source,) = read_yaml(monitoring / "datasources.yml")["datasources"]
    folder = CHECKOUT / mounts("grafana")[provider["options"]["path"]]
    dashboards = [json.loads(file.read_text()) for file in folder.iterdir()]
    assert {each["uid"] for each in dashboards} == {"firstline-fleet", "firstline-contract", "firstline-gateway"}
    assert {panel["datasource"]["uid"] for each in dashboards for panel in each["panels"]} == {"${datasource}"}
    for each in dashboards:
        (variable,) = each["templating"]["list"]
        assert (variable["name"], variable["type"], variable["query"]) == ("datasource", "datasource", source["type"])
    assert source["isDefault"]
    assert source["url"] == "http://prometheus:9090"


def test_secrets_are_ignored_files() -> None:
    declared = COMPOSE["secrets"]
    ignored = (CHECKOUT / ".gitignore").read_text().splitlines()
    assert "secrets/" in ignored
    assert all(secret["file"].startswith("secrets/") for secret in declared.values())
    assert {name for service in SERVICES.values() for name in service.get("secrets", [])} == set(declared)
    files = ("docker-compose.yml", "cloud_gateway/monitoring/prometheus.yml")
    text = "".join((CHECKOUT / file).read_text() for file in files)
    named = set(re.findall(r"/run/secrets/(\w+)", text))
    assert named == set(declared)


def test_the_gateway_understands_its_environment() -> None:
    service = SERVICES["gateway"]
    file = CHECKOUT / mounts("gateway")["/etc/firstline/gateway.toml"]
    found = firstline_gateway.settings.load.load(file, environ=service["environment"])
    assert (found.api.host, found.api.port) == ("0.0.0.0", 8080)
    assert found.auth.mode == "tokens"
    assert (found.tls.enabled, "gateway" in found.tls.hosts) == (True, True)
    assert (found.mqtt.enabled, found.mqtt.host, found.mqtt.port) == (True, "mosquitto", found.broker.gateway_port)
    assert (found.identity.broker_host, found.identity.broker_port) == ("mosquitto", found.broker.port)
    assert (found.mqtt.username, found.broker.hosts) == (BROKER_USER, ("mosquitto",))


def test_broker_starts_with_the_generated_files() -> None:
    broker, gateway = SERVICES["mosquitto"], SERVICES["gateway"]
    found = firstline_gateway.settings.load.load(None, environ=gateway["environment"])
    shell, script, folder = broker["entrypoint"]
    assert (shell, folder) == ("/bin/sh", found.broker.seen_as)
    assert script in mounts("mosquitto")
    assert f"broker:{folder}" in broker["volumes"]
    assert f"broker:{found.broker.directory}" in gateway["volumes"]
    assert str(found.broker.port) in broker["healthcheck"]["test"]
    (command,) = (line for name, line in instructions(DOCKERFILES["gateway"]) if name == "RUN" and "useradd" in line)
    assert f"--uid {broker['user'].partition(':')[0]} " in command
    assert found.broker.directory in command


def test_the_agent_understands_its_environment() -> None:
    service = SERVICES["edge-agent"]
    file = CHECKOUT / mounts("edge-agent")["/etc/firstline/edge-agent.toml"]
    found = firstline_edge.settings.load.load(file, environ=service["environment"])
    assert (found.api.host, found.api.port) == ("0.0.0.0", 8070)
    assert found.links == ()  # they come with the identity
    assert {Path(found.api.token_file).name} == set(service["secrets"])


@pytest.mark.parametrize(
    ("service", "default", "health"),
    [
        ("gateway", firstline_gateway.settings.settings.Settings().api.port, "/v2/health/ready"),
        ("edge-agent", firstline_edge.settings.settings.EdgeSettings().api.port, "/v2/health/ready"),
        ("console", firstline.console.DEFAULT_PORT, firstline.console.access.HEALTH),
    ],
)
def test_a_service_has_the_same_port_everywhere(service: str, default: int, health: str) -> None:
    assert dict(instructions(DOCKERFILES[service]))["EXPOSE"] == str(default)
    assert SERVICES[service]["ports"] == [f"127.0.0.1:{default}:{default}"]
    assert f'://127.0.0.1:{default}{health}"' in SERVICES[service]["healthcheck"]["test"][-1]


@pytest.mark.parametrize("service", ["gateway", "edge-agent"])
def test_stop_period_covers_the_drain(service: str) -> None:
    given_s = float(SERVICES[service]["stop_grace_period"].removesuffix("s"))
    assert given_s >= firstline_gateway.settings.settings.Settings().api.drain_s + 15


@pytest.mark.parametrize("service", DOCKERFILES)
def test_copied_files_are_in_the_build_context(service: str) -> None:
    ignore = (CHECKOUT / ".dockerignore").read_text().splitlines()
    let_in = [line.removeprefix("!") for line in ignore if line.startswith("!")]
    for instruction, arguments in instructions(DOCKERFILES[service]):
        if instruction != "COPY" or arguments.startswith("--from"):
            continue
        *sources, _ = arguments.split()
        for source in sources:
            assert (CHECKOUT / source).exists()
            assert any(fnmatch(source, pattern) for pattern in let_in)


def test_private_files_are_not_in_the_build_context() -> None:
    """A tier started from the example keeps its authority's key and its store there."""
    ignore = (CHECKOUT / ".dockerignore").read_text().splitlines()
    folders = [folder for line in ignore if line.startswith("!") for folder in CHECKOUT.glob(line.removeprefix("!"))]
    assert not [folder for folder in folders if [*folder.glob("*.toml")]]


@pytest.mark.parametrize("service", DOCKERFILES)
def test_image_runs_an_installed_command_unprivileged(service: str) -> None:
    steps = instructions(DOCKERFILES[service])
    last_stage = steps[max(i for i, (name, _) in enumerate(steps) if name == "FROM") :]
    users = [arguments for name, arguments in last_stage if name == "USER"]
    assert users == ["firstline"]
    found = dict(last_stage)
    started = [*json.loads(found.get("ENTRYPOINT", "[]")), *json.loads(found.get("CMD", "[]"))]
    scripts = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["scripts"]
    assert started[0] in scripts
    if "CMD" in found:
        assert started[-1] in mounts(service)
    else:
        assert SERVICES[service]["command"]


def test_unit_and_image_start_the_same_command() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read(UNIT)
    service = unit["Service"]
    image = json.loads(dict(instructions(DOCKERFILES["edge-agent"]))["CMD"])
    started = shlex.split(service["ExecStart"])
    assert [Path(started[0]).name, *started[1:]] == image
    assert (service["DynamicUser"], service["ProtectSystem"], service["NoNewPrivileges"]) == ("yes", "strict", "yes")
    name, _, value = service["Environment"].partition("=")
    found = firstline_edge.settings.load.load(None, environ={name: value})
    assert found.state_dir == Path("/var/lib") / service["StateDirectory"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    program = tmp_path / "edge-agent"
    program.symlink_to("/bin/true")
    text = re.sub(r"^ExecStart=\S+", f"ExecStart={program}", UNIT.read_text(), flags=re.MULTILINE)
    unit = tmp_path / "edge-agent.service"
    unit.write_text(text)
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, check=False)
    complaints = [line for line in done.stderr.splitlines() if "edge-agent" in line]
    assert complaints == []
