"""The identity of a device that has joined a gateway: its name, and the addresses of the gateway and the broker.

`identity/` writes it; the settings take the device's name and links from it.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from firstline_core.errors import ConfigError, IntegrityError
from firstline_core.protocol.enrolment import BrokerAddress
from firstline_core.storage.files import unreadable
from firstline_core.storage.structs import read_struct
from firstline_core.types import Name


class IdentityDocument(Struct, frozen=True, kw_only=True):
    """The data that this device received when it joined or renewed its certificate. It contains no secret.

    Args:
        device: its name, the same in certificates and topics.
        gateway: URL.
        proxy: URL of the HTTP proxy on the way there, "" for a direct connection.
        broker: None if there is none.
        not_before_s: when the certificate begins (wall time, seconds).
        not_after_s: when the certificate ends.
        authority: SHA-256 of the authority's public key in hexadecimal, as the join token had it.
        authority_ends_s: when the last authority ends; after that time the identity is worthless.
    """

    device: Name
    gateway: str
    proxy: str = ""
    broker: BrokerAddress | None = None
    not_before_s: float
    not_after_s: float
    authority: str
    authority_ends_s: float


def identity_path(state_dir: Path) -> Path:
    """Returns the file of the identity in a state directory."""
    return state_dir / "identity" / "identity.json"


def read_identity(state_dir: Path) -> IdentityDocument | None:
    """Returns the identity; None for a device that has not joined.

    Raises:
        ConfigError: the file is there and cannot be used.
    """
    path = identity_path(state_dir)
    try:
        return read_struct(path, IdentityDocument)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path} {unreadable(error)}") from error
    except IntegrityError as error:
        raise ConfigError(
            f"{path} is damaged; join again with `edge-agent join URL --token-file FILE --force`."
        ) from error


def readable_identity(state_dir: Path) -> IdentityDocument | None:
    """Returns the identity if this user can read it and it is whole; otherwise None."""
    try:
        return read_identity(state_dir)
    except ConfigError:
        return None
