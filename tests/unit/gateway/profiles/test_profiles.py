"""Profile requests: each stands until its profile is uploaded or it is cancelled."""

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
from firstline_gateway.fleet.devices import StoredDevice
from firstline_gateway.profiles.profiles import Profiles, read_uploaded, request_of
from firstline_gateway.settings.settings import StoreSection

BY = "application:ops"


class Bench:
    """A gateway's requests with a simulated clock, and one accepted device."""

    def __init__(self, store: StoreSection) -> None:
        self.opened = OpenStore(store)
        self.clock = SimulatedClock()
        self.told = 0
        self.profiles = Profiles(self.opened.store, clock=self.clock, on_desired=self._on_desired)
        with self.opened.database.begin() as connection:
            devices.mark_seen(connection, "cam", "s", self.clock.wall_s(), accept=True)

    async def ask(self, bundle: str = "digits", version: int = 0) -> ProfileRequest:
        return await self.profiles.request("cam", NewProfileRequest(bundle, version), BY)

    async def bring(self, *query_ms: float, version: int = 1, bundle: str = "digits") -> ProfileEntry:
        content = encode(profile(*query_ms, version=version, bundle=bundle, machine="cam"))
        return await self.profiles.take(read_uploaded(content, (bundle, version, "cam")), content, "cam")

    def wanted(self) -> tuple[DesiredProfile, ...]:
        """The requests in the device's desired document."""
        with self.opened.database.reading() as connection:
            found = devices.find(connection, "cam")
        return found.desired.profiles

    def says(self, *reports: Profiling) -> None:
        with self.opened.database.begin() as connection:
            devices.report(connection, "cam", Reported("s", 1, 1, profiles=reports), self.clock.wall_s(), accept=True)

    def _on_desired(self) -> None:
        self.told += 1

    def close(self) -> None:
        self.opened.close()


@pytest.fixture
def bench(store_settings: StoreSection) -> Iterator[Bench]:
    found = Bench(store_settings)
    yield found
    found.close()


async def test_an_upload_ends_the_request(bench: Bench) -> None:
    await bench.ask()
    assert (await bench.bring(1.0)).by == "device:cam"
    assert bench.wanted() == () and bench.told == 2
    assert (await bench.profiles.requests_of("cam")).requests == ()
    for refused in (bench.bring(2.0), bench.bring(1.0, version=2), bench.profiles.check_requested("cam", "digits", 2)):
        with pytest.raises(ConflictError, match=r"not asked for a profile of digits version . \(any more\)"):
            await refused
    found, more = await bench.profiles.page(("", 0, ""), 10)
    assert ([entry.version for entry in found], more) == ([1], False)


async def test_a_device_whose_answer_was_lost_uploads_again(bench: Bench) -> None:
    await bench.ask()
    stored = await bench.bring(1.0)
    await bench.clock.advance(60)
    await bench.profiles.check_requested("cam", "digits", 1)
    assert await bench.bring(1.0) == stored and bench.told == 2
    await bench.profiles.put(replace(stored, sha256="0" * 64), b"other", BY)  # a person's is not the device's
    with pytest.raises(ConflictError, match="not asked for a profile"):
        await bench.bring(1.0)


async def test_a_new_request_permits_another_upload(bench: Bench) -> None:
    before = await bench.ask()
    await bench.bring(1.0)
    again = await bench.ask()
    assert again.new and again.desired.id != before.desired.id
    assert (await bench.bring(2.0)).points == 1


async def test_an_open_request_is_returned_and_a_refused_one_repeated(bench: Bench) -> None:
    first = await bench.ask()
    assert await bench.ask() == replace(first, new=False) and bench.told == 1
    bench.says(Profiling(first.desired.id, "digits", ProfilingState.REFUSED, message="No."))
    again = await bench.ask()
    assert again.new and bench.wanted() == (again.desired,)


async def test_a_refused_request_stays_while_there_is_room(bench: Bench) -> None:
    refused = await bench.ask("b0")
    bench.says(Profiling(refused.desired.id, "b0", ProfilingState.REFUSED, message="No."))
    await bench.ask("b1")
    assert [one.bundle for one in bench.wanted()] == ["b0", "b1"]
    first, _ = (await bench.profiles.requests_of("cam")).requests
    assert first.message == "No."


async def test_only_the_requested_version_is_permitted(bench: Bench) -> None:
    await bench.ask(version=2)
    with pytest.raises(ConflictError, match="cam is not asked for a profile of digits version 1"):
        await bench.bring(1.0)
    await bench.profiles.check_requested("cam", "digits", 2)
    assert (await bench.bring(1.0, version=2)).version == 2


async def test_requests_are_limited(bench: Bench) -> None:
    requests = [await bench.ask(f"b{number}") for number in range(8)]
    with pytest.raises(ConflictError, match="has 8 profiles to measure"):
        await bench.ask("b8")
    assert (
        await bench.profiles.request("cam", NewProfileRequest("b7", quick=True), BY)
    ).new  # in the place of the other
    bench.says(Profiling(requests[0].desired.id, "b0", ProfilingState.REFUSED))
    assert (await bench.ask("b8")).new
    assert [one.bundle for one in bench.wanted()] == [f"b{number}" for number in range(1, 9)]


async def test_a_request_can_be_cancelled_once(bench: Bench) -> None:
    await bench.ask()
    await bench.profiles.cancel_request("cam", "digits", BY)
    assert bench.wanted() == ()
    with pytest.raises(NotFoundError, match="asked for no profile of digits"):
        await bench.profiles.cancel_request("cam", "digits", BY)


NOW_S = 1.8e9
ASKED = DesiredProfile("digits", id="1")
CAM = StoredDevice(
    "cam",
    {},
    accepted_s=0.0,
    first_seen_s=0.0,
    last_seen_s=NOW_S - 5,
    online=True,
    session="s",
    reported=Reported("s", 1, revision=3, agent_version="0.1.0"),
    desired=Desired(4, profiles=(ASKED,)),
)


def said(state: ProfilingState, **fields: int | str) -> Reported:
    return Reported("s", 2, 4, profiles=(Profiling("1", "digits", state, **fields),))


@pytest.mark.parametrize(
    ("device", "state", "message"),
    [
        (CAM, "sent", "cam has not received it yet."),
        (
            replace(CAM, online=False, last_seen_s=NOW_S - 7300),
            "sent",
            "cam is offline: it was last seen 2 hours ago. The request stays valid until it is back.",
        ),
        (
            replace(CAM, last_seen_s=None, reported=None),
            "sent",
            "cam has never connected. The request stays valid until it is back.",
        ),
        (replace(CAM, reported=said(ProfilingState.WAITING)), "waiting", ""),
        (
            replace(CAM, reported=said(ProfilingState.MEASURING), online=False, last_seen_s=NOW_S - 30),
            "measuring",
            "cam is offline: it was last seen 30 seconds ago. The request stays valid until it is back.",
        ),
        (replace(CAM, reported=said(ProfilingState.REFUSED, message="No.")), "refused", "No."),
    ],
)
def test_states_and_messages_of_requests(device: StoredDevice, state: str, message: str) -> None:
    found = request_of(device, ASKED, NOW_S)
    assert (found.state.value, found.message) == (state, message)


def test_reports_of_another_request_are_ignored() -> None:
    device = replace(CAM, reported=said(ProfilingState.MEASURING))
    assert request_of(device, replace(ASKED, id="2"), NOW_S).state is ProfilingState.SENT
