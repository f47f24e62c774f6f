"""Messages of webhooks, their queues, and their signatures, as in the Standard Webhooks specification.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec
from sqlalchemy import Connection

from firstline_core.errors import ConfigError
from firstline_core.fleet.audit_log import Entry
from firstline_core.ids import new_request_id
from firstline_core.storage.secrets import read_secret
from firstline_gateway import audit_log
from firstline_gateway.fleet import answers
from firstline_gateway.fleet.alarms import DEVICE_ALARM

_PREFIX = "whsec_"
_KEY_BYTES = range(24, 65)
_ACTIONS = {
    "alarms": ("contract.alarm", DEVICE_ALARM),
    "rollouts": ("rollout.",),
    "answers": ("answer.",),
    "enrolments": ("device.enrol", "device.accept", "device.revoke", "device.decommission"),
}


TEST = "webhook.test"
"""Type of a test message."""
ANSWERS = "answers"
"""The kind of events that are the promises that have ended; entries of the audit log are of the other kinds."""


class Message(NamedTuple):
    """A message.

    Attributes:
        number: in its queue.
        id: the same at each attempt.
        type: machine-readable, such as "rollout.start".
        body: JSON.
    """

    number: int
    id: str
    type: str
    body: bytes

    def is_wanted(self, events: tuple[str, ...]) -> bool:
        """Returns whether it is of these kinds of events."""
        return any(self.type.startswith(_ACTIONS[kind]) for kind in events)


class Queue(NamedTuple):
    """A queue of messages in the store.

    Attributes:
        suffix: of the name under which the position of a webhook is stored.
        last: returns the number of the newest message; 0 if there is none.
        page: returns the oldest messages after a number, up to a limit.
    """

    suffix: str
    last: Callable[[Connection], int]
    page: Callable[[Connection, int, int], list[Message]]


def queues(events: tuple[str, ...]) -> list[tuple[Queue, tuple[str, ...]]]:
    """Returns the queues that have these kinds of events, each with its kinds."""
    entries = tuple(kind for kind in events if kind != ANSWERS)
    found = [(_ENTRIES, entries), (_ANSWERS, tuple(kind for kind in events if kind == ANSWERS))]
    return [(queue, kinds) for queue, kinds in found if kinds]


def _of_entry(entry: Entry) -> Message:
    data = {
        "number": entry.number,
        "actor": entry.actor,
        "subject": entry.subject,
        "details": msgspec.Raw(entry.details.encode()),
    }
    return Message(entry.number, f"msg_{entry.sha256}", entry.action, _body(entry.action, entry.at_s, data))


def _of_answer(ended: answers.StoredEnd) -> Message:
    kind = "answer.expired" if ended.expired else "answer.final"
    digest = hashlib.sha256(msgspec.json.encode([ended.device, ended.request_id])).hexdigest()
    data = {
        "number": ended.number,
        "device": ended.device,
        "request_id": ended.request_id,
        "model": ended.model,
        "version": ended.version,
        "changed": ended.changed,
    }
    return Message(ended.number, f"msg_{digest}", kind, _body(kind, ended.at_s, data))


def of_test(webhook: str, at_s: float) -> Message:
    """Returns a test message, which is sent outside the queues."""
    data: dict[str, object] = {"webhook": webhook, "sentence": "This message tests the webhook; nothing has happened."}
    return Message(0, f"msg_{new_request_id()}", TEST, _body(TEST, at_s, data))


def _body(kind: str, at_s: float, data: dict[str, object]) -> bytes:
    return msgspec.json.encode({"type": kind, "timestamp": datetime.fromtimestamp(at_s, UTC), "data": data})


_ENTRIES = Queue(
    "",
    lambda on: audit_log.last(on)[0],
    lambda on, after, limit: list(map(_of_entry, audit_log.page(on, audit_log.EntryFilter(after), limit))),
)
_ANSWERS = Queue(
    "/answers", answers.last, lambda on, after, limit: list(map(_of_answer, answers.page(on, after, limit)))
)


def headers(message: Message, key: bytes, now_s: float) -> dict[str, str]:
    """Returns the headers of a message.

    Args:
        message: to be sent.
        key: signs it.
        now_s: wall time of this attempt.
    """
    timestamp = str(int(now_s))
    signed = f"{message.id}.{timestamp}.".encode() + message.body
    signature = base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
    return {
        "Content-Type": "application/json",
        "webhook-id": message.id,
        "webhook-timestamp": timestamp,
        "webhook-signature": f"v1,{signature}",
    }


def read_key(file: str, setting: str) -> bytes:
    """Returns the signing key from a file with `whsec_` and the key's base64. Blocks.

    Raises:
        ConfigError: the file cannot be read, or contains no such key.
    """
    secret = read_secret(file, setting, f'the signing key ("{_PREFIX}" and base64)')
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
