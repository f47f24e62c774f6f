"""Files of bundles over HTTP, by their sha256: upload, and download in parts that can be resumed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends, Path, Request
from starlette.responses import Response, StreamingResponse

from firstline_core.errors import NotFoundError, RequestError
from firstline_core.fleet.registry import BLOBS_PATH
from firstline_core.protocol.http_body import in_time, within
from firstline_core.protocol.limits import Limits
from firstline_gateway.api.dependencies import gateway_of, require_fleet
from firstline_gateway.api.fleet.ranges import has_already, part_of
from firstline_gateway.api.fleet.shared import answer, require_device_or_fleet

if TYPE_CHECKING:
    from firstline_gateway.registry.registry import Registry

_SHA256_LENGTH = 64
# A hash names content that never changes. Shared caches cannot check access, so only private ones may store it.
_IMMUTABLE = "private, max-age=31536000, immutable"

reading = APIRouter(tags=["registry"], dependencies=[Depends(require_device_or_fleet)])
writing = APIRouter(tags=["registry"], dependencies=[Depends(require_fleet)])

Sha256 = Annotated[str, Path(description="64 hexadecimal digits in lower case.")]


@reading.head(BLOBS_PATH + "/{sha256}", summary="Size of a file; 404 if it is missing.")
@reading.get(BLOBS_PATH + "/{sha256}", summary="The bytes of a file, or a part of them (Range, If-Range).")
async def read_blob(request: Request, sha256: Sha256) -> Response:
    files = registry_of(request).files
    blob = await files.blob(_checked(sha256))
    etag = f'"{sha256}"'
    headers = {"ETag": etag, "Accept-Ranges": "bytes", "Cache-Control": _IMMUTABLE}
    if has_already(request.headers.get("if-none-match"), etag):
        return Response(status_code=304, headers=headers)
    try:
        part = part_of(blob.size_bytes, request.headers.get("range"), request.headers.get("if-range"), etag)
    except ValueError:
        return Response(status_code=416, headers=headers | {"Content-Range": f"bytes */{blob.size_bytes}"})
    start, end = part or (0, blob.size_bytes)
    headers |= {"Content-Length": str(end - start), "Content-Type": "application/octet-stream"}
    if part is not None:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{blob.size_bytes}"
    status = 206 if part is not None else 200
    if request.method == "HEAD":
        return Response(status_code=200, headers=headers)
    return StreamingResponse(files.read(sha256, start, end), status, headers)


@writing.put(
    BLOBS_PATH + "/{sha256}",
    summary="Store a file: 201 if it is new, 200 if it exists; its body is then not read.",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        }
    },
)
async def write_blob(request: Request, sha256: Sha256) -> Response:
    files = registry_of(request).files
    limits = Limits(body_bytes=gateway_of(request).settings.registry.blob_limit_bytes)
    is_new = await files.put(_checked(sha256), within(in_time(request.stream()), request.headers, limits))
    return answer({"sha256": sha256, "new": is_new}, 201 if is_new else 200)


def registry_of(request: Request) -> Registry:
    """Returns the gateway's registry.

    Raises:
        NotFoundError: the gateway has none.
    """
    found = gateway_of(request).registry
    if found is None:
        raise NotFoundError("This gateway has no registry; its operator sets registry.blobs to where files are kept.")
    return found


def _checked(sha256: str) -> str:
    if len(sha256) != _SHA256_LENGTH or set(sha256) - set("0123456789abcdef"):
        raise RequestError("A file is named by its sha256: 64 hexadecimal digits in small letters.")
    return sha256
