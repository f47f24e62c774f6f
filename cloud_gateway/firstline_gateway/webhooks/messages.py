"""Messages of webhooks and their signatures, as in the Standard Webhooks specification.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from datetime import UTC, datetime

import msgspec

from firstline_core.errors import ConfigError
from firstline_core.fleet.audit_log import Entry
from firstline_core.storage.secrets import read_secret

_PREFIX = "whsec_"
_KEY_BYTES = range(24, 65)
_ACTIONS = {
    "alarms": ("contract.alarm",),
    "rollouts": ("rollout.",),
    "enrolments": ("device.enrol", "device.accept", "device.revoke", "device.decommission"),
}


def wanted(entry: Entry, events: tuple[str, ...]) -> bool:
    """Returns whether an entry is one of these kinds of events."""
    return any(entry.action.startswith(_ACTIONS[kind]) for kind in events)


def body(entry: Entry) -> bytes:
    """Returns the JSON of an entry's message."""
    message = {
        "type": entry.action,
        "timestamp": datetime.fromtimestamp(entry.at_s, UTC),
        "data": {
            "number": entry.number,
            "actor": entry.actor,
            "subject": entry.subject,
            "details": msgspec.Raw(entry.details.encode()),
        },
    }
    return msgspec.json.encode(message)


def headers(entry: Entry, content: bytes, key: bytes, now_s: float) -> dict[str, str]:
    """Returns the headers of a message.

    Args:
        entry: its hash is the message's id, the same at each attempt.
        content: the body.
        key: signs it.
        now_s: wall time of this attempt.
    """
    message_id, timestamp = f"msg_{entry.sha256}", str(int(now_s))
    signed = f"{message_id}.{timestamp}.".encode() + content
    signature = base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
    return {
        "Content-Type": "application/json",
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": f"v1,{signature}",
    }


def read_key(file: str, setting: str) -> bytes:
    """Returns the signing key from a file with `whsec_` and the key's base64. Blocks.

    Raises:
        ConfigError: the file cannot be read, or contains no such key.
    """
    secret = read_secret(file, setting)
    try:
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(_PREFIX) or len(key) not in _KEY_BYTES:
        raise ConfigError(
            f"{setting}: {file} contains no signing key; write {_PREFIX} and the base64 of {_KEY_BYTES[0]} to "
            f'{_KEY_BYTES[-1]} random bytes into it: echo "{_PREFIX}$(openssl rand -base64 32)".'
        )
    return key
