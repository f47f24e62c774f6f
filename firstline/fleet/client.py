"""The client of a gateway's fleet API: devices, the escalation brake, rollouts, profiles and the registry."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
import msgspec
from msgspec.structs import asdict

from firstline.client import connection
from firstline.fleet.api import Api
from firstline.fleet.profiles import Profiles
from firstline.fleet.registry import Registry
from firstline.fleet.rollouts import Rollouts
from firstline_core.fleet import rest
from firstline_core.fleet.persons import PERSON_HEADER, SIGN_INS_PATH, Person, SignIn
from firstline_core.fleet.twin import Brake, Desired
from firstline_core.protocol import enrolment
from firstline_core.protocol.http_client import ClientSettings, open_client

_TIMEOUT_S = 30.0
_T = TypeVar("_T")
_PERSON: ContextVar[Person | None] = ContextVar("person", default=None)
_AT_ONCE = 1000  # names in one request, or devices in one answer


class ListedDevice(rest.FleetDevice, frozen=True):
    """A device with its access; see `EnrolmentState`. A device that was only invited has never been seen."""

    enrolled_s: float | None = None
    certificate_expires_s: float | None = None
    revoked_s: float | None = None
    invited_until_s: float | None = None


class Fleet(Api):
    """The devices of one gateway, and the other parts of its API; see `open_fleet`."""

    @cached_property
    def rollouts(self) -> Rollouts:
        """Rollouts of models to devices, and the audit log of decisions."""
        return Rollouts(self._client)

    @cached_property
    def profiles(self) -> Profiles:
        """Stored profiles: latency and energy of models on machines."""
        return Profiles(self._client)

    @cached_property
    def registry(self) -> Registry:
        """Signed bundles and configurations; every method raises `NotFoundError` if the gateway has no registry."""
        return Registry(self._client)

    def sign_in(self, attempt: SignIn) -> None:
        """Notes in the audit log that a person signed in, or was refused."""
        self._exchange("POST", SIGN_INS_PATH, msgspec.json.encode(attempt))

    def invite(self, devices: Sequence[str], valid_s: float) -> list[enrolment.Invitation]:
        """Creates a join token for each device, in the given order; the gateway shows each token only once.

        Raises:
            ConfigError: a device name is not valid.
        """
        invitations: list[enrolment.Invitation] = []
        for start in range(0, len(devices), _AT_ONCE):
            request = enrolment.InviteRequest(tuple(devices[start : start + _AT_ONCE]), valid_s)
            invitations += self._send("POST", enrolment.DEVICES_PATH, enrolment.InviteAnswer, request).invitations
        return invitations

    def devices(self) -> Iterator[enrolment.EnrolmentState]:
        """Yields all devices, by name."""
        for page in self._pages(enrolment.DEVICES_PATH, enrolment.DeviceList):
            yield from page.devices

    def revoke(self, device: str) -> None:
        """Revokes a device's access."""
        self._send("POST", f"{enrolment.DEVICES_PATH}/{quote(device, safe='')}/revoke", dict)

    def fleet(self, selector: str = "") -> Iterator[rest.FleetDevice]:
        """Yields what devices run and report, by name; only devices whose tags match the selector, if one is given."""
        for page in self._pages(rest.DEVICES_PATH, rest.FleetDevicePage, {"selector": selector, "limit": _AT_ONCE}):
            yield from page.devices

    def listed(self, selector: str = "") -> list[ListedDevice]:
        """Returns the devices of `fleet` with their access, by name; without a selector also those only invited."""
        devices = {device.name: device for device in self.fleet(selector)}
        access = {state.device: state for state in self.devices() if not selector or state.device in devices}
        listed = []
        for name in sorted({*devices, *access}):
            never_seen = rest.FleetDevice(name, {}, False, False, None, None, None, Desired(0))
            fields = asdict(devices.get(name, never_seen)) | (asdict(access[name]) if name in access else {})
            fields.pop("device", None)
            listed.append(ListedDevice(**fields))
        return listed

    def page(
        self,
        after: str = "",
        selector: str = "",
        *,
        search: str = "",
        model: str = "",
        version: int | None = None,
        presence: rest.Presence | None = None,
        accepted: bool | None = None,
        sort: rest.Sort = rest.Sort.NAME,
        limit: int = _AT_ONCE,
    ) -> rest.FleetDevicePage:
        """Returns the next page of devices.

        Args:
            after: name of the last device of the page before; "" for the first page.
            selector: of tags; "" for all devices.
            search: part of their names; "" for all.
            model: only devices that run it; "" for all.
            version: only devices that run this version of the model.
            presence: of the devices; None for any.
            accepted: whether they belong to the fleet; None for any.
            sort: their order.
            limit: devices on one page, up to 1000.
        """
        params: dict[str, object] = {"after": after, "selector": selector, "search": search, "model": model}
        params |= {"version": version, "presence": presence, "accepted": accepted, "sort": sort, "limit": limit}
        return self._send("GET", rest.DEVICES_PATH, rest.FleetDevicePage, params=params)

    def overview(self, tag: str = "site", selector: str = "") -> rest.FleetOverview:
        """Returns the state of the fleet, counted by the values of a tag."""
        return self._send("GET", rest.OVERVIEW_PATH, rest.FleetOverview, params={"tag": tag, "selector": selector})

    def tiers(self, hours: int = 24, model: str = "") -> rest.TierHistory:
        """Returns which tier answered the devices' requests over the last hours, for one model or for all."""
        return self._send("GET", rest.TIERS_PATH, rest.TierHistory, params={"hours": hours, "model": model})

    def contracts(self, bundle: str = "") -> rest.ContractStates:
        """Returns what the audits of all devices show of each promise of a bundle, or of all bundles."""
        path = f"{rest.CONTRACTS_PATH}/{quote(bundle, safe='')}" if bundle else rest.CONTRACTS_PATH
        return self._send("GET", path, rest.ContractStates)

    def end_alarm(self, bundle: str, version: str) -> None:
        """Ends the alarms of a version: its audits are deleted, and the test starts again."""
        path = f"{rest.CONTRACTS_PATH}/{quote(bundle, safe='')}/versions/{quote(version, safe='')}"
        self._send("DELETE", path, dict)

    def webhooks(self) -> tuple[rest.WebhookState, ...]:
        """Returns the webhooks in the gateway's settings."""
        return self._send("GET", rest.WEBHOOKS_PATH, rest.WebhookStates).webhooks

    def test_webhook(self, name: str) -> rest.WebhookTest:
        """Has the gateway send a test message to a webhook; returns the receiver's answer.

        Raises:
            NotFoundError: the gateway has no such webhook.
        """
        return self._send("POST", f"{rest.WEBHOOKS_PATH}/{quote(name, safe='')}/test", rest.WebhookTest)

    def braked(self) -> Brake | None:
        """Returns the limit on the escalations of the whole fleet; None without one."""
        return self._send("GET", rest.BRAKE_PATH, rest.BrakeState).brake

    def device(self, name: str) -> rest.FleetDevice:
        """Returns one device."""
        return self._send("GET", _device(name), rest.FleetDevice)

    def tag(self, name: str, tags: Mapping[str, str | None]) -> rest.FleetDevice:
        """Sets tags of a device; None as a value removes the tag."""
        return self._send("PATCH", _device(name), rest.FleetDevice, {"tags": dict(tags)})

    def accept(self, name: str) -> rest.FleetDevice:
        """Accepts a device permanently."""
        return self._send("PATCH", _device(name), rest.FleetDevice, {"accepted": True})

    def decommission(self, name: str) -> None:
        """Decommissions a device: revokes its access and deletes everything stored about it."""
        self._send("POST", f"{_device(name)}/decommission", dict)

    def brake(self, brake: Brake | None) -> int:
        """Limits the escalations of the whole fleet, or removes the limit; returns the number of devices concerned."""
        method = "PUT" if brake is not None else "DELETE"
        return int(self._send(method, rest.BRAKE_PATH, dict[str, Any], brake)["devices"])


def _device(name: str) -> str:
    return f"{rest.DEVICES_PATH}/{quote(name, safe='')}"


@contextmanager
def open_fleet(url: str, key: str, ca_file: Path | None = None, timeout_s: float = _TIMEOUT_S) -> Iterator[Fleet]:
    """Opens the fleet API of a gateway; the environment's proxies are not used.

    Args:
        url: of the gateway; https unless the gateway runs on this machine.
        key: an API key with the scope "fleet".
        ca_file: CA certificates used to verify the gateway (PEM); None for those that this system trusts.
        timeout_s: the longest that the gateway may stay silent (seconds).

    Raises:
        ConfigError: the URL, the key or the file is not valid.
    """
    headers = {**connection.authorization(key), "Content-Type": "application/json"}
    tls = ssl.create_default_context() if ca_file is None else connection.verification(ca_file)
    settings = ClientSettings(str(connection.base_url(url)), headers=headers, tls=tls, timeout=timeout_s)
    with open_client(settings) as client:
        client.event_hooks = {"request": [_name_person]}
        yield Fleet(client)


def acting_for(person: Person | None, fleet: Fleet, deed: Callable[[Fleet], _T]) -> _T:
    """Carries out a function that sends requests, on behalf of a person; the key needs the scope `delegate`."""
    token = _PERSON.set(person)
    try:
        return deed(fleet)
    finally:
        _PERSON.reset(token)


def _name_person(request: httpx.Request) -> None:
    person = _PERSON.get()
    if person is not None:
        request.headers[PERSON_HEADER] = msgspec.json.encode(person).decode()
