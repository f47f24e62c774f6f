"""Errors of MQTT connections in Firstline's error tree. Independent of any MQTT library."""

from __future__ import annotations

from firstline_core.errors import (
    CapacityError,
    FirstlineError,
    LinkDownError,
    PayloadTooLargeError,
    ProtocolError,
    UnauthorizedError,
)


def refusal(code: int, name: str, what: str) -> FirstlineError:
    """Returns the error for a reason code (MQTT 5, section 2.4).

    Args:
        code: 0x80 or more.
        name: of the broker or the standard.
        what: the refused operation, e.g. "the connection".
    """
    message = f"The MQTT broker refused {what}: {name}."
    match code:
        case 0x86 | 0x87 | 0x8A | 0x8C:  # bad user name or password, not authorised, banned, bad authentication
            return UnauthorizedError(message)
        case 0x88 | 0x89 | 0x96 | 0x97 | 0x9F:  # unavailable, busy, rate too high, quota exceeded
            return CapacityError(message)
        case 0x95:
            return PayloadTooLargeError(message)
        case _:
            return ProtocolError(message)


def not_connected(address: str) -> LinkDownError:
    """Returns the error for sending without a connection."""
    return LinkDownError(f"Not connected to the MQTT broker at {address}.")


def connection_lost(address: str, why: str) -> LinkDownError:
    """Returns the error for a packet whose answer cannot arrive."""
    return LinkDownError(f"The connection to the MQTT broker at {address} was lost ({why}).")
