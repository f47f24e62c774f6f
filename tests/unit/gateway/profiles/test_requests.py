"""Profile requests: each permits one upload until it expires."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from support.databases import OpenStore
from support.profiles import profile

from firstline_core.clock import SimulatedClock
from firstline_core.errors import ConflictError, NotFoundError
from firstline_core.fleet.profiles import NewProfileRequest, ProfileEntry, ProfileRequest
from firstline_core.fleet.twin import Desired, DesiredProfile, Profiling, ProfilingState, Reported
from firstline_core.profile.profile import encode
from firstline_gateway.fleet import devices
from firstline_gateway.fleet.devices import Device
from firstline_gateway.fleet.fleet import Fleet
from firstline_gateway.profiles import records
from firstline_gateway.profiles.profiles import Profiles, read_uploaded
from firstline_gateway.profiles.records import RequestRecord
from firstline_gateway.profiles.requests import RequestedProfiles, request_of, why_not
from firstline_gateway.settings.settings import Fleet as FleetSettings
from firstline_gateway.settings.settings import Store
from firstline_gateway.store.service_clock import ServiceClock

DAY_S = 86_400.0
BY = "application:ops"


class Bench:
    """A gateway's requests with a simulated clock, and one accepted device."""

    def __init__(self, store: Store) -> None:
        self.opened = OpenStore(store)
        self.clock = SimulatedClock()
        self.told = 0
        self.requests = RequestedProfiles(
            self.opened.store, age_s=7 * DAY_S, clock=self.clock, on_desired=self._on_desired
        )
        self.profiles = Profiles(self.opened.store, clock=self.clock)
        with self.opened.database.begin() as connection:
            devices.mark_seen(connection, "cam", "s", self.clock.wall_s(), accept=True)

    async def ask(self, bundle: str = "digits", version: int = 0) -> ProfileRequest:
        return await self.requests.ask("cam", NewProfileRequest(bundle, version), BY)

    async def bring(self, *query_ms: float, version: int = 1, bundle: str = "digits") -> ProfileEntry:
        content = encode(profile(*query_ms, version=version, bundle=bundle, machine="cam"))
        return await self.profiles.take(read_uploaded(content, (bundle, version, "cam")), content, "cam")

    async def stands(self, bundle: str = "digits") -> ProfileRequest:
        found = (await self.requests.of("cam")).requests
        return next(one for one in found if one.desired.bundle == bundle)

    def wanted(self) -> tuple[DesiredProfile, ...]:
        """The requests in the device's desired document."""
        with self.opened.database.reading() as connection:
            found = devices.find(connection, "cam")
        return found.desired.profiles

    def says(self, *said: Profiling) -> None:
        with self.opened.database.begin() as connection:
            devices.report(connection, "cam", Reported("s", 1, 1, profiles=said), self.clock.wall_s(), accept=True)

    def _on_desired(self) -> None:
        self.told += 1

    def close(self) -> None:
        self.opened.close()


@pytest.fixture
def bench(store_settings: Store) -> Iterator[Bench]:
    found = Bench(store_settings)
    yield found
    found.close()


async def test_a_request_is_fulfilled_once(bench: Bench) -> None:
    asked = await bench.ask()
    first = await bench.bring(1.0)
    await bench.clock.advance(60)
    assert await bench.bring(1.0) == first  # its answer was lost
    with pytest.raises(ConflictError, match="has uploaded a profile of digits version 1 already"):
        await bench.bring(2.0)
    for version in (2, 3):
        with pytest.raises(ConflictError, match="already"):
            await bench.bring(1.0, version=version)
        with pytest.raises(ConflictError, match="already"):
            await bench.profiles.check_requested("cam", "digits", version)
    found = await bench.stands()
    assert (found.state, found.version, found.desired.id) == (ProfilingState.DONE, 1, asked.desired.id)
    assert [entry.version for entry in (await bench.profiles.page(("", 0, ""), 10)).profiles] == [1]


async def test_a_new_request_permits_another_upload(bench: Bench) -> None:
    before = await bench.ask()
    await bench.bring(1.0)
    again = await bench.ask()
    assert again.new and again.desired.id != before.desired.id
    assert (await bench.bring(2.0)).points == 1
    with pytest.raises(ConflictError, match="already"):
        await bench.bring(1.0)  # not even what it had brought before


async def test_a_removed_profile_is_not_restored(bench: Bench) -> None:
    await bench.ask()
    await bench.bring(1.0)
    await bench.profiles.remove(("digits", 1, "cam"), BY)
    await bench.bring(1.0)
    assert not (await bench.profiles.page(("", 0, ""), 10)).profiles


async def test_only_the_requested_version_is_permitted(bench: Bench) -> None:
    await bench.ask(version=2)
    with pytest.raises(ConflictError, match="cam is not asked for a profile of digits version 1"):
        await bench.bring(1.0)
    await bench.profiles.check_requested("cam", "digits", 2)
    assert (await bench.bring(1.0, version=2)).version == 2


async def test_an_expired_request_permits_no_upload(bench: Bench) -> None:
    asked = await bench.ask()
    assert asked.until_s == asked.asked_s + 7 * DAY_S
    assert (asked.by, bench.told) == (BY, 1)
    bench.says(Profiling(asked.desired.id, "digits", ProfilingState.MEASURING, message="The battery is low."))
    await bench.clock.advance(7 * DAY_S - 1)
    assert await bench.requests.expire() == 0
    await bench.profiles.check_requested("cam", "digits", 1)
    await bench.clock.advance(1)
    for refused in (bench.bring(1.0), bench.profiles.check_requested("cam", "digits", 1)):
        with pytest.raises(ConflictError, match="the request has ended"):
            await refused
    before = await bench.stands()
    assert bench.wanted() and bench.told == 1
    assert await bench.requests.expire() == 1
    assert not bench.wanted() and bench.told == 2
    bench.says()
    assert await bench.stands() == before
    assert before.state is ProfilingState.EXPIRED and before.message.endswith("ask again. The battery is low.")
    assert await bench.requests.expire() == 0 and bench.told == 2


async def test_an_expired_request_makes_room_for_a_new_one(bench: Bench) -> None:
    for number in range(8):
        await bench.ask(f"b{number}")
    with pytest.raises(ConflictError, match="has 8 profiles to measure"):
        await bench.ask("b8")
    await bench.clock.advance(8 * DAY_S)
    assert (await bench.ask("b8")).new  # the keeper has not come by yet
    await bench.clock.advance(1)
    assert (await bench.ask("b7")).new
    assert [one.bundle for one in bench.wanted()] == ["b8", "b7"]
    assert await bench.requests.expire() == 6
    assert [one.desired.bundle for one in (await bench.requests.of("cam")).requests][-3:] == ["b6", "b8", "b7"]


async def test_a_fulfilled_request_stays_after_its_expiry(bench: Bench) -> None:
    """Otherwise the device would receive a needless change."""
    await bench.ask()
    await bench.bring(1.0)
    await bench.clock.advance(8 * DAY_S)
    assert await bench.requests.expire() == 0
    assert len(bench.wanted()) == 1 and (await bench.stands()).state is ProfilingState.DONE
    await bench.bring(1.0)  # even now its answer may be asked for again


async def test_an_expired_request_can_be_cancelled(bench: Bench) -> None:
    await bench.ask()
    await bench.clock.advance(8 * DAY_S)
    await bench.requests.cancel("cam", "digits", BY)
    with pytest.raises(NotFoundError, match="asked for no profile of digits"):
        await bench.requests.cancel("cam", "digits", BY)
    await bench.ask()
    fleet = Fleet(
        bench.opened.store,
        FleetSettings(),
        clock=bench.clock,
        service=ServiceClock(bench.opened.database, bench.clock),
        on_desired=lambda: None,
        delete_with_device=(records.delete_device,),
    )
    await fleet.decommission("cam", BY)
    with bench.opened.database.reading() as connection:
        assert not records.requests_of(connection, "cam")


NOW_S = 1.8e9
ASKED = RequestRecord("cam", DesiredProfile("digits", id="1"), "application:ops", NOW_S - 86_400, NOW_S + 6 * 86_400)
CAM = Device(
    "cam",
    {},
    accepted_s=0.0,
    first_seen_s=0.0,
    last_seen_s=NOW_S - 5,
    online=True,
    session="s",
    reported=Reported("s", 1, revision=3, agent_version="0.1.0"),
    desired=Desired(4, profiles=(ASKED.wanted,)),
)


def said(state: ProfilingState, *, revision: int = 4, **fields: int | str) -> Reported:
    return Reported("s", 2, revision, profiles=(Profiling("1", "digits", state, **fields),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("device", "state", "message"),
    [
        (CAM, "sent", "cam has not received it yet."),
        (
            replace(CAM, online=False, last_seen_s=NOW_S - 7300),
            "sent",
            "cam is offline: it was last seen 2 hours ago. The request stays valid until it is back, or until "
            "2027-01-21 08:00 UTC.",
        ),
        (
            replace(CAM, last_seen_s=None, reported=None),
            "sent",
            "cam has never connected. The request stays valid until it is back, or until 2027-01-21 08:00 UTC.",
        ),
        (
            replace(CAM, reported=Reported("s", 2, revision=4, agent_version="0.1.0")),
            "unknown",
            "cam runs agent 0.1.0, which knows no such requests. Update it, then it measures, or cancel the request.",
        ),
        (replace(CAM, reported=said(ProfilingState.WAITING)), "waiting", ""),
        (
            replace(CAM, reported=said(ProfilingState.MEASURING), online=False, last_seen_s=NOW_S - 30),
            "measuring",
            "cam is offline: it was last seen 30 seconds ago. It continues when it is back.",
        ),
        (replace(CAM, reported=said(ProfilingState.REFUSED, message="No.")), "refused", "No."),
        # Another request has come since: what the device said of this one holds.
        (replace(CAM, reported=said(ProfilingState.DONE, revision=3, version=2)), "done", ""),
    ],
)
def test_states_and_messages_of_requests(device: Device, state: str, message: str) -> None:
    found = request_of(device, ASKED, NOW_S)
    assert (found.state.value, found.message) == (state, message)


def test_reports_of_another_request_are_ignored() -> None:
    other = replace(ASKED, wanted=replace(ASKED.wanted, id="2"))
    device = replace(CAM, reported=said(ProfilingState.DONE, revision=3))
    assert request_of(device, other, NOW_S).state is ProfilingState.SENT


def test_an_uploaded_request_is_done() -> None:
    """Even if the response was lost or the request has expired."""
    brought = replace(ASKED, version=2, delivered_s=NOW_S - 5, until_s=NOW_S - 1)
    found = request_of(replace(CAM, reported=said(ProfilingState.UPLOADING, message="Away.")), brought, NOW_S)
    assert (found.state, found.version, found.message) == (ProfilingState.DONE, 2, "")


@pytest.mark.parametrize(
    ("device", "why"),
    [
        (replace(CAM, reported=said(ProfilingState.MEASURING, message="The battery is low.")), "The battery is low."),
        (
            replace(CAM, online=False, last_seen_s=NOW_S - 7300, reported=None),
            "cam is offline: it was last seen 2 hours ago.",
        ),
        (
            replace(CAM, reported=Reported("s", 2, revision=4, agent_version="0.1.0")),
            "cam runs agent 0.1.0, which knows no such requests.",
        ),
        (CAM, ""),
    ],
)
def test_an_expired_request_states_when_and_why(device: Device, why: str) -> None:
    over = replace(ASKED, until_s=NOW_S)
    said = f"The request of 2027-01-14 08:00 UTC ended on 2027-01-15 08:00 UTC; ask again. {why}".rstrip()
    assert request_of(device, ASKED, NOW_S).state is not ProfilingState.EXPIRED
    noted = replace(over, ended_s=NOW_S, why=why)
    assert why_not(device, over, NOW_S) == why
    for found in (request_of(device, over, NOW_S), request_of(replace(CAM, reported=None), noted, NOW_S + 60)):
        assert (found.state, found.message, found.ended) == (ProfilingState.EXPIRED, said, True)
