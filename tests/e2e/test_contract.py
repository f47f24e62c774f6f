"""A contract that stops holding, on real processes: the camera's image is suddenly inverted, and the audits notice."""

import asyncio
import io
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from PIL import Image
from support.forks import run_forked
from support.line import forked_site
from support.waiting import until
from typer.testing import CliRunner

from bench.support.bundles import with_certificate
from firstline.cli.app import app
from firstline.demo.site import Device, Site, digits_folder
from firstline.workbench.data.dataset import open_dataset
from firstline_core.bundle.manifest import MANIFEST_NAME, encode_manifest, parse_manifest
from firstline_core.types import Answer, Reason

THRESHOLD = 0.5
# Every edge answer is audited, so that minutes do for what takes days; what the alarm escalates is bounded to nothing.
SETTINGS = """
[audit]
per_hour = 1e9
bytes_per_hour = 1e12
max_share = 1.0
spacing_s = 0.0
on_alarm = "escalate"
escalations_per_hour = 0.0
"""


@pytest.fixture
def promised(tmp_path: Path) -> Path:
    """The digits, certified by hand: 5 % at a score of 0.5, which holds for the scans that they were made for."""
    bundle = tmp_path / "digits"
    shutil.copytree(digits_folder() / "bundle", bundle)
    manifest = parse_manifest((bundle / MANIFEST_NAME).read_bytes())
    edge = (with_certificate(manifest.edge[0], manifest, THRESHOLD), *manifest.edge[1:])
    (bundle / MANIFEST_NAME).write_bytes(encode_manifest(msgspec.structs.replace(manifest, edge=edge)))
    return bundle


def scans(count: int, *, inverted: bool = False) -> Iterator[bytes]:
    for content in open_dataset(digits_folder() / "heldout", count).contents():
        if not inverted:
            yield content
            continue
        pixels = 255 - np.array(Image.open(io.BytesIO(content)).convert("L"))
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        yield file.getvalue()


async def pooled(built: Site, folder: Path) -> dict[str, int]:
    """Audits as the gateway's metrics count them."""
    create = ("key", "create", "reader", "--config", str(folder / "gateway.toml"))
    key = await asyncio.to_thread(run_forked, "firstline_gateway", *create)
    async with httpx.AsyncClient(trust_env=False, headers={"Authorization": f"Bearer {key.stdout.strip()}"}) as client:
        metrics = (await client.get(f"{built.gateway_url}/metrics")).text
    counted = re.findall(r'firstline_gateway_audits_total\{.*result="(\w+)".*\} ([0-9.e+]+)', metrics)
    counts = {result: int(float(count)) for result, count in counted}
    return {"agreed": counts["agrees"], "disagreed": counts["disagrees"]}


async def page(device: Device, path: str) -> str:
    async with httpx.AsyncClient(trust_env=False, verify=False) as client:  # it is plain HTTP
        return (await client.get(f"{device.url}/{path}")).text


async def contract(device: Device) -> dict[str, Any]:
    return json.loads(await page(device, "firstline/v1/status"))["models"][0]["contract"]


async def asked(device: Device, content: bytes) -> Answer:
    return (await device.client.infer_file("digits", content)).answer


async def settled(device: Device) -> dict[str, Any]:
    """The contract once no audit is under way."""

    async def holds() -> bool:
        audits = (await contract(device))["audits"]
        return bool(audits["drawn"] == audits["agreed"] + audits["disagreed"] + audits["lost"])

    await until(holds)
    return await contract(device)


async def test_broken_contract_is_detected_reported_and_stored(tmp_path: Path, promised: Path) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    async with forked_site(folder, promised) as built:
        async with built.device("http", SETTINGS) as device:
            kept = [answer for scan in scans(80) if (answer := await asked(device, scan)).reason is Reason.CONFIDENT]
            assert kept and all(answer.certified for answer in kept)
            quiet = await settled(device)
            assert not quiet["alarm"]
            assert quiet["audits"]["drawn"] >= len(kept) - 5  # the budget begins empty
            assert quiet["e_value"] < quiet["alarm_at"]

            alarmed_after = 0
            for number, scan in enumerate(scans(200, inverted=True), 1):
                await asked(device, scan)
                if (await settled(device))["alarm"]:
                    alarmed_after = number
                    break
            assert 0 < alarmed_after < 60
            broken = await contract(device)
            # The gateway has counted the very audits that the device has, and their losses.
            assert await pooled(built, folder) == {name: broken["audits"][name] for name in ("agreed", "disagreed")}
            assert broken["escalates_all"] and broken["audits"]["disagreed"] > quiet["audits"]["disagreed"]

            # What was audited is answered by the full model's word from now on; what was not, for want of a quota, by
            # the edge model's, without a certificate.
            full_digest = parse_manifest((promised / MANIFEST_NAME).read_bytes()).full_digest
            again = [await asked(device, scan) for scan in scans(80)]
            assert sum(answer.model_digest == full_digest for answer in again) > 50
            fresh = [await asked(device, scan) for scan in list(scans(200))[80:]]
            for answer in (*again, *fresh):
                assert answer.certified == (answer.model_digest == full_digest)
                assert answer.certified or answer.reason is not Reason.CONFIDENT
            assert sum(answer.reason is Reason.BUDGET for answer in fresh) > 40
            assert 'firstline_edge_contract_alarm{model="digits",version="1"} 1.0' in await page(device, "metrics")
            assert f"its certificate is void: {broken['cause']}" in output_of(folder, "status")
            assert "was audited: the full model agreed" in output_of(folder, "explain", kept[-1].request_id)
            assert "the contract is broken" in (folder / "agent-http.log").read_text()
            device.process.kill()
            device.process.wait()
        async with built.device("http", SETTINGS) as device:
            remembered = await contract(device)
            assert remembered["alarm"] and remembered["escalates_all"]
            assert (remembered["cause"], remembered["since"]) == (broken["cause"], broken["since"])
            for answer in [await asked(device, scan) for scan in list(scans(200))[80:110]]:
                assert answer.certified == (answer.model_digest == full_digest)
                assert answer.reason is not Reason.CONFIDENT
            assert "certificate is void" in (folder / "agent-http.log").read_text()
    table = output_of(folder, "audit", "list")
    assert table.splitlines()[0] == "score,agree,weight,kept,certificate"
    anew = CliRunner().invoke(
        app, ["certify", "--scores", "-", "--epsilon", "0.05", "--delta", "0.1", "-o", "json"], input=table
    )
    assert json.loads(anew.stdout)["n"] == len(table.splitlines()) - 1


def output_of(folder: Path, command: str, *arguments: str) -> str:
    """What a command of `edge-agent` prints."""
    done = run_forked("firstline_edge", command, *arguments, "--config", folder / "agent-http.toml")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.mosquitto
async def test_alarm_by_one_device_reaches_the_others(tmp_path: Path, promised: Path) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    alone = SETTINGS + "fleet_devices = 1_000_000\n"  # by itself it would hardly ever alarm
    async with forked_site(folder, promised, mosquitto=True) as built:
        async with built.device("http", alone) as device:
            for scan in scans(200, inverted=True):
                await asked(device, scan)
                if (await settled(device))["alarm"]:
                    break
            found = await contract(device)
            assert "the audits of all devices together" in found["cause"]
            assert found["e_value"] < found["alarm_at"]
            assert found["escalations_per_hour"] > 0  # the gateway's quota, and not the device's own
        async with built.device("mqtt", "[audit]\nper_hour = 0.0\n") as device:
            assert not (await contract(device))["alarm"]
            for scan in scans(100):
                await asked(device, scan)
                if (await contract(device))["alarm"]:
                    break
            contract_state = await contract(device)
            assert contract_state["alarm"] and contract_state["audits"]["drawn"] == 0
            assert not any(
                answer.certified and answer.reason is Reason.CONFIDENT
                for answer in [await asked(device, scan) for scan in scans(30)]
            )
