"""Profiling requests for a device and their progress: parts of the two documents of its twin. No I/O.

A request stays in the desired state after it has ended, like an installed model; the device recognises it by its id. A
new id for the same bundle is a new request.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from firstline_core.types import Name

REQUESTS = 8
"""Maximum number of requests per device."""

_Id = Annotated[str, Meta(min_length=1, max_length=64)]
_Version = Annotated[int, Meta(ge=0, le=2**53)]
_Count = Annotated[int, Meta(ge=0, le=2**31)]
Share = Annotated[float, Meta(ge=0, lt=1)]
Providers = Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=64)], ...], Meta(max_length=16)]
Variants = Annotated[tuple[Name, ...], Meta(max_length=64)]
_Numbers = Annotated[tuple[Annotated[int, Meta(ge=0, le=1024)], ...], Meta(max_length=16)]


class ProfilingState(StrEnum):
    """The progress of a request."""

    SENT = "sent"
    """The device has not acknowledged it."""
    UNKNOWN = "unknown"
    """The device has received it and does not support it."""
    WAITING = "waiting"
    """The device works on other requests first."""
    MEASURING = "measuring"
    """Its points are being measured."""
    UPLOADING = "uploading"
    """All points are measured; the gateway does not have the profile yet."""
    DONE = "done"
    """The gateway has the profile."""
    REFUSED = "refused"
    """The device refuses or cannot."""
    EXPIRED = "expired"
    """The request expired first; set by the gateway."""


ENDED = frozenset({ProfilingState.DONE, ProfilingState.REFUSED, ProfilingState.EXPIRED})


class DesiredProfile(Struct, frozen=True):
    """A bundle that the device must measure once. Agents ignore unknown fields.

    Attributes:
        id: of the request.
        version: 0 for the current version when the device starts.
        quick: measure in a fifth of the time.
        threads: numbers of threads per run; empty for the device's choice.
        batches: rows per query; empty for the device's choice.
        anew: also repeat points that are known.
        variants: ids of models; empty for all on the device.
        providers: of ONNX Runtime, each measured separately; empty for the device's choice.
        throttled_share: also measure single samples with this share of processor time; 0 to leave it out.
    """

    id: _Id
    bundle: Name
    version: _Version = 0
    quick: bool = False
    threads: _Numbers = ()
    batches: _Numbers = ()
    anew: bool = False
    variants: Variants = ()
    providers: Providers = ()
    throttled_share: Share = 0.0


class Profiling(Struct, frozen=True):
    """The progress of a device with a request.

    Attributes:
        id: of the request.
        version: that is measured; 0 while unknown.
        done: measured points, of `total`, which is 0 while unknown.
        message: one sentence, or "".
        since_s: wall time of the device when this state began.
    """

    id: _Id
    bundle: Name
    state: ProfilingState
    version: _Version = 0
    done: _Count = 0
    total: _Count = 0
    message: Annotated[str, Meta(max_length=500)] = ""
    since_s: Annotated[float, Meta(ge=0, le=1e12)] = 0.0
