"""A receiver of webhooks on a free loopback port, which verifies signatures and can refuse messages."""

import base64
import hashlib
import hmac
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from typing import Any

from support.http_answers import answering

KEY = bytes(range(32))
SECRET = "whsec_" + base64.b64encode(KEY).decode()


def secret_file(folder: Path) -> str:
    """Writes the signing key into a file and returns its path."""
    path = folder / "webhook.secret"
    path.write_text(SECRET + "\n")
    return str(path)


@dataclass
class Receiver:
    """What has arrived, and the status of the next answers."""

    url: str = ""
    status: int = 200
    ids: list[str] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    @property
    def types(self) -> list[str]:
        """The types of the accepted messages in the order of their arrival."""
        return [message["type"] for message in self.messages]

    def receive(self, headers: Any, body: bytes) -> int:
        message_id, timestamp = headers["webhook-id"], headers["webhook-timestamp"]
        signed = hmac.digest(KEY, f"{message_id}.{timestamp}.".encode() + body, hashlib.sha256)
        assert headers["webhook-signature"] == "v1," + base64.b64encode(signed).decode()
        assert headers["Content-Type"] == "application/json"
        if self.status == 200:
            self.ids.append(message_id)
            self.messages.append(json.loads(body))
        else:
            self.refused.append(message_id)
        return self.status


@contextmanager
def receiver(port: int = 0, tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """Runs one; port 0 lets the system choose."""

    found = Receiver()

    def answer(_path: str, headers: Message, body: bytes) -> tuple[int, dict[str, str], bytes]:
        try:
            status = found.receive(headers, body)
        except AssertionError:
            status = 401
        return status, {"Location": f"{found.url}/elsewhere"}, b"ok"

    with answering(answer, port, tls) as url:
        found.url = f"{url}/hook?token=t0ken"
        yield found
