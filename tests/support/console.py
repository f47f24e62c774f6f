"""A gateway and the console as processes of their own, and simulated devices that report over HTTP."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
from support.databases import sqlite_store
from support.gateway import DIGITS
from support.keys import bearer, create_key, create_keys
from support.processes import TierProcess

from firstline_core.fleet.profiles import profile_path
from firstline_core.fleet.telemetry import ModelCounts, Telemetry
from firstline_core.fleet.twin import Desired, Reported, RunningModel, Update
from firstline_core.fleet.update import UpdateState
from firstline_core.profile.profile import Profile
from firstline_gateway.settings.settings import StoreSection

ROLLOUTS = "/fleet/v1/rollouts"
_START_S = 60.0
_RUNS = (UpdateState.TRIAL, UpdateState.COMMITTED)
_WORKBENCH = {
    *("onnxruntime", "ai_edge_litert", "PIL", "tuf", "securesystemslib", "sqlalchemy", "paho"),
    *("firstline_edge", "firstline_gateway"),
}
_ABSENT = """
import sys

sys.modules.update(dict.fromkeys({absent}))
sys.argv = ["firstline", "console", *{arguments}]
from firstline.__main__ import main
sys.exit(main())
"""


def console_gateway(folder: Path, models: Path = DIGITS.parent) -> tuple[TierProcess, StoreSection]:
    """A gateway of these models that is not yet started, and its store."""
    store, config = sqlite_store(folder), folder / "gateway.toml"
    config.write_text(
        f'[models]\ndirectory = "{models}"\n[store]\nurl = "{store.url}"\n'
        f'[identity]\ndirectory = "{folder / "identity"}"\n[execution]\nsessions = 1\n'
    )
    return TierProcess("firstline_gateway", "--config", config, log=folder / "gateway.log"), store


class Fleet:
    """Devices of a gateway, and their fleet manager.

    Args:
        gateway: that runs.
        store: of the gateway.
        names: of the devices; each says that it runs version 1 of "digits".
    """

    def __init__(self, gateway: TierProcess, store: StoreSection, names: list[str]) -> None:
        self.key = create_key(store, "ops", "operator")
        self._operator = httpx.Client(base_url=gateway.url, headers=bearer(self.key), timeout=30)
        self._devices = {
            name: httpx.Client(base_url=gateway.url, headers=bearer(key), timeout=30)
            for name, key in create_keys(store, names, "device").items()
        }
        self._updates: dict[str, dict[str, Update]] = {}
        self._sequence = 0
        for name in names:
            self.say(name)

    def close(self) -> None:
        for client in (self._operator, *self._devices.values()):
            client.close()

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The gateway's answers to the fleet manager."""
        reply = self._operator.request(method, path, json=body)
        assert reply.is_success, reply.text
        return reply.json()

    def say(self, name: str, state: UpdateState | None = None, reason: str = "", bundle: str = "digits") -> Desired:
        """Has a device hear what it is to run, and say how its updates stand.

        Args:
            name: of the device.
            state: of its update of the bundle by now; None where nothing is new.
            reason: why.
            bundle: which one.

        Returns:
            What it heard.
        """
        desired = msgspec.json.decode(self._devices[name].get("/fleet/v1/twin").content, type=Desired)
        updates = self._updates.setdefault(name, {})
        if state is not None:
            (target,) = (model for model in desired.models if model.name == bundle)
            updates[bundle] = Update(bundle, target.version, state, rollout=target.rollout, reason=reason)
        self._sequence += 1
        versions = {"digits": 1} | {each.name: each.version for each in updates.values() if each.state in _RUNS}
        models = tuple(RunningModel(model, version, certified=True) for model, version in versions.items())
        report = Reported("session", self._sequence, desired.revision, models, tuple(updates.values()))
        reply = self._devices[name].put("/fleet/v1/twin/reported", content=msgspec.json.encode(report))
        assert reply.is_success, reply.text
        return desired

    def count(self, name: str, kept: int, escalated: int, errors: int = 0) -> None:
        """Has a device tell what it counted so far."""
        self._sequence += 1
        counts = ModelCounts("digits", 1, kept + escalated + errors, kept, escalated, errors)
        telemetry = Telemetry("session", self._sequence, 60.0 * self._sequence, (counts,))
        reply = self._devices[name].post("/fleet/v1/twin/telemetry", content=msgspec.json.encode(telemetry))
        assert reply.is_success, reply.text

    def alarm(self, name: str) -> None:
        """Has a device tell, with a request, that its own audits broke the promise of "digits"."""
        tensor = {"name": "image", "shape": [1, 8, 8, 1], "datatype": "UINT8", "data": [0] * 64}
        body = {"inputs": [tensor], "parameters": {"alarm_edge_digest": "0" * 64}}
        reply = self._devices[name].post("/v2/models/digits/infer", json=body)
        assert reply.is_success, reply.text

    def keep(self, profile: Profile) -> None:
        """Has the gateway keep a profile."""
        path = profile_path(profile.bundle, profile.version, profile.machine)
        reply = self._operator.put(path, content=msgspec.json.encode(profile))
        assert reply.is_success, reply.text

    def offered(self, rollout: str) -> list[str]:
        """The devices that received a rollout's model."""
        found = self.ask("GET", "/fleet/v1/devices")["devices"]
        return [one["name"] for one in found if any(model["rollout"] == rollout for model in one["desired"]["models"])]

    def start(self, patience_s: float, bundle: str = "digits") -> str:
        """Starts a rollout of version 2 to half of the devices; its id."""
        definition = {
            "bundle": bundle,
            "version": 2,
            "manifest_sha256": "0" * 64,
            "stages": [{"share": 0.5, "soak_s": 0, "patience_s": patience_s}, {"share": 1.0}],
            "held_back": 0.1,
            "salt": "half",
        }
        rollout: str = self.ask("POST", ROLLOUTS, definition)["id"]
        self.ask("POST", f"{ROLLOUTS}/{rollout}/start")
        return rollout


def without(absent: set[str], *arguments: str) -> list[str]:
    """The console's command where some packages are not installed."""
    return [sys.executable, "-c", _ABSENT.format(absent=absent, arguments=arguments)]


@contextmanager
def console(gateway: str, key: str, log: Path, *options: str, **environment: str) -> Iterator[str]:
    """Runs the console, where nothing but its extra is installed, until the end of the block; its address."""
    command = without(_WORKBENCH, "--gateway", gateway, "--port", "0", "-o", "json", *options)
    environ = {**os.environ, "FIRSTLINE_TOKEN": key, **environment}
    with log.open("w") as stream:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stream, text=True, env=environ)
    try:
        ready = process.stdout.readline()
        assert ready, log.read_text()
        yield msgspec.json.decode(ready)["url"]
    finally:
        process.terminate()
        process.communicate(timeout=_START_S)
    assert process.returncode == 0, log.read_text()
