"""The gateways' and the console's manifests are as Kubernetes wants them, and fit each other, image and settings."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.needs import program
from support.yaml_files import read_yaml

from firstline.console.access import HEALTH
from firstline_gateway import app
from firstline_gateway.settings.load import load
from firstline_gateway.settings.settings import Settings

CHECKOUT = Path(__file__).parents[2]
FOLDER = CHECKOUT / "cloud_gateway" / "kubernetes"
CONSOLE_FOLDER = CHECKOUT / "cloud_gateway" / "console" / "kubernetes"
FOLDERS = {"firstline-gateway": FOLDER, "firstline-console": CONSOLE_FOLDER}


def kustomization(folder: Path) -> dict[str, Any]:
    return read_yaml(folder / "kustomization.yaml")


def manifests(folder: Path) -> dict[str, dict[str, Any]]:
    return {name: read_yaml(folder / name) for name in kustomization(folder)["resources"]}


MANIFESTS = manifests(FOLDER)
CONSOLE = manifests(CONSOLE_FOLDER)
SCHEMA: dict[str, Any] = json.loads((Path(__file__).parent / "kubernetes_schema.json").read_text())
KINDS = {
    "ConfigMap": "io.k8s.api.core.v1.ConfigMap",
    "Deployment": "io.k8s.api.apps.v1.Deployment",
    "HorizontalPodAutoscaler": "io.k8s.api.autoscaling.v2.HorizontalPodAutoscaler",
    "NetworkPolicy": "io.k8s.api.networking.v1.NetworkPolicy",
    "PodDisruptionBudget": "io.k8s.api.policy.v1.PodDisruptionBudget",
    "Service": "io.k8s.api.core.v1.Service",
    "ServiceAccount": "io.k8s.api.core.v1.ServiceAccount",
}
DEPLOYMENT = MANIFESTS["deployment.yaml"]
POD: dict[str, Any] = DEPLOYMENT["spec"]["template"]["spec"]
(GATEWAY,) = POD["containers"]
LABELS = {"app.kubernetes.io/name": "firstline-gateway"}
SETTINGS: Settings = load(FOLDER / "gateway.toml", environ={})


def validate(manifest: dict[str, Any]) -> None:
    from jsonschema import Draft7Validator  # two seconds, which every process of pytest would take to collect

    schema = {"$ref": f"#/definitions/{KINDS[manifest['kind']]}", "definitions": SCHEMA["definitions"]}
    Draft7Validator(schema).validate(manifest)


@pytest.mark.parametrize("what", FOLDERS)
def test_manifests_match_the_schema(what: str) -> None:
    for name, manifest in manifests(FOLDERS[what]).items():
        validate(manifest)
        assert manifest["metadata"]["name"] == what, name
        assert manifest["metadata"]["labels"] == {"app.kubernetes.io/name": what}, name


def test_a_misspelt_key_is_found() -> None:
    from jsonschema import ValidationError

    wrong = json.loads(json.dumps(DEPLOYMENT))
    wrong["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(ValidationError, match="readynessProbe"):
        validate(wrong)


@pytest.mark.parametrize("folder", FOLDERS.values(), ids=FOLDERS)
def test_every_manifest_is_put_together(folder: Path) -> None:
    found = kustomization(folder)
    assert {*found["resources"], "kustomization.yaml"} == {path.name for path in folder.glob("*.yaml")}
    assert {image["name"] for image in found["images"]} == {each["image"] for each in containers(pod(folder))}


def test_the_configuration_is_one_of_the_files_put_together() -> None:
    assert kustomization(FOLDER)["configMapGenerator"] == [{"name": "firstline-gateway", "files": ["gateway.toml"]}]


@pytest.mark.parametrize("folder", FOLDERS.values(), ids=FOLDERS)
def test_kustomize_output_matches_the_schema(folder: Path) -> None:
    built = kustomized(folder)
    for manifest in built:
        validate(manifest)
        assert manifest["metadata"]["namespace"] == "firstline"
    kinds = [each["kind"] for each in manifests(folder).values()]
    assert sorted(each["kind"] for each in built) == sorted([*kinds, *(["ConfigMap"] if folder == FOLDER else [])])


def test_kustomize_mounts_the_configuration() -> None:
    built = kustomized(FOLDER)
    (config,) = (each for each in built if each["kind"] == "ConfigMap")
    (deployment,) = (each for each in built if each["kind"] == "Deployment")
    mounted = {
        volume["configMap"]["name"]
        for volume in deployment["spec"]["template"]["spec"]["volumes"]
        if "configMap" in volume
    }
    assert mounted == {config["metadata"]["name"]}
    assert config["data"]["gateway.toml"] == (FOLDER / "gateway.toml").read_text()


def kustomized(folder: Path) -> list[dict[str, Any]]:
    kubectl = program("kubectl", "`make kubectl`")
    done = subprocess.run([kubectl, "kustomize", str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def pod(folder: Path) -> dict[str, Any]:
    return manifests(folder)["deployment.yaml"]["spec"]["template"]["spec"]


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return pod.get("initContainers", []) + pod["containers"]


@pytest.mark.parametrize("folder", FOLDERS.values(), ids=FOLDERS)
def test_containers_are_unprivileged(folder: Path) -> None:
    found, dockerfile = pod(folder), (folder.parent / "Dockerfile").read_text()
    assert found["securityContext"]["runAsNonRoot"] is True
    assert f"--uid {found['securityContext']['runAsUser']}" in dockerfile
    assert found["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert found["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & found.keys()
    for container in containers(found):
        rights = container["securityContext"]
        assert rights["capabilities"] == {"drop": ["ALL"]}
        assert rights["readOnlyRootFilesystem"] is True
        assert rights["allowPrivilegeEscalation"] is False
        assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
        assert "memory" in container["resources"]["limits"]


def test_every_path_of_the_configuration_is_mounted() -> None:
    volumes = {volume["name"]: volume for volume in POD["volumes"]}
    mounts = {Path(mount["mountPath"]): mount for mount in GATEWAY["volumeMounts"]}
    assert {mount["name"] for each in containers(POD) for mount in each["volumeMounts"]} == volumes.keys()
    files = (
        SETTINGS.tls.certificate_file,
        SETTINGS.tls.key_file,
        SETTINGS.tls.ca_file,
        SETTINGS.store.password_file,
        SETTINGS.mqtt.password_file,
    )
    for file in map(Path, files):
        assert "secret" in volumes[mounts[file.parent]["name"]], file
        assert mounts[file.parent]["readOnly"] is True
    assert mounts[Path(SETTINGS.models.directory)]["readOnly"] is True
    assert "emptyDir" in volumes[mounts[Path(SETTINGS.identity.directory).parent]["name"]]
    page = (CHECKOUT / "docs" / "how-to" / "kubernetes.md").read_text()
    for volume in volumes.values():
        if "secret" in volume:
            assert f"`Secret` `{volume['secret']['secretName']}`" in page
    command = (CHECKOUT / "cloud_gateway" / "Dockerfile").read_text().partition("CMD ")[2]
    assert Path(json.loads(command.splitlines()[0])[-1]).parent in mounts


def test_the_authority_s_copy_is_private_and_whole(tmp_path: Path) -> None:
    """What the first container runs, on folders of this machine."""
    (container,) = POD["initContainers"]
    there, here = tmp_path / "authority", tmp_path / "state"
    there.mkdir()
    here.mkdir()
    for name in ("ca.key", "authorities.pem"):
        (there / name).write_text(name)
    (script,) = container["args"]
    script = script.replace("/run/secrets/authority", str(there)).replace("/var/lib/firstline", str(here))
    subprocess.run([*container["command"], script], check=True)
    identity = here / "identity"
    assert identity.stat().st_mode & 0o777 == 0o700
    assert {path.name: path.stat().st_mode & 0o777 for path in identity.iterdir()} == {
        "ca.key": 0o600,
        "authorities.pem": 0o600,
    }


def test_ports_match() -> None:
    (port,) = GATEWAY["ports"]
    assert port == {"name": "https", "containerPort": SETTINGS.api.port}
    assert SETTINGS.tls.enabled
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        http_get = GATEWAY[probe]["httpGet"]
        assert (http_get["port"], http_get["scheme"]) == ("https", "HTTPS")
        assert http_get["path"] == f"/v2/health/{'ready' if probe == 'readinessProbe' else 'live'}"
    assert [each["targetPort"] for each in MANIFESTS["service.yaml"]["spec"]["ports"]] == ["https"]
    (way_in,) = MANIFESTS["networkpolicy.yaml"]["spec"]["ingress"]
    assert way_in["ports"] == [{"protocol": "TCP", "port": "https"}]
    ways_out = {each["port"] for rule in MANIFESTS["networkpolicy.yaml"]["spec"]["egress"] for each in rule["ports"]}
    assert ways_out == {53, 5432, SETTINGS.mqtt.port}


def test_termination_period_covers_the_drain() -> None:
    command, seconds = GATEWAY["lifecycle"]["preStop"]["exec"]["command"]
    assert command == "sleep"
    ready = GATEWAY["readinessProbe"]
    assert int(seconds) > ready["periodSeconds"] * (ready["failureThreshold"] - 1)
    takes_s = int(seconds) + SETTINGS.api.drain_s + app._CLOSE_S + app._PUBLISH_S
    assert POD["terminationGracePeriodSeconds"] >= takes_s + 5


def test_selectors_match_and_a_disruption_budget_exists() -> None:
    assert DEPLOYMENT["spec"]["template"]["metadata"]["labels"] == LABELS
    selectors = [
        DEPLOYMENT["spec"]["selector"]["matchLabels"],
        MANIFESTS["service.yaml"]["spec"]["selector"],
        MANIFESTS["poddisruptionbudget.yaml"]["spec"]["selector"]["matchLabels"],
        MANIFESTS["networkpolicy.yaml"]["spec"]["podSelector"]["matchLabels"],
    ]
    assert all(selector == LABELS for selector in selectors)
    scaler = MANIFESTS["horizontalpodautoscaler.yaml"]["spec"]
    assert scaler["scaleTargetRef"]["name"] == DEPLOYMENT["metadata"]["name"]
    assert scaler["minReplicas"] > MANIFESTS["poddisruptionbudget.yaml"]["spec"]["maxUnavailable"]
    assert "replicas" not in DEPLOYMENT["spec"], "it would undo what the autoscaler decided"
    assert DEPLOYMENT["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


def test_public_addresses_need_a_key() -> None:
    assert MANIFESTS["service.yaml"]["spec"]["type"] == "LoadBalancer"
    assert not SETTINGS.api.open_metrics
    assert SETTINGS.auth.mode == "tokens"


def test_replicas_share_a_database_and_a_subscription() -> None:
    assert SETTINGS.store.url.startswith("postgresql+psycopg://")
    assert SETTINGS.mqtt.enabled
    assert SETTINGS.mqtt.group


def test_console_environment_matches_its_options() -> None:
    (container,) = pod(CONSOLE_FOLDER)["containers"]
    options = dict(argument.removeprefix("--").split("=") for argument in container["args"])
    volumes = {volume["name"]: volume["secret"] for volume in pod(CONSOLE_FOLDER)["volumes"] if "secret" in volume}
    mounts = {mount["mountPath"]: volumes.get(mount["name"]) for mount in container["volumeMounts"]}
    readme = (CONSOLE_FOLDER / "README.md").read_text()
    for option in ("tls-cert", "tls-key", "password-file", "key-file", "ca"):
        file = Path(options[option])
        secret = mounts[str(file.parent)]
        assert secret is not None, option
        assert f"`Secret` `{secret['secretName']}`" in readme and f"`{file.name}`" in readme
    assert mounts["/run/secrets/gateway"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}], "its key is the gateways'"
    assert all(mount["mountPath"] == "/tmp" or mount["readOnly"] for mount in container["volumeMounts"])


def test_console_may_reach_only_the_gateways() -> None:
    (container,) = pod(CONSOLE_FOLDER)["containers"]
    (port,) = container["ports"]
    assert f"--port={port['containerPort']}" in container["args"]
    assert f"--gateway=https://{MANIFESTS['service.yaml']['metadata']['name']}" in container["args"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"] == {"path": HEALTH, "port": port["name"], "scheme": "HTTPS"}
    policy = CONSOLE["networkpolicy.yaml"]["spec"]
    assert policy["ingress"] == [{"ports": [{"protocol": "TCP", "port": port["name"]}]}]
    names, gateways = policy["egress"]
    assert {each["port"] for each in names["ports"]} == {53}
    assert gateways == {
        "to": [{"podSelector": {"matchLabels": LABELS}}],
        "ports": [{"protocol": "TCP", "port": SETTINGS.api.port}],
    }
    assert [each["targetPort"] for each in CONSOLE["service.yaml"]["spec"]["ports"]] == [port["name"]]
    labels = {"app.kubernetes.io/name": "firstline-console"}
    assert CONSOLE["deployment.yaml"]["spec"]["template"]["metadata"]["labels"] == labels
    assert [
        CONSOLE["deployment.yaml"]["spec"]["selector"]["matchLabels"],
        CONSOLE["service.yaml"]["spec"]["selector"],
        policy["podSelector"]["matchLabels"],
    ] == [labels] * 3
