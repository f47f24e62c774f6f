"""The fleet's commands with a real gateway: output, exit codes, and use of the REST API alone."""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec
import pytest
from sqlalchemy import update
from support.commands import firstline
from support.keys import bearer, create_key
from typer.testing import Result

from firstline.fleet import open_fleet
from firstline.fleet.audit_export import head_of
from firstline_core.fleet.twin import Desired, Reported, RunningModel, Update
from firstline_core.fleet.update import UpdateState
from firstline_gateway.app import Gateway
from firstline_gateway.audit_log import ENTRIES

OPTIONS = ("--stages", "100", "--held-back", "0", "--soak", "0s", "--promote-unseen")


@dataclass
class FleetSite:
    gateway: Gateway
    url: str
    key: str
    folder: Path

    async def __call__(self, *arguments: object, code: int = 0) -> Result:
        return await firstline(self.url, self.key, *arguments, code=code)

    async def device_says(self, name: str, version: int, *updates: Update, audits_off: str = "") -> Desired:
        if name not in self.keys:
            self.keys[name] = create_key(self.gateway.settings.store, name, "device")
        async with httpx.AsyncClient(base_url=self.url, headers=bearer(self.keys[name])) as client:
            desired = msgspec.json.decode((await client.get("/fleet/v1/twin")).content, type=Desired)
            self.said += 1
            models = (RunningModel("digits", version),)
            reported = Reported("session", self.said, desired.revision, models, updates, audits_off=audits_off)
            await client.put("/fleet/v1/twin/reported", content=msgspec.json.encode(reported))
        return desired

    def __post_init__(self) -> None:
        self.keys: dict[str, str] = {}
        self.said = 0


@pytest.fixture
def site(gateway: Gateway, gateway_url: str, tmp_path: Path) -> FleetSite:
    return FleetSite(gateway, gateway_url, create_key(gateway.settings.store, "ops", "operator"), tmp_path)


def definition(folder: Path) -> str:
    """What the registry would say of the bundle, where there is no registry."""
    file = folder / "rollout.toml"
    file.write_text(f'manifest_sha256 = "{"0" * 64}"\n')
    return str(file)


async def test_rollout_from_plan_to_rollback(site: FleetSite) -> None:
    await site.device_says("cam", 1)
    file = definition(site.folder)
    planned = await site("rollout", "plan", "digits", "2", "--file", file, *OPTIONS)
    assert "1 device, 0 of them held back" in planned.stdout, planned.output
    started = await site("rollout", "create", "digits", "2", "--file", file, *OPTIONS)
    rollout = started.stdout.strip()
    await site.gateway.rollout_driver.drive()
    desired = await site.device_says("cam", 1)
    assert desired.models[0].version == 2
    await site.device_says("cam", 2, Update("digits", 2, UpdateState.COMMITTED, rollout=rollout))
    await site.gateway.rollout_driver.drive()
    shown = await site("rollout", "watch", rollout)
    assert "digits 2: completed" in shown.stdout, shown.output
    assert "promote" in shown.stdout and "rollback: The previous version runs again on 1 device" in shown.stdout
    listed = await site("rollout", "list", "-o", "json")
    assert [one["id"] for one in json.loads(listed.stdout)] == [rollout]
    back = await site("rollout", "rollback", rollout)
    assert back.stdout.startswith("rolling_back"), back.output
    await site.gateway.rollout_driver.drive()
    await site.device_says("cam", 1)
    await site.gateway.rollout_driver.drive()
    ended = await site("rollout", "watch", rollout, "-o", "json", code=1)
    assert json.loads(ended.stdout)["rollout"]["state"] == "rolled_back", ended.output
    refused = await site("rollout", "pause", rollout, code=1)
    assert "does not allow pause" in refused.output, refused.output


async def test_failed_devices_are_named_with_the_reason(site: FleetSite) -> None:
    await site.device_says("cam", 1)
    started = await site("rollout", "create", "digits", "2", "--file", definition(site.folder), *OPTIONS)
    rollout = started.stdout.strip()
    await site.gateway.rollout_driver.drive()
    refused = Update("digits", 2, UpdateState.REJECTED, reason="self_test_failed", rollout=rollout)
    await site.device_says("cam", 1, refused)
    await site.gateway.rollout_driver.drive()
    shown = await site("rollout", "get", rollout)
    assert ["cam", "self_test_failed"] in [line.split() for line in shown.stdout.splitlines()], shown.output
    with open_fleet(site.url, site.key) as fleet:
        summary = await asyncio.to_thread(fleet.rollouts.get, rollout)
        await site("rollout", "rollback", rollout)
        await site.gateway.rollout_driver.drive()
        (failed,) = await asyncio.to_thread(fleet.rollouts.failed, summary)  # which has gone on since the summary
    assert summary.devices == {"failed": 1} and failed.state != "failed"
    assert (failed.device, failed.reason) == ("cam", "self_test_failed")
    shown = await site("rollout", "get", rollout)
    assert ["cam", "self_test_failed"] in [line.split() for line in shown.stdout.splitlines()], shown.output


async def test_rollout_without_devices_gives_a_warning(site: FleetSite) -> None:
    await site.device_says("cam", 1)
    options = ("--file", definition(site.folder), *OPTIONS, "--selector", "site=atlantis")
    started = await site("rollout", "create", "digits", "2", *options, "-o", "json")
    assert "Warning: No device matches site=atlantis now" in started.stderr, started.output
    (warning,) = json.loads(started.stdout)["warnings"]
    assert "no device would try the model" in warning
    shown = await site("rollout", "get", json.loads(started.stdout)["id"], "-o", "json")
    assert json.loads(shown.stdout)["rollout"]["warnings"] == []


async def test_a_start_warns_of_devices_that_audit_nothing(site: FleetSite) -> None:
    await site.device_says("cam", 1, audits_off="audit.per_hour")
    options = ("digits", "2", "--file", definition(site.folder), *OPTIONS)
    warning = (
        "Warning: A stage whose edge answers are not audited is held, and audit.per_hour is 0 on 1 device. To promote"
    )
    assert warning in (await site("rollout", "plan", *options)).stdout.replace("\n", " ")
    assert warning in (await site("rollout", "create", *options)).stderr
    ignoring = await site("rollout", "create", *options, "--ignore", "disagreement", "-o", "json")
    assert "not audited" not in ignoring.stderr
    assert json.loads(ignoring.stdout)["definition"]["rules"]["ignored"] == ["disagreement"]
    refused = await site("rollout", "plan", *options, "--ignore", "speed", code=1)
    assert "there is no figure 'speed' to judge by" in refused.output


async def test_invalid_options_are_refused_before_any_request(site: FleetSite) -> None:
    for arguments, word in (
        (("--stages", "a"), "percentages"),
        *(
            (("--stages", stages), "percentages that rise")
            for stages in ("0", "-1,5", "nan", "10,5,100", "10,10", "1,200")
        ),
        *((("--soak", soak), "is not a duration") for soak in ("soon", "-5s", "nans", "infd")),
        (("--file", "/nowhere.toml"), "does not exist"),
    ):
        refused = await site("rollout", "plan", "digits", "2", *arguments, code=2)
        assert word in refused.output, refused.output


async def test_devices_are_listed_tagged_and_decommissioned(site: FleetSite) -> None:
    await site.device_says("cam", 1)
    tagged = await site("device", "tag", "cam", "site=berlin", "old-")
    assert tagged.stdout == "cam: site=berlin\n", tagged.output
    listed = await site("device", "list", "--selector", "site=berlin")
    assert "cam" in listed.stdout and "digits 1" in listed.stdout
    assert json.loads((await site("device", "list", "--selector", "!site", "-o", "json")).stdout) == []
    assert "runs digits 1" in (await site("device", "get", "cam")).stdout
    assert "Did you mean 'cam'?" in (await site("device", "get", "cma", code=1)).stderr
    assert (await site("device", "accept", "cam")).stdout == "accepted cam\n"
    await site("device", "tag", "cam", "nonsense", code=2)
    await site("device", "decommission", "cam")
    await site("device", "get", "cam", code=1)


async def test_revoked_device_is_marked_and_in_the_audit_log(site: FleetSite) -> None:
    await site.device_says("cam", 1)
    await site("device", "revoke", "cam")
    assert " revoked " in (await site("device", "list")).stdout
    assert (await site("device", "get", "cam")).stdout.startswith("cam (revoked): ")
    options = ("--file", definition(site.folder), *OPTIONS)
    planned = await site("rollout", "plan", "digits", "2", *options)
    assert "0 devices, 0 of them held back" in planned.stdout, planned.output
    entries = json.loads((await site("audit", "list", "-o", "json")).stdout)
    assert [entry["subject"] for entry in entries if entry["action"] == "device.revoke"] == ["device:cam"]


async def test_fleet_is_braked_and_released(site: FleetSite) -> None:
    await site.device_says("cam", 1)
    braked = await site("fleet", "brake", "--reason", "the gateway is being moved")
    assert braked.stdout == "braked: 1 device\n", braked.output
    assert (await site.device_says("cam", 1)).brake is not None
    assert (await site("fleet", "lift")).stdout == "lifted: 1 device\n"


async def test_the_audit_log_is_verified_against_a_stored_head(site: FleetSite) -> None:
    head = site.folder / "head.json"
    await site("fleet", "brake", "--reason", "why")
    verified = await site("audit", "verify", "--keep", str(head))
    assert verified.stdout.startswith("1 entry, none changed"), verified.output
    await site("fleet", "lift")
    again = await site("audit", "verify", "--head", str(head))
    assert "2 entries" in again.stdout and "contains the head" in again.stdout, again.output
    assert "fleet.lift" in (await site("audit", "list", "--subject", "fleet")).stdout
    with site.gateway.store.database.begin() as connection:
        connection.execute(update(ENTRIES).where(ENTRIES.c.number == 1).values(actor="application:nobody"))
    changed = await site("audit", "verify", code=1)
    assert "Entry 1 of the audit log was changed" in changed.output, changed.output


async def test_the_audit_log_is_exported_and_verified_without_the_gateway(site: FleetSite) -> None:
    await site("fleet", "brake", "--reason", "why")
    for form, since in (("jsonl", "2026-01-01"), ("csv", "")):
        file = site.folder / f"log.{form}"
        options = ("--since", since) if since else ()
        done = await site("audit", "export", "-o", form, "--file", str(file), *options)
        assert "their signed head is in" in done.stdout, done.output
        verified = await site("audit", "verify", "--file", str(file))
        assert "none changed; signed" in verified.stdout and "was not compared" in verified.stdout, verified.output
        key = json.loads(head_of(file).read_bytes())["public_key"]
        assert "leave out --file" in (await site("audit", "verify", "--file", str(file), "--keep", "x", code=2)).stderr
        by_known_key = await site("audit", "verify", "--file", str(file), "--public-key", key)
        assert "was not compared" not in by_known_key.stdout, by_known_key.output
        wrong = await site("audit", "verify", "--file", str(file), "--public-key", "0" * 64, code=1)
        assert "Another key" in wrong.output, wrong.output
        file.write_text(file.read_text().replace("fleet.brake", "fleet.lift"))
        assert "was changed" in (await site("audit", "verify", "--file", str(file), code=1)).output
    assert "audit.export" in (await site("audit", "list")).stdout
    assert "is not a time" in (await site("audit", "export", "--since", "soon", code=2)).output
