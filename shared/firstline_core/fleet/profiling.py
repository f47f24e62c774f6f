"""A device is asked to measure a bundle, and says how far it is: parts of its twin's two documents. No I/O.

A request stays in what is desired when it has ended, as a model does that is installed; the device knows by its id
that it has done it. Another id for the same bundle asks anew.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from firstline_core.types import Name

REQUESTS = 8
"""Most of one device."""

_Id = Annotated[str, Meta(min_length=1, max_length=64)]
_Version = Annotated[int, Meta(ge=0, le=2**53)]
_Count = Annotated[int, Meta(ge=0, le=2**31)]
Share = Annotated[float, Meta(ge=0, lt=1)]
Providers = Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=64)], ...], Meta(max_length=16)]
Variants = Annotated[tuple[Name, ...], Meta(max_length=64)]
_Numbers = Annotated[tuple[Annotated[int, Meta(ge=0, le=1024)], ...], Meta(max_length=16)]


class ProfilingState(StrEnum):
    """How far a request came."""

    SENT = "sent"
    """The device has not said that it knows of it."""
    UNKNOWN = "unknown"
    """The device has heard it and does not understand it: an agent of before there were such requests."""
    WAITING = "waiting"
    """The device does others first."""
    MEASURING = "measuring"
    """Its points are being measured."""
    UPLOADING = "uploading"
    """They are measured; the gateway does not have the profile yet."""
    DONE = "done"
    """The gateway has it."""
    REFUSED = "refused"
    """The device does not, or cannot."""
    EXPIRED = "expired"
    """Its time was over before the device had; the gateway's word, no device's."""


ENDED = frozenset({ProfilingState.DONE, ProfilingState.REFUSED, ProfilingState.EXPIRED})


class DesiredProfile(Struct, frozen=True):
    """A bundle that the device is to measure, once. Agents pass over fields that they do not know.

    Attributes:
        id: of the request.
        version: 0 for the one that answers when the device begins.
        quick: in a fifth of the time.
        threads: that one run may use; none leaves it to the device.
        batches: rows of a query; likewise.
        anew: also what is known already.
        variants: ids of models; none for all that are there.
        providers: ONNX Runtime's, each by itself; none leaves them to the device.
        throttled_share: of processor time, of queries of one sample too; 0: not.
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
    """How far a device is with a request.

    Attributes:
        id: of the request.
        version: that is measured; 0 while that is not known.
        done: points, of `total`, which is 0 while nobody knows.
        message: a sentence for people, or "".
        since_s: wall time of the device when it came into this state.
    """

    id: _Id
    bundle: Name
    state: ProfilingState
    version: _Version = 0
    done: _Count = 0
    total: _Count = 0
    message: Annotated[str, Meta(max_length=500)] = ""
    since_s: Annotated[float, Meta(ge=0, le=1e12)] = 0.0
