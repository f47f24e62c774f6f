"""Requests profiles from devices by their desired documents until they have measured or the request expires."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace
from sqlalchemy import Connection

from firstline_core.clock import Clock
from firstline_core.errors import ConflictError, NotFoundError
from firstline_core.fleet.profiles import NewProfileRequest, ProfileRequest, ProfileRequests
from firstline_core.fleet.twin import REQUESTS, Profiling, ProfilingState
from firstline_core.ids import new_request_id
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.wording import duration_text, time_text
from firstline_gateway import audit_log
from firstline_gateway.fleet import devices
from firstline_gateway.fleet.devices import Device
from firstline_gateway.profiles import records
from firstline_gateway.profiles.records import RequestRecord
from firstline_gateway.store.store import Store

_AT_ONCE = 100  # devices whose requests end in one transaction
_SILENT_S = 900.0
"""A device reports at least this often."""

log = logger(__name__)


@dataclass(eq=False)
class RequestedProfiles:
    """The requests of one gateway, or of the replicas that share its store.

    Args:
        store: reads and writes it.
        age_s: time until a request expires.
        clock: gives wall time.
        on_desired: called on the event loop when the desired document of a device changes.
    """

    store: Store
    age_s: float
    clock: Clock
    on_desired: Callable[[], None]

    async def of(self, device: str) -> ProfileRequests:
        """Returns all requests of one device, ended ones included.

        Raises:
            NotFoundError: the device is unknown.
        """
        now_s = self.clock.wall_s()

        def read(connection: Connection) -> ProfileRequests:
            found = devices.existing(connection, device)
            requests = records.requests_of(connection, device)
            return ProfileRequests(tuple(request_of(found, one, now_s) for one in requests))

        return await self.store.read(read)

    async def ask(self, device: str, asked: NewProfileRequest, by: str) -> ProfileRequest:
        """Requests a profile; an equal request that is open is returned instead.

        Raises:
            NotFoundError: the device is unknown.
            ConflictError: the device is not accepted, or has the largest number of requests.
        """
        now_s = self.clock.wall_s()

        def request(connection: Connection) -> ProfileRequest:
            found = devices.existing(connection, device, lock=True)
            if found.accepted_s is None:
                raise ConflictError(f"{device} has not been accepted; run `firstline device accept {device}`.")
            others = {one.wanted.bundle: one for one in records.requests_of(connection, device)}
            same = others.pop(asked.bundle, None)
            if same is not None and asked.is_same(same.wanted):
                known = request_of(found, same, now_s)
                if not known.ended:
                    return known
            ended = [one for one in others.values() if request_of(found, one, now_s).ended]
            is_open = len(others) - len(ended)
            if is_open >= REQUESTS:
                raise ConflictError(f"{device} has {is_open} profiles to measure, the most allowed; cancel one.")
            for one in ended[: max(0, len(others) + 1 - REQUESTS)]:  # the oldest
                records.remove_request(connection, device, one.wanted.bundle)
            wanted = asked.desired(new_request_id())
            new = RequestRecord(device, wanted, by, now_s, now_s + self.age_s)
            records.put_request(connection, new)
            _update_desired(connection, device, records.requests_of(connection, device), now_s)
            details = {"bundle": wanted.bundle, "version": wanted.version, "request": wanted.id}
            audit_log.add(connection, now_s, by, "profile.request", f"device:{device}", **details)
            return replace(request_of(devices.existing(connection, device), new, now_s), new=True)

        made = await self.store.write(request)
        if made.new:
            self.on_desired()
        return made

    async def cancel(self, device: str, bundle: str, by: str) -> None:
        """Cancels a request; a device that is measuring stops, and keeps the points that it has.

        Raises:
            NotFoundError: the device is unknown, or has no request for that bundle.
        """
        now_s = self.clock.wall_s()

        def remove(connection: Connection) -> None:
            devices.existing(connection, device, lock=True)
            request = records.find_request(connection, device, bundle)
            if request is None:
                raise NotFoundError(f"{device} is asked for no profile of {bundle}.")
            records.remove_request(connection, device, bundle)
            _update_desired(connection, device, records.requests_of(connection, device), now_s)
            details = {"bundle": bundle, "request": request.wanted.id}
            audit_log.add(connection, now_s, by, "profile.cancel", f"device:{device}", **details)

        await self.store.write(remove)
        self.on_desired()

    async def expire(self) -> int:
        """Ends requests that were not fulfilled in time, and returns their number.

        Raises:
            StoreUnavailableError: the database refuses or does not answer.
        """
        now_s, count = self.clock.wall_s(), 0
        while due := await self.store.read(lambda on: records.devices_with_expired_requests(on, now_s, _AT_ONCE)):

            def end(connection: Connection, names: Sequence[str] = due) -> int:
                return sum(_expire(connection, name, now_s) for name in names)

            count += await self.store.write(end)
        if count:
            log.info("profile requests expired", requests=count)
            self.on_desired()
        return count


def _expire(connection: Connection, device: str, now_s: float) -> int:
    found, requests = devices.find(connection, device, lock=True), records.requests_of(connection, device)
    expired = [one for one in requests if one.ended_s is None and one.has_expired(now_s)]
    for one in expired:
        why = why_not(found, one, now_s) if found is not None else ""
        records.put_request(connection, replace(one, ended_s=now_s, why=why))
    _update_desired(connection, device, requests, now_s)
    return len(expired)


def _update_desired(connection: Connection, device: str, requests: Sequence[RequestRecord], now_s: float) -> None:
    """Fulfilled requests stay in the document, so that the device gets no new one; expired requests are removed."""
    wanted = tuple(one.wanted for one in requests if not one.has_expired(now_s))
    devices.desire(connection, [device], lambda _, before: replace(before, profiles=wanted), now_s, existing_only=True)


def request_of(device: Device, request: RequestRecord, now_s: float) -> ProfileRequest:
    """Returns the state of a request, from the request and the device's report. Pure.

    Args:
        device: as the fleet knows it.
        request: one of its requests.
        now_s: wall time.
    """
    reported = _reported(device, request)
    state, message = _state(device, request, reported, now_s)
    version, done, total = (reported.version, reported.done, reported.total) if reported is not None else (0, 0, 0)
    return ProfileRequest(
        device.name,
        request.wanted,
        state,
        request.version or version,
        done,
        total,
        message,
        by=request.by,
        asked_s=request.asked_s,
        until_s=request.until_s,
    )


def why_not(device: Device, request: RequestRecord, now_s: float) -> str:
    """Returns why a request was not fulfilled by now, in a sentence; "" if that is unknown."""
    reported = _reported(device, request)
    if _is_not_understood(device, request):
        return _old_agent(device)
    return (reported.message if reported is not None else "") or _offline(device, now_s)


def _state(
    device: Device, request: RequestRecord, reported: Profiling | None, now_s: float
) -> tuple[ProfilingState, str]:
    if request.delivered_s is not None:
        return ProfilingState.DONE, ""
    if request.has_expired(now_s):
        why = request.why if request.ended_s is not None else why_not(device, request, now_s)
        over = f"The request of {time_text(request.asked_s)} ended on {time_text(request.until_s)}; ask again."
        return ProfilingState.EXPIRED, f"{over} {why}".rstrip()
    offline = _offline(device, now_s)
    if reported is not None:
        waits = reported.state is ProfilingState.MEASURING and offline
        return reported.state, f"{offline} It continues when it is back." if waits else reported.message
    if _is_not_understood(device, request):
        return ProfilingState.UNKNOWN, f"{_old_agent(device)} Update it, then it measures, or cancel the request."
    valid = f"The request stays valid until it is back, or until {time_text(request.until_s)}."
    return ProfilingState.SENT, f"{offline} {valid}" if offline else f"{device.name} has not received it yet."


def _reported(device: Device, request: RequestRecord) -> Profiling | None:
    profiles = device.reported.profiles if device.reported is not None else ()
    return next((one for one in profiles if one.id == request.wanted.id), None)


def _is_not_understood(device: Device, request: RequestRecord) -> bool:
    """Whether the agent has received the request and ignored it."""
    reported = device.reported
    is_received = reported is not None and reported.revision >= device.desired.revision
    return is_received and _reported(device, request) is None


def _old_agent(device: Device) -> str:
    version = device.reported.agent_version if device.reported is not None else ""
    return f"{device.name} runs agent {version or 'of an unknown version'}, which knows no such requests."


def _offline(device: Device, now_s: float) -> str:
    """Returns a sentence if the device is offline, else ""."""
    if device.last_seen_s is None:
        return f"{device.name} has never connected."
    silent_s = max(0.0, now_s - device.last_seen_s)
    if device.online and silent_s < _SILENT_S:
        return ""
    return f"{device.name} is offline: it was last seen {duration_text(silent_s)} ago."
