"""How a request for a profile stands, in words: heard or not, by whom, and how long somebody has been away."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from firstline_core.fleet.twin import Desired, DesiredProfile, Profiling, ProfilingState, Reported
from firstline_gateway.fleet.devices import Device
from firstline_gateway.profiles.records import RequestRecord
from firstline_gateway.profiles.requests import request_of, why_not

NOW_S = 1.8e9
ASKED = RequestRecord("cam", DesiredProfile("1", "digits"), "application:ops", NOW_S - 86_400, NOW_S + 6 * 86_400)
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
    """Its answer may have been lost, and the time may be over."""
    brought = replace(ASKED, version=2, brought_s=NOW_S - 5, until_s=NOW_S - 1)
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
