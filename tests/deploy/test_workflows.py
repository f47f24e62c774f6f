"""The workflows follow GitHub's schema, ask for few permissions, and run steps that this checkout has."""

import hashlib
import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from support.yaml_files import read_yaml

CHECKOUT = Path(__file__).parents[2]
WORKFLOWS = {file.stem: file for file in (CHECKOUT / ".github" / "workflows").glob("*.yml")}
VERSION = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["version"]
JOBS: list[tuple[str, str]] = [(name, job) for name, file in WORKFLOWS.items() for job in read_yaml(file)["jobs"]]
# What a job may write; every other one reads the repository at most.
WRITES = {
    "files": {"id-token", "attestations"},
    "images": {"packages", "id-token", "attestations"},
    "index": {"id-token"},
    "page": {"contents"},
}


def workflow(name: str) -> dict[str, Any]:
    return read_yaml(WORKFLOWS[name])


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflow_follows_the_schema(name: str) -> None:
    from jsonschema import Draft7Validator  # two seconds, which every process of pytest would take to collect

    schema = json.loads((Path(__file__).parent / "github_workflow_schema.json").read_text())
    content = workflow(name)
    content["on"] = content.pop(True)  # YAML 1.1 reads `on` as a boolean, GitHub as a name
    Draft7Validator(schema).validate(content)


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflow_itself_has_no_permissions(name: str) -> None:
    assert workflow(name)["permissions"] == {}


@pytest.mark.parametrize(("name", "job"), JOBS)
def test_job_has_a_time_limit_and_the_least_permissions(name: str, job: str) -> None:
    found = workflow(name)["jobs"][job]
    granted = {key for key, access in found["permissions"].items() if access == "write"}
    assert granted == WRITES.get(job, set())
    assert "uses" in found or found["timeout-minutes"] <= 90
    assert set(found["permissions"].values()) <= {"read", "write"}
    for step in found.get("steps", []):
        if "checkout" in step.get("uses", ""):
            assert step["with"]["persist-credentials"] is False
        assert "uses" not in step or re.search(r"@(v\d+|release/v\d+)$", step["uses"])


@pytest.mark.parametrize(("name", "job"), JOBS)
def test_steps_run_what_the_checkout_has(name: str, job: str) -> None:
    for step in workflow(name)["jobs"][job].get("steps", []):
        script = step.get("run", "")
        assert "${{" not in script  # a name of a branch or tag could contain a command
        for file in re.findall(r"(?:^|python3 )([\w./]+/\w+(?:\.py)?)", script):
            assert (CHECKOUT / file).exists(), file
        for target in re.findall(r"^make (\S+)", script):
            assert re.search(rf"^{target}:", (CHECKOUT / "Makefile").read_text(), re.MULTILINE), target
        assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


def test_release_waits_for_the_checks_and_publishes_last() -> None:
    content = workflow("release")
    jobs = content["jobs"]
    assert content[True] == {"push": {"tags": ["v*"]}}
    assert jobs["ci"]["uses"] == "./.github/workflows/ci.yml"
    assert {name: job.get("needs") for name, job in jobs.items()} == {
        "ci": None,
        "files": "ci",
        "images": "files",
        "index": ["files", "images"],
        "page": "index",
    }


def test_each_image_is_built_for_both_machines_and_attested() -> None:
    job = workflow("release")["jobs"]["images"]
    images = {entry["image"]: entry for entry in job["strategy"]["matrix"]["include"]}
    compose = read_yaml(CHECKOUT / "docker-compose.yml")["services"]
    built = {name: service["build"]["dockerfile"] for name, service in compose.items() if "build" in service}
    assert {name: entry["file"] for name, entry in images.items()} == built
    locks = {lock.stem for lock in (CHECKOUT / "requirements").glob("*.lock")}
    assert {entry["bill"] for entry in images.values()} <= locks
    steps = {step["uses"].partition("@")[0]: step["with"] for step in job["steps"] if "with" in step}
    assert steps["docker/build-push-action"]["platforms"] == "linux/amd64,linux/arm64"
    for action in ("actions/attest-build-provenance", "actions/attest-sbom"):
        assert steps[action]["subject-digest"] == "${{ steps.build.outputs.digest }}"


def checksums(folder: Path, tag: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "--silent", "checksums", f"DIST={folder}", f"TAG={tag}"]
    return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)


def test_checksums_cover_the_release_of_the_tag_alone(tmp_path: Path) -> None:
    files = {f"firstline-{VERSION}-py3-none-any.whl": b"wheel", "firstline-edge.cdx.json": b"{}"}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    refused = checksums(tmp_path, "v99.0.0")
    assert refused.returncode and not (tmp_path / "SHA256SUMS").exists()
    assert "The tag is v99.0.0" in refused.stderr
    assert checksums(tmp_path, f"v{VERSION}").returncode == 0
    listed = (tmp_path / "SHA256SUMS").read_text().splitlines()
    assert listed == [f"{hashlib.sha256(content).hexdigest()}  {name}" for name, content in files.items()]
