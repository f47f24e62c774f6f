"""However a request's bytes come, its answer is the same: parsed, known at one look, in pieces, behind another."""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import Sequence

import httpx
import numpy as np
import pytest
from PIL import Image
from support.gateway import DIGITS, GatedExecutor, gateway_of, serving
from support.keys import create_key
from support.waiting import until

from firstline_core.ids import new_request_id
from firstline_core.protocol import oip
from firstline_core.protocol.http import HEADER_LENGTH
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.types import InferRequest, Tensor
from firstline_gateway.app import open_gateway
from firstline_gateway.models.folder import load_repository
from firstline_gateway.settings.load import load
from firstline_gateway.settings.settings import Store

# Ids, times, lengths and the padding that follows from them.
_OWN = re.compile(rb'[0-9a-f]{8}-[0-9a-f-]{27}|ms\\?":[0-9.e-]+|date: [^\r]*|Content-Length: \d+|(?<=\}) +', re.I)


def _picture() -> bytes:
    with io.BytesIO() as file:
        Image.new("L", (8, 8), 50).save(file, "PNG")
        return file.getvalue()


PICTURE = _picture()


def asked(key: str, *, binary: bool = True) -> bytes:
    tensor = Tensor("image", np.array([PICTURE], np.object_))
    request = InferRequest("digits", (tensor,), new_request_id(), binary_output=binary)
    encoded = oip.encode_request(request)
    return message(encoded.body, f"Authorization: Bearer {key}", f"{HEADER_LENGTH}: {encoded.header_length}")


def message(body: bytes, *lines: str) -> bytes:
    head = ["POST /v2/models/digits/infer HTTP/1.1", "Host: x", *lines, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(head).encode() + body


async def answers(url: str, pieces: Sequence[bytes], count: int) -> list[bytes]:
    address = httpx.URL(url)
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        found = []
        async with asyncio.timeout(10):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.01)
            for _ in range(count):
                found.append(await received(reader))
        return found
    finally:
        writer.close()


async def received(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    size = re.search(rb"\r\ncontent-length: (\d+)", head)
    assert size is not None
    return head + await reader.readexactly(int(size[1]))


def alike(answer: bytes) -> bytes:
    return _OWN.sub(b"", answer)


@pytest.mark.parametrize("binary", [True, False])
async def test_all_ways_answer_alike(binary: bool) -> None:
    settings = load(None, overrides={"models.directory": str(DIGITS.parent)})
    key = create_key(Store(), "shop", "application")
    async with serving(open_gateway(settings)) as url:
        one = asked(key, binary=binary)
        cut = one.index(b"\r\n\r\n") + 4
        parsed = (await answers(url, [one], 1))[0]
        assert parsed.startswith(b"HTTP/1.1 200")
        others = [
            *await answers(url, [one] * 4, 4),  # known by its head
            *await answers(url, [one, one[:cut], one[cut:]], 2),  # in a task
            *await answers(url, [one * 5], 5),  # one behind the other
        ]
        assert {alike(each) for each in others} == {alike(parsed)}
        stranger = asked("nobody")
        refused = [*await answers(url, [stranger], 1), *await answers(url, [stranger] * 3, 3)]
        assert {alike(each) for each in refused} == {alike(refused[0])}
        assert refused[0].startswith(b"HTTP/1.1 401")


async def test_a_request_that_waits_is_answered_later_and_one_whose_client_leaves_is_given_up() -> None:
    executor = GatedExecutor()
    settings = load(None, overrides={"auth.mode": "off"})
    gateway = gateway_of(settings, load_repository(DIGITS, RuntimeOptions()), executor)
    async with serving(gateway) as url:
        one = message(b'{"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 1], "data": [3]}]}')
        address = httpx.URL(url)
        reader, writer = await asyncio.open_connection(address.host, address.port)
        for count in range(3):
            writer.write(one)
            async with asyncio.timeout(10):
                while not executor.held:  # noqa: ASYNC110 (in the server, which has no event for it)
                    await asyncio.sleep(0.001)
                if count < 2:
                    executor.release()
                    assert (await received(reader)).startswith(b"HTTP/1.1 200")
        writer.close()
        await until(lambda: not gateway.plane.under_way.count)
        executor.release()
