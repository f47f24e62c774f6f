"""The fleet of a gateway over its REST API: its devices, the brake, and by `Fleet.rollouts` what is brought to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import httpx

from firstline.client import connection
from firstline.fleet.profiles import Profiles
from firstline.fleet.request import send
from firstline.fleet.rollouts import Rollouts
from firstline_core.fleet import rest
from firstline_core.fleet.rest import FleetDevice, FleetDevicePage, TierHistory
from firstline_core.fleet.twin import Brake
from firstline_core.protocol.enrolment import (
    DEVICES_PATH,
    DeviceList,
    DeviceState,
    Invitation,
    InviteAnswer,
    InviteRequest,
)

_TIMEOUT_S = 30.0
_AT_ONCE = 1000  # names in one request, or devices in one answer

_T = TypeVar("_T")


class Fleet:
    """One gateway's devices; see `open_fleet`."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    @cached_property
    def rollouts(self) -> Rollouts:
        """How models come to the devices, and who decided what."""
        return Rollouts(self._client)

    @cached_property
    def profiles(self) -> Profiles:
        """What bundles' models cost on machines."""
        return Profiles(self._client)

    def invite(self, devices: Sequence[str], valid_s: float) -> list[Invitation]:
        """A join token for each device, in their order; the gateway shows them this once.

        Raises:
            ConfigError: a name that no device can have.
            FirstlineError: what the gateway said.
        """
        found: list[Invitation] = []
        for start in range(0, len(devices), _AT_ONCE):
            asked = InviteRequest(tuple(devices[start : start + _AT_ONCE]), valid_s)
            found += send(self._client, "POST", DEVICES_PATH, InviteAnswer, asked).invitations
        return found

    def devices(self) -> Iterator[DeviceState]:
        """All of them, by name.

        Raises:
            FirstlineError: what the gateway said.
        """
        after: str | None = ""
        while after is not None:
            page = send(self._client, "GET", f"{DEVICES_PATH}?after={quote(after, safe='')}", DeviceList)
            yield from page.devices
            after = page.after

    def revoke(self, device: str) -> None:
        """Refuses a device from now on.

        Raises:
            FirstlineError: what the gateway said.
        """
        send(self._client, "POST", f"{DEVICES_PATH}/{quote(device, safe='')}/revoke", dict)

    def fleet(self, selector: str = "") -> Iterator[FleetDevice]:
        """What the devices run and say, by name; those that a selector of tags means.

        Raises:
            FirstlineError: what the gateway said.
        """
        after: str | None = ""
        while after is not None:
            page = self.page(after, selector)
            yield from page.devices
            after = page.after

    def page(
        self, after: str = "", selector: str = "", model: str = "", version: int | None = None, limit: int = _AT_ONCE
    ) -> FleetDevicePage:
        """The next devices after a name.

        Args:
            after: the name; "" for the first ones.
            selector: of their tags.
            model: only those that run it.
            version: likewise, in this version.
            limit: most of them, up to 1000.

        Raises:
            FirstlineError: what the gateway said.
        """
        asked = {"after": after, "selector": selector, "model": model, "limit": str(limit)}
        if version is not None:
            asked["version"] = str(version)
        return send(self._client, "GET", rest.DEVICES_PATH, FleetDevicePage, params=asked)

    def tiers(self, hours: int = 24, model: str = "") -> TierHistory:
        """Who answered what the devices were asked, over the last hours; of one model, or of all.

        Raises:
            FirstlineError: what the gateway said.
        """
        return send(self._client, "GET", rest.TIERS_PATH, TierHistory, params={"hours": str(hours), "model": model})

    def device(self, name: str) -> FleetDevice:
        """One device.

        Raises:
            FirstlineError: what the gateway said.
        """
        return send(self._client, "GET", _device(name), FleetDevice)

    def tag(self, name: str, tags: Mapping[str, str | None]) -> FleetDevice:
        """Sets tags, and takes away those that are None.

        Raises:
            FirstlineError: what the gateway said.
        """
        return send(self._client, "PATCH", _device(name), FleetDevice, {"tags": dict(tags)})

    def accept(self, name: str) -> FleetDevice:
        """Lets a device in for good.

        Raises:
            FirstlineError: what the gateway said.
        """
        return send(self._client, "PATCH", _device(name), FleetDevice, {"accepted": True})

    def decommission(self, name: str) -> None:
        """Sends a device away for good: no access, and nothing kept of it.

        Raises:
            FirstlineError: what the gateway said.
        """
        send(self._client, "POST", f"{_device(name)}/decommission", dict)

    def brake(self, brake: Brake | None) -> int:
        """Holds the whole fleet's escalation, or lifts that; how many devices are told.

        Raises:
            FirstlineError: what the gateway said.
        """
        method = "PUT" if brake is not None else "DELETE"
        return int(send(self._client, method, rest.BRAKE_PATH, dict[str, Any], brake)["devices"])


def _device(name: str) -> str:
    return f"{rest.DEVICES_PATH}/{quote(name, safe='')}"


@contextmanager
def open_fleet(url: str, key: str, ca_file: Path | None = None, timeout_s: float = _TIMEOUT_S) -> Iterator[Fleet]:
    """The fleet of the gateway at `url`.

    Args:
        url: with https, unless the gateway is on this machine.
        key: an API key with the scope "fleet".
        ca_file: whom to believe (PEM); None for the machine's own authorities.
        timeout_s: how long the gateway may keep silent.

    Raises:
        ConfigError: the URL, the key or the file is none.
    """
    headers = {**connection.authorization(key), "Content-Type": "application/json"}
    with connection.open_gateway(url, headers, ca_file, timeout_s) as client:
        yield Fleet(client)
