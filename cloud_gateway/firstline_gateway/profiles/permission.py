"""Which profile a device may upload: the requested one, once. An answer that was lost may be asked for again."""

from __future__ import annotations

from sqlalchemy import Connection

from firstline_core.errors import ConflictError
from firstline_gateway.fleet import devices
from firstline_gateway.profiles import request_records
from firstline_gateway.profiles.request_records import RequestRecord


def permitted(
    connection: Connection, device: str, bundle: str, version: int, now_s: float, *, lock: bool = False
) -> RequestRecord:
    """The request by which a device may bring a profile, or has brought that version.

    Args:
        connection: within a transaction.
        device: that brings it.
        bundle: that was measured.
        version: likewise.
        now_s: wall time.
        lock: locks the device until this transaction ends.

    Raises:
        ConflictError: there is none, it has ended, or it was fulfilled with another version.
    """
    found = devices.find(connection, device, lock=lock)
    request = (
        request_records.find(connection, device, bundle) if found is not None and found.accepted_s is not None else None
    )
    what = f"a profile of {bundle} version {version}"
    if request is None or request.wanted.version not in (0, version):
        raise ConflictError(f"Nobody asks {device} for {what} (any more).")
    if request.has_expired(now_s):
        raise ConflictError(f"Nobody asks {device} for {what} any more: the request has ended.")
    if request.brought_s is not None and request.version != version:
        raise fulfilled(request)
    return request


def fulfilled(request: RequestRecord) -> ConflictError:
    """For a device that brings something else by a request than it has brought before."""
    return ConflictError(
        f"{request.device} has brought a profile of {request.wanted.bundle} version {request.version} already, as it "
        "was asked to; another one has to be asked for."
    )
