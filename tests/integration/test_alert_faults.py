"""Each alert of Prometheus by its fault in a real gateway or device, and the end of the alert with the fault.

The rules' expressions are as shipped. Their delays and windows are shortened here; `test_alerts.py` covers them.
"""

import re
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from io import BytesIO
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import pytest
import yaml
from msgspec.structs import replace
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from support.audits import EVERY_ANSWER
from support.broker import Broker
from support.digits import digits_bundle, scans
from support.gateway import client_of, wait_for_gauge
from support.images import noise
from support.keys import create_key
from support.mqtt_device import MqttDevice, device_at
from support.prometheus import RULES, alerts, prometheus
from support.proxy import FINE, ChaosProxy, Network
from support.registry_site import RegistrySite, registry_site
from support.waiting import until
from support.webhook_receiver import Receiver, receiver, secret_file
from support.yaml_files import read_yaml

from firstline.release import publishing
from firstline_core.clock import SystemClock
from firstline_core.errors import FirstlineError, QueueFullError
from firstline_core.fleet.telemetry import DeviceHealth, Telemetry
from firstline_core.fleet.twin import Reported, RunningModel, Update
from firstline_core.fleet.update import UpdateState
from firstline_core.protocol.mqtt_messages import Publication
from firstline_core.units import DAY_S
from firstline_edge.app import EdgeAgent
from firstline_edge.fleet import report
from firstline_edge.fleet.updates.installation import manifest_sha256
from firstline_gateway import app
from firstline_gateway.executors import local
from firstline_gateway.executors.base import Outcome
from firstline_gateway.identity import authorities, ca
from firstline_gateway.identity.tls import ServerTls
from firstline_gateway.settings.settings import TlsSection, WebhookSection
from firstline_gateway.store import database

pytestmark = pytest.mark.mosquitto

ROLLOUT: dict[str, Any] = {
    "bundle": "digits",
    "stages": [{"share": 1.0, "soak_s": 0}],
    "rules": {
        "limits": {
            name: {"tolerance": 1000}
            for name in ("crashes", "errors", "latency", "escalations", "disagreement", "alarms")
        }
    },
    "held_back": 0,
}


def shortened(folder: Path) -> Path:
    """The rules with short delays and windows."""
    text = re.sub(r"\[(5m|30m|1h|6h|1d)\]", "[2s]", RULES.read_text())
    rules = yaml.safe_load(text)
    for group in rules["groups"]:
        for rule in group["rules"]:
            if "for" in rule:
                rule["for"] = "300ms" if rule["for"] != "0m" else "0s"
    path = folder / "rules.yml"
    path.write_text(yaml.safe_dump(rules))
    return path


def unseen_scans() -> Iterator[bytes]:
    """Yields scans without end, each with another comment, so that no cache has the file."""
    for number, scan in enumerate(cycle(scans(1000))):
        comment = PngInfo()
        comment.add_text("number", str(number))
        file = BytesIO()
        Image.open(BytesIO(scan)).save(file, "PNG", pnginfo=comment)
        yield file.getvalue()


class LaterClock(SystemClock):
    """A clock that can jump ahead."""

    ahead_s = 0.0

    def monotonic_s(self) -> float:  # type: ignore[override]
        return SystemClock.monotonic_s() + self.ahead_s

    def wall_s(self) -> float:  # type: ignore[override]
        return SystemClock.wall_s() + self.ahead_s


class Site:
    """A gateway with a broker, a device with an HTTP link and an MQTT link, a device over MQTT, and Prometheus.

    Attributes:
        firing: the alerts that must fire now, and no others.
    """

    def __init__(self, folder: Path, gateway: RegistrySite, broker: Broker, hook: Receiver, cam: MqttDevice) -> None:
        self.folder = folder
        self.site = gateway
        self.broker = broker
        self.hook = hook
        self.cam = cam
        self.firing: set[str] = set()
        self.client: httpx.AsyncClient
        self.application: httpx.AsyncClient
        self.agent: EdgeAgent
        self.network: ChaosProxy
        self.clock = LaterClock()
        self.running = AsyncExitStack()
        self._sequence = 0
        self._scans = unseen_scans()

    async def fires(self, *names: str, work: Callable[[], Any] | None = None) -> None:
        """Waits until these alerts fire too."""
        self.firing |= set(names)
        await self._settles(work)

    async def clears(self, *names: str, work: Callable[[], Any] | None = None) -> None:
        """Waits until these alerts have ended."""
        self.firing -= set(names)
        await self._settles(work)

    async def _settles(self, work: Callable[[], Any] | None) -> None:
        found: set[str] = set()

        async def as_expected() -> bool:
            nonlocal found
            if work is not None:
                await work()
            found = await alerts(self.client, "firing")
            return found == self.firing and found == await alerts(self.client)

        try:
            await until(as_expected, 60)
        except (TimeoutError, AssertionError):
            raise AssertionError(f"firing: {found}, expected: {self.firing}") from None

    async def start_device(self, name: str) -> None:
        """Starts the agent of the device, instead of one that runs, with its state in a folder of this name."""
        await self.running.aclose()
        self.agent = await self.running.enter_async_context(device(self, name))

    async def say(self, topic: str, document: object) -> None:
        await self.cam.client.publish(Publication(topic, msgspec.json.encode(document)))

    async def cam_reports(self, version: int, health: DeviceHealth | None = None, *updates: Update) -> None:
        """The device over MQTT says what it runs, and how it is."""
        self._sequence += 1
        device = await self.site.gateway.fleet.desired("cam")
        reported = Reported(
            "s", self._sequence, device.revision, models=(RunningModel("digits", version),), updates=updates
        )
        await self.say(self.cam.topics.reported, reported)
        await self.say(self.cam.topics.telemetry, Telemetry("s", self._sequence, health=health or self.well()))

    def well(self, days: float = 80.0) -> DeviceHealth:
        return DeviceHealth(certificate_ends_s=self.site.now_s() + days * DAY_S)

    async def infer(self, route: str = "auto") -> None:
        """The device answers an image that it has not seen, or fails because of the fault."""
        with suppress(FirstlineError):
            await self.agent.data_plane.infer_file("digits", next(self._scans), route=route)

    async def ask_gateway(self) -> None:
        """An application asks the full model, which may fail because of the fault."""
        await self.application.post("/firstline/v1/models/digits/infer", content=noise(side=28))

    async def escalate(self) -> None:
        """The full model answers an image."""
        await self.infer("cloud")

    async def publish(self, now_s: float) -> None:
        """The publisher signs the registry's metadata at a moment."""
        await self.site.with_registry(
            lambda registry: publishing.publish(self.site.keyring, registry, now_s, renew=True)
        )
        await self.site.registry.maintain()


@asynccontextmanager
async def whole_site(folder: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    monkeypatch.setattr(app, "REFRESH_S", 0.2)
    monkeypatch.setattr(app, "_REFRESH_INTERVAL_S", 0.2)
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 1.0)
    overrides: dict[str, Any] = {
        "mqtt__enabled": True,
        "mqtt__port": broker.port,
        "auth__refresh_s": 0.2,
        "contracts__delta": 0.06,
    }
    async with AsyncExitStack() as stack:
        hook = stack.enter_context(receiver())
        overrides["webhooks"] = {"ops": WebhookSection(url=hook.url, secret_file=secret_file(folder))}
        gateway = await stack.enter_async_context(registry_site(folder, **overrides))
        await gateway.begin()
        await gateway.registry.maintain()
        await wait_for_gauge(gateway.gateway, "firstline_gateway_fleet_mqtt_connected")
        found = Site(folder, gateway, broker, hook, await stack.enter_async_context(device_at(broker, "cam")))
        found.network = await stack.enter_async_context(ChaosProxy(int(gateway.url.rpartition(":")[2])))
        stack.push_async_callback(found.running.aclose)
        await found.start_device("device")
        key = create_key(gateway.gateway.settings.store, "prometheus", "application")
        found.application = await stack.enter_async_context(client_of(gateway.gateway, gateway.url))
        found.client = await stack.enter_async_context(prometheus(folder, gateway.url, key, shortened(folder)))
        create_key(gateway.gateway.settings.store, "cam", "device")
        await found.cam_reports(1)
        yield found


def device(site: Site, name: str) -> EdgeAgent:
    """The agent of the device, with its state in a folder of this name."""
    firmware = site.folder / "root/sys/devices/platform/soc/soc:firmware"
    firmware.mkdir(parents=True, exist_ok=True)
    (firmware / "get_throttled").write_text("0\n")
    settings = site.site.device_settings(
        site.folder,
        agent__state_dir=str(site.folder / name),
        fleet__telemetry_s=0.2,
        hardware__root=str(site.folder / "root"),
        hardware__period_s=0.2,
        breaker__open_ms=100,
        breaker__open_max_ms=200,
        **EVERY_ANSWER,
    )
    (http,) = settings.links
    http = replace(http, url=f"http://127.0.0.1:{site.network.port}")
    mqtt = replace(http, kind="mqtt", url="", host=site.broker.host, port=site.broker.port, token_file="")
    return EdgeAgent(replace(settings, links=(http, mqtt)), clock=site.clock)


async def test_each_fault_raises_its_alert_until_it_ends(
    mosquitto: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {rule["alert"] for group in read_yaml(RULES)["groups"] for rule in group["rules"] if "alert" in rule}
    seen: set[str] = set()
    async with whole_site(tmp_path, mosquitto, monkeypatch) as site:
        await site.fires(work=site.infer)
        for faults in (faults_of_devices, faults_of_rollouts, faults_of_executors, faults_of_the_gateway):
            seen |= await faults(site, monkeypatch)
    assert seen == names


async def faults_of_devices(site: Site, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    await site.network.become(Network(refused=True))
    site.network.reset()
    await site.fires("FirstlineLinkDown", work=site.escalate)

    full = SimpleNamespace(total=100, free=1)
    with monkeypatch.context() as patched:
        patched.setattr(report, "shutil", SimpleNamespace(disk_usage=lambda _: full))
        await site.fires("FirstlineDiskFull")
        (firmware,) = site.folder.glob("root/**/get_throttled")
        firmware.write_text("4\n")
        await site.fires("FirstlineHeat")
        await site.cam_reports(1, site.well(days=3))
        await site.fires("FirstlineDeviceCertificateExpiry")
        await site.say(site.cam.topics.state, {"state": "offline", "session_id": "s"})
        await site.fires("FirstlineDevicesLate")
        found = set(site.firing)

        await site.say(site.cam.topics.state, {"state": "online", "session_id": "s"})
        await site.clears("FirstlineDevicesLate")
        await site.cam_reports(1)
        await site.clears("FirstlineDeviceCertificateExpiry")
        firmware.write_text("0\n")
        await site.clears("FirstlineHeat")
    await site.clears("FirstlineDiskFull")
    await site.network.become(FINE)
    await site.clears("FirstlineLinkDown")
    return found


async def faults_of_rollouts(site: Site, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """A rollout is paused, and then rolled back while a device that has the new version is silent."""
    bundle = digits_bundle(site.folder / "new", 2)
    await site.site.push(bundle)
    definition = ROLLOUT | {"version": 2, "manifest_sha256": manifest_sha256(bundle.path), "selector": "test=1"}
    client = site.site.client
    tagged = await client.patch("/fleet/v1/devices/cam", json={"tags": {"test": "1"}})
    assert tagged.status_code == 200, tagged.text
    site.hook.status = 500
    created = await client.post("/fleet/v1/rollouts", json=definition)
    assert created.status_code == 201, created.text
    await site.fires("FirstlineWebhookFailing")
    site.hook.status = 200
    await site.clears("FirstlineWebhookFailing")
    one = f"/fleet/v1/rollouts/{created.json()['id']}"

    async def do(command: str) -> None:
        answer = await client.post(f"{one}/{command}")
        assert answer.status_code == 200, answer.text
        await site.site.gateway.rollout_driver.drive()

    await do("start")
    await do("pause")
    await site.fires("FirstlineRolloutStuck")
    await do("resume")
    await site.clears("FirstlineRolloutStuck")
    await site.cam_reports(2, None, Update("digits", 2, UpdateState.COMMITTED, rollout=created.json()["id"]))

    async def completed() -> bool:
        await site.site.gateway.rollout_driver.drive()
        found = (await client.get(one)).json()
        return found["state"] == "completed"

    await until(completed, 20)
    await do("rollback")
    await site.fires("FirstlineRollbackStuck")
    await site.cam_reports(1)
    await site.clears("FirstlineRollbackStuck", work=site.site.gateway.rollout_driver.drive)
    return {"FirstlineWebhookFailing", "FirstlineRolloutStuck", "FirstlineRollbackStuck"}


async def faults_of_executors(site: Site, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The full model's executor refuses all requests; another time, its answers are wrong."""
    budget = {"FirstlineErrorBudgetFastBurn", "FirstlineErrorBudgetSlowBurn"}
    run_batch = local.run_batch

    def refuse(_model: object, inputs: Sequence[object], *_: object) -> list[Outcome]:
        return [QueueFullError("The executor refuses.") for _ in inputs]

    def answer_wrongly(*arguments: Any) -> list[Outcome]:
        outcomes = run_batch(*arguments)
        return [
            each if isinstance(each, Exception) else {name: array[..., ::-1] for name, array in each.items()}
            for each in outcomes
        ]

    async def promised() -> bool:
        await site.escalate()
        return site.agent.outbox.depth > 0

    with monkeypatch.context() as patched:
        patched.setattr(local, "run_batch", refuse)
        await until(promised, 60)
        site.clock.ahead_s = 4000.0
        await site.fires(*budget, "FirstlineOutboxOld", work=site.ask_gateway)
    await site.clears(*budget, "FirstlineOutboxOld", work=site.ask_gateway)

    contract = {"FirstlineContractAlarm", "FirstlineDeviceContractAlarm"}
    with monkeypatch.context() as patched:
        patched.setattr(local, "run_batch", answer_wrongly)
        await site.fires(*contract, work=site.infer)
    answer = await site.site.client.delete("/firstline/v1/contracts/digits/versions/1")
    assert answer.status_code == 200, answer.text
    await site.start_device("emptied")

    async def alarm_ended() -> bool:
        await site.escalate()
        return not site.site.gateway.metrics.registry.get_sample_value(
            "firstline_gateway_contract_device_alarms", {"model": "digits", "version": "1"}
        )

    await until(alarm_ended, 60)  # an alert without samples ends, too: after a scrape that failed
    await site.clears(*contract)
    return {*budget, *contract, "FirstlineOutboxOld"}


async def faults_of_the_gateway(site: Site, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    store = site.site.gateway.settings.store
    now_s = site.site.now_s()
    await site.publish(now_s - 80 * DAY_S)
    await site.fires("FirstlineMetadataExpiry")
    await site.publish(now_s)
    await site.clears("FirstlineMetadataExpiry")

    site.broker.kill()  # without goodbyes, which would announce that devices are offline
    await site.fires("FirstlineBrokerDisconnected")
    site.broker.start()
    await site.clears("FirstlineBrokerDisconnected")

    locked = sqlite3.connect(store.url.removeprefix("sqlite:///"), isolation_level=None)
    locked.execute("BEGIN IMMEDIATE")
    await site.fires("FirstlineStoreDown")
    locked.execute("ROLLBACK")
    locked.close()
    await site.clears("FirstlineStoreDown")

    files = site.folder / "server.pem", site.folder / "server.key"
    authority = ca.create_authority(ca.new_key(), now_s - 90 * DAY_S)

    def issue(days_ago: float) -> None:
        certificate, private = ca.issue_server(authority, ["127.0.0.1"], now_s - days_ago * DAY_S)
        authorities.write(files[0], ca.pem_of(certificate).encode())
        authorities.write(files[1], ca.key_pem(private), private=True)

    issue(days_ago=80)
    identity = site.site.gateway.identity
    own = TlsSection(enabled=True, certificate_file=str(files[0]), key_file=str(files[1]))
    identity.tls = ServerTls(own, identity.folder, site.site.gateway.clock)
    await site.fires("FirstlineServerCertificateExpiry")
    issue(days_ago=0)
    assert await identity.tls.refresh()
    await site.clears("FirstlineServerCertificateExpiry")

    key = (site.folder / "key").read_text()
    (site.folder / "key").write_text("withdrawn")
    await site.fires("FirstlineGatewayDown")
    (site.folder / "key").write_text(key)
    await site.clears("FirstlineGatewayDown")
    return {
        "FirstlineMetadataExpiry",
        "FirstlineBrokerDisconnected",
        "FirstlineStoreDown",
        "FirstlineServerCertificateExpiry",
        "FirstlineGatewayDown",
    }
