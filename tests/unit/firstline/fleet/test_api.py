"""The client of a gateway's API reads answers of a limited size, and uses no proxy."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

import httpx
import pytest

from firstline.fleet import api
from firstline.fleet.client import Fleet
from firstline_core.errors import FirstlineError, LinkDownError, ProtocolError


@contextmanager
def fleet_at(answer: httpx.Response) -> Iterator[Fleet]:
    """A client of a gateway that gives this answer."""
    transport = httpx.MockTransport(lambda _: answer)
    with httpx.Client(transport=transport, base_url="http://gateway.example") as client:
        yield Fleet(client)


@pytest.mark.parametrize("status", [200, 503])
def test_an_endless_answer_is_not_read_to_its_end(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "_ANSWER_BYTES", 1000)
    sent = 0

    def parts() -> Iterator[bytes]:
        nonlocal sent
        while sent < 100_000:
            sent += 100
            yield b" " * 100

    answer = httpx.Response(status, content=parts())
    with fleet_at(answer) as fleet, pytest.raises(ProtocolError, match="has more than 1000 bytes"):
        fleet.braked()
    assert sent == 1100


def test_an_answer_within_the_limit_is_read() -> None:
    with fleet_at(httpx.Response(200, content=b'{"brake": null}')) as fleet:
        assert fleet.braked() is None


@pytest.mark.parametrize(
    "content",
    [b"<html>", b'{"brake": {"escalations_per_hour": 1, "reason": "\xff"}}', b'{"x": ' + b"[" * 60_000],
    ids=["page", "text", "deep"],
)
def test_an_answer_of_another_server_is_refused(content: bytes) -> None:
    answer = httpx.Response(200, content=content)
    with fleet_at(answer) as fleet, pytest.raises(ProtocolError, match="does not answer as a Firstline gateway"):
        fleet.braked()


def test_an_error_within_the_limit_is_read() -> None:
    with fleet_at(httpx.Response(503, content=b'{"code": "store_unavailable"}')) as fleet:
        with pytest.raises(FirstlineError) as raised:
            fleet.braked()
        assert raised.value.code == "store_unavailable"


def test_no_proxy_is_named_because_none_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    monkeypatch.setenv("http_proxy", "socks5://proxy.example:1080")  # which a client that uses it would refuse
    client = httpx.Client(transport=httpx.MockTransport(refuse), base_url="http://gateway.example")
    with closing(client), pytest.raises(LinkDownError, match=r"gateway\.example cannot be reached: refused\. Start"):
        Fleet(client).braked()
