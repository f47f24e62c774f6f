"""The client of a gateway's API reads answers of a limited size."""

from collections.abc import Iterator

import httpx
import pytest

from firstline.fleet import api
from firstline.fleet.client import Fleet
from firstline_core.errors import FirstlineError, ProtocolError


@pytest.mark.parametrize("status", [200, 503])
def test_an_endless_answer_is_not_read_to_its_end(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "_ANSWER_BYTES", 1000)
    sent = 0

    def parts() -> Iterator[bytes]:
        nonlocal sent
        while sent < 100_000:
            sent += 100
            yield b" " * 100

    answer = httpx.MockTransport(lambda _: httpx.Response(status, content=parts()))
    with (
        httpx.Client(transport=answer, base_url="http://gateway.example") as client,
        pytest.raises(ProtocolError, match="has more than 1000 bytes"),
    ):
        Fleet(client).braked()
    assert sent == 1100


@pytest.mark.parametrize(("status", "body"), [(200, b'{"brake": null}'), (503, b'{"code": "store_unavailable"}')])
def test_an_answer_within_the_limit_is_read(status: int, body: bytes) -> None:
    answer = httpx.MockTransport(lambda _: httpx.Response(status, content=body))
    with httpx.Client(transport=answer, base_url="http://gateway.example") as client:
        if status == 200:
            assert Fleet(client).braked() is None
            return
        with pytest.raises(FirstlineError) as raised:
            Fleet(client).braked()
        assert raised.value.code == "store_unavailable"
