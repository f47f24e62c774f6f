"""When the deadline of a request begins, by the application in this process."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.agent import edge_settings

from firstline_core.clock import SYSTEM_CLOCK
from firstline_core.protocol.asgi import RequestInfo
from firstline_core.protocol.oip import encode_request
from firstline_core.types import InferRequest, Tensor
from firstline_edge.api.access import access_of
from firstline_edge.api.app import App
from firstline_edge.app import EdgeAgent

UPLOAD_S = 10.0
"""The body's time on the way, above the default deadline."""


def picture() -> bytes:
    file = io.BytesIO()
    Image.new("L", (28, 28)).save(file, "PNG")
    return file.getvalue()


async def post(folder: Path, path: str, query: str, body: bytes, *headers: tuple[bytes, bytes]) -> tuple[int, str]:
    """Returns an agent's status and reply for a request whose first bytes came a while ago."""
    info = RequestInfo(SYSTEM_CLOCK.monotonic_s() - UPLOAD_S)
    info.whole = True
    scope = {"type": "http", "method": "POST", "path": path, "query_string": query.encode()}
    scope |= {"headers": [(b"host", b"127.0.0.1"), *headers], "state": {"firstline": info}}
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    settings = edge_settings(folder)
    async with EdgeAgent(settings) as agent:
        app = App(agent.data_plane, agent.files, agent.outbox, agent.operations, access_of(settings.api))
        await app(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent).decode(errors="replace")


async def post_tensors(folder: Path, timeout_s: float | None) -> tuple[int, str]:
    image = Tensor("image", np.array([picture()], dtype=np.object_))
    encoded = encode_request(InferRequest("digits", (image,), "", deadline_s=timeout_s))
    length = (b"inference-header-content-length", str(encoded.header_length).encode())
    return await post(folder, "/v2/models/digits/infer", "", encoded.body, length)


async def post_file(folder: Path, timeout_s: float | None) -> tuple[int, str]:
    query = "" if timeout_s is None else f"timeout={timeout_s * 1e6:.0f}"
    return await post(folder, "/firstline/v1/models/digits/infer", query, picture())


ROUTES = pytest.mark.parametrize("ask", [post_tensors, post_file])


@ROUTES
async def test_the_default_deadline_counts_from_the_first_bytes(tmp_path: Path, ask: Any) -> None:
    status, text = await ask(tmp_path, None)
    assert status == 503 and "deadline passed while it was read" in text


@ROUTES
async def test_a_timeout_counts_from_the_first_bytes(tmp_path: Path, ask: Any) -> None:
    status, text = await ask(tmp_path, UPLOAD_S / 2)
    assert status == 503 and "deadline passed while it was read" in text


@ROUTES
async def test_a_longer_timeout_allows_a_slow_upload(tmp_path: Path, ask: Any) -> None:
    status, text = await ask(tmp_path, 60 * UPLOAD_S)
    assert status == 200, text
