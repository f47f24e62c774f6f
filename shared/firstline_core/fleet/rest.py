"""The fleet's REST API in words of both sides: its addresses, and what is asked and answered there."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from firstline_core.fleet.twin import Brake, Desired, Reported

TWIN_PATH = "/fleet/v1/twin"
"""A device's own: GET gives its `Desired`, with an ETag that is the revision; 304 where that has not changed."""
REPORTED_PATH = "/fleet/v1/twin/reported"
"""A device PUTs its `Reported` here."""
TELEMETRY_PATH = "/fleet/v1/twin/telemetry"
"""A device POSTs its `Telemetry` here."""
DEVICES_PATH = "/fleet/v1/devices"
BRAKE_PATH = "/fleet/v1/brake"
TIERS_PATH = "/fleet/v1/tiers"
"""Who answered, over the last `hours`, of one `model` or of all."""
TIERS_HOURS = 48
"""So far one can look back."""

TAG_PATTERN = r"^[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?\Z"
Tag = Annotated[str, Meta(pattern=TAG_PATTERN)]
"""A tag's key or value."""


class FleetDevice(Struct, frozen=True):
    """A device as people see it.

    Attributes:
        accepted: whether it belongs to the fleet; what does not is given nothing.
        online: whether its latest process has not ended, as far as is known; how long ago it was heard of says more.
        last_seen_age_s: None where it was never heard of.
        first_seen_s: wall time; likewise.
        reported: what it says of itself.
        desired: what it is to run.
    """

    name: str
    tags: dict[str, str]
    accepted: bool
    online: bool
    last_seen_age_s: float | None
    first_seen_s: float | None
    reported: Reported | None
    desired: Desired


class FleetDevicePage(Struct, frozen=True):
    """Devices by name; `after` is what to ask for next (`?after=NAME`), None at the end."""

    devices: tuple[FleetDevice, ...]
    after: str | None


class DeviceChange(Struct, frozen=True, forbid_unknown_fields=True):
    """What of a device is to change.

    Attributes:
        tags: to be set; those that are null are taken away.
        accepted: true lets the device in for good.
    """

    tags: Annotated[dict[Tag, Tag | None], Meta(max_length=64)] = {}
    accepted: bool = False


class BrakeState(Struct, frozen=True):
    """Whether the fleet is braked; `brake` is None where it is not."""

    brake: Brake | None


class TierCounts(Struct, frozen=True):
    """Rows of all devices in one span of time, counted when the devices said so.

    Attributes:
        at_s: wall time at which it begins.
        kept: answered on the device, for good.
        escalated: sent, or to be sent, to the full model.
        errors: that got no answer.
    """

    at_s: float
    kept: int
    escalated: int
    errors: int


class TierHistory(Struct, frozen=True):
    """Who answered, over time.

    Attributes:
        span_s: of each point; one in which nothing was counted is left out.
        models: that were asked in this time.
        points: in order.
    """

    span_s: float
    models: tuple[str, ...]
    points: tuple[TierCounts, ...]
