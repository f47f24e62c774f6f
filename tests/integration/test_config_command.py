"""`firstline config` and a rollout of what it pushed, against a real gateway."""

import json
from pathlib import Path

import httpx
import msgspec
import pytest
from click.testing import Result
from support.commands import firstline
from support.digits import digits_bundle
from support.gateway import DIGITS
from support.keys import bearer
from support.registry_site import RegistrySite

from firstline_core.fleet.twin import Desired, Reported, RunningModel, Update
from firstline_core.fleet.update import UpdateState

QUIET = 'name = "quiet"\nversion = {}\n[budget]\nbytes_per_day = {}\n'
AT_ONCE = ("--configuration", "--stages", "100", "--held-back", "0", "--soak", "0s", "--promote-unseen")


@pytest.fixture
async def site(site: RegistrySite) -> RegistrySite:
    await run(site, "keys", "init")
    return site


async def run(site: RegistrySite, *arguments: object, code: int = 0) -> Result:
    return await firstline(site.url, site.operator, *arguments, code=code)


async def device_says(site: RegistrySite, sequence: int, version: int, *updates: Update) -> Desired:
    async with httpx.AsyncClient(base_url=site.url, headers=bearer(site.device)) as client:
        desired = msgspec.json.decode((await client.get("/fleet/v1/twin")).content, type=Desired)
        name = "quiet" if version else ""
        reported = Reported(
            "s",
            sequence,
            desired.revision,
            (RunningModel("digits", 1),),
            updates,
            configuration=version,
            configuration_name=name,
        )
        reply = await client.put("/fleet/v1/twin/reported", content=msgspec.json.encode(reported))
        assert reply.is_success, reply.text
    return desired


async def test_configuration_is_signed_listed_read_and_removed(site: RegistrySite, tmp_path: Path) -> None:
    file = tmp_path / "quiet.toml"
    file.write_text('name = "bad"\nversion = 1\n[links]\nurl = "https://elsewhere"\n')
    assert "unknown key 'links'" in (await run(site, "config", "push", file, code=2)).output
    absent = await run(site, "config", "push", tmp_path / "nowhere.toml", code=2)
    assert "nowhere.toml does not exist" in absent.output
    assert (await run(site, "config", "list", "-o", "json")).stdout.strip() == "[]"
    file.write_text(QUIET.format(1, 5))
    assert "quiet version 1: signed." in (await run(site, "config", "push", file)).stdout
    assert "was signed before" in (await run(site, "config", "push", file)).stdout
    file.write_text(QUIET.format(1, 6))
    assert "other content" in (await run(site, "config", "push", file, code=1)).output
    file.write_text(QUIET.format(2, 6))
    pushed = json.loads((await run(site, "config", "push", file, "-o", "json")).stdout)
    listed = json.loads((await run(site, "config", "list", "quiet", "-o", "json")).stdout)
    assert [one["version"] for one in listed] == [1, 2] and listed[1]["sha256"] == pushed["sha256"]
    assert (await run(site, "config", "get", "quiet", "2")).stdout == file.read_text()
    shown = json.loads((await run(site, "config", "get", "quiet", "1", "-o", "json")).stdout)
    assert shown["sets"] == {"budget": {"bytes_per_day": 5}}

    await run(site, "model", "push", DIGITS)  # bundles next to it, listed as before
    assert [one["name"] for one in json.loads((await run(site, "model", "list", "-o", "json")).stdout)] == ["digits"]
    await run(site, "config", "delete", "quiet", "1")
    assert "no configuration" in (await run(site, "config", "delete", "quiet", "1", code=1)).output
    assert "no version 1 of the configuration" in (await run(site, "config", "get", "quiet", "1", code=1)).output
    entries = json.loads((await run(site, "audit", "list", "--subject", "registry", "-o", "json")).stdout)
    added = [json.loads(entry["details"])["added"] for entry in entries]
    assert [one for one in added if one] == [["configuration quiet 1"], ["configuration quiet 2"], ["digits 1"]]


async def test_rollout_applies_and_reverts_a_configuration(site: RegistrySite, tmp_path: Path) -> None:
    file = tmp_path / "quiet.toml"
    file.write_text(QUIET.format(1, 5))
    sha256 = json.loads((await run(site, "config", "push", file, "-o", "json")).stdout)["sha256"]
    assert "no configuration" in (await run(site, "rollout", "create", "quiet", "7", *AT_ONCE, code=1)).output
    await device_says(site, 1, 0)
    assert "1 device," in (await run(site, "rollout", "plan", "quiet", "1", *AT_ONCE)).stdout
    rollout = (await run(site, "rollout", "create", "quiet", "1", *AT_ONCE)).stdout.strip()
    driver = site.gateway.rollout_driver
    await driver.drive()
    desired = (await device_says(site, 2, 0)).configuration
    assert desired is not None and (desired.name, desired.version, desired.sha256, desired.rollout) == (
        "quiet",
        1,
        sha256,
        rollout,
    )
    update = Update("quiet", 1, UpdateState.COMMITTED, what="configuration", rollout=rollout)
    await device_says(site, 3, 1, update)
    await driver.drive()
    assert "configuration quiet 1: completed" in (await run(site, "rollout", "get", rollout)).stdout

    assert "configuration quiet" in (await run(site, "rollout", "list")).stdout
    shown = (await run(site, "device", "get", "press-7")).stdout
    assert "runs digits 1, configuration quiet 1; desired configuration quiet 1" in shown
    assert "update to configuration quiet 1: committed" in shown

    await run(site, "rollout", "rollback", rollout)
    await driver.drive()
    desired = (await device_says(site, 4, 1, update)).configuration
    assert desired.undone
    await device_says(site, 5, 0)
    await driver.drive()
    assert "rolled_back" in (await run(site, "rollout", "get", rollout)).stdout

    refused = Update("quiet", 2, UpdateState.REJECTED, "configuration", reason="config", message="It sets costs.worth.")
    await device_says(site, 6, 0, refused)
    shown = (await run(site, "device", "get", "press-7")).stdout
    assert "update to configuration quiet 2: rejected (config): It sets costs.worth." in shown


async def test_configurations_of_rollouts_stay_signed(site: RegistrySite, tmp_path: Path) -> None:
    """Also bundles: rollouts of bundles, rollouts of configurations and unused targets are distinguished."""
    file, driver = tmp_path / "quiet.toml", site.gateway.rollout_driver
    for version in (1, 2):
        file.write_text(QUIET.format(version, version))
        await run(site, "config", "push", file)
    await run(site, "model", "push", DIGITS)
    await run(site, "model", "push", digits_bundle(tmp_path / "two", 2).path)
    await device_says(site, 1, 0)

    at_once = AT_ONCE[1:]
    brings = (await run(site, "rollout", "create", "digits", "2", *at_once)).stdout.strip()
    await driver.drive()
    refused = (await run(site, "model", "delete", "digits", "2", code=1)).stderr
    assert f"The rollout {brings} is running" in refused and "run or may go back to digits version 2" in refused
    assert "go back to digits version 1" in (await run(site, "model", "delete", "digits", "1", code=1)).stderr
    await run(site, "rollout", "abort", brings)
    await driver.drive()
    assert "no longer signed" in (await run(site, "model", "delete", "digits", "2")).stdout

    rollouts = {}
    for version in (1, 2):
        rollouts[version] = (await run(site, "rollout", "create", "quiet", str(version), *AT_ONCE)).stdout.strip()
        await driver.drive()
        refused = (await run(site, "config", "delete", "quiet", "1", code=1)).stderr
        assert f"The rollout {rollouts[version]} is running" in refused and "configuration quiet version 1" in refused
        word = (await device_says(site, 2 * version, version - 1)).configuration
        assert word.version == version
        done = Update("quiet", version, UpdateState.COMMITTED, what="configuration", rollout=word.rollout)
        await device_says(site, 2 * version + 1, version, done)
        await driver.drive()
    refused = (await run(site, "config", "delete", "quiet", "2", code=1)).stderr
    assert f"quiet version 2 from the completed rollout {rollouts[2]}" in refused

    await run(site, "config", "delete", "quiet", "1")  # no device runs it, and no rollout is under way
    await run(site, "rollout", "rollback", rollouts[2])
    await driver.drive()
    back = (await device_says(site, 6, 2)).configuration
    assert (back.version, back.rollout) == (1, rollouts[1])
    lost = Update("quiet", 1, UpdateState.REJECTED, what="configuration", rollout=rollouts[1], reason="not_found")
    await device_says(site, 7, 2, lost)
    await driver.drive()
    shown = (await run(site, "rollout", "get", rollouts[2])).stdout
    assert "rolled_back" in shown and "1 device could not go back (not_found)" in shown


async def test_newer_rollout_of_a_device_continues(site: RegistrySite, tmp_path: Path) -> None:
    for name in ("quiet", "loud"):
        file = tmp_path / f"{name}.toml"
        file.write_text(QUIET.format(1, 5).replace("quiet", name))
        await run(site, "config", "push", file)
    await device_says(site, 1, 0)
    await run(site, "device", "tag", "press-7", "site=berlin")
    older = (await run(site, "rollout", "create", "quiet", "1", *AT_ONCE)).stdout.strip()
    elsewhere = (await run(site, "rollout", "create", "loud", "1", *AT_ONCE, "--selector", "site=paris")).stdout.strip()
    states = {one["id"]: one["state"] for one in json.loads((await run(site, "rollout", "list", "-o", "json")).stdout)}
    assert states[older] == "running" and states[elsewhere] != "aborted"
    newer = (await run(site, "rollout", "create", "loud", "1", *AT_ONCE, "--selector", "site=berlin")).stdout.strip()
    states = {one["id"]: one["state"] for one in json.loads((await run(site, "rollout", "list", "-o", "json")).stdout)}
    assert states[older] == "aborted" and states[newer] == "running"
