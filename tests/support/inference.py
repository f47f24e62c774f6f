"""V2 inference over HTTP."""

import httpx

from firstline_core.ids import new_request_id
from firstline_core.protocol.http import HEADER_LENGTH
from firstline_core.protocol.oip import decode_response, encode_request
from firstline_core.types import InferRequest, InferResponse, Tensor


def digits_request(images: Tensor, **fields: object) -> InferRequest:
    """A request for the digits whose outputs come back as bytes."""
    defaults: dict[str, object] = {"request_id": new_request_id(), "binary_output": True} | fields
    return InferRequest("digits", (images,), **defaults)


async def post(client: httpx.AsyncClient, request: InferRequest, url: str = "", **headers: str) -> httpx.Response:
    """Sends a request to its model, or to the version that it names."""
    encoded = encode_request(request)
    if encoded.header_length is not None:
        headers |= {HEADER_LENGTH: str(encoded.header_length)}
    version = f"/versions/{request.version}" if request.version else ""
    return await client.post(f"{url}/v2/models/{request.model}{version}/infer", content=encoded.body, headers=headers)


def read(reply: httpx.Response) -> InferResponse:
    """The answer in a reply with status 200."""
    assert reply.status_code == 200, reply.text
    length = reply.headers.get(HEADER_LENGTH)
    return decode_response(reply.content, int(length) if length else None)


async def infer(client: httpx.AsyncClient, request: InferRequest, **headers: str) -> InferResponse:
    return read(await post(client, request, **headers))
