"""Routes of the registry: files of bundles, signed metadata, bundles, configurations, and aliases."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends, Path, Query, Request
from pydantic import AfterValidator
from starlette.responses import Response, StreamingResponse

from firstline_core.errors import NotFoundError, RequestError
from firstline_core.fleet import registry as wire
from firstline_core.protocol.http import limited_chunks, timed_chunks
from firstline_core.protocol.limits import Limits
from firstline_core.protocol.openapi import BINARY, BYTES, refusal, request_header
from firstline_core.protocol.tensors import shown
from firstline_core.types import ModelKey
from firstline_gateway.api.auth import Operator, device_or_fleet, scope
from firstline_gateway.api.messages import (
    ETAG,
    NEW,
    PAGE,
    UNCHANGED,
    AliasName,
    ModelName,
    OptionalConfigurationName,
    OptionalModelName,
    PageLimit,
    Version,
    answer,
    body_of,
    byte_range_of,
    cached_response,
    has_already,
    known_parameters,
    name_of,
    schemas,
    version_of,
)
from firstline_gateway.api.services import RegistryDep

if TYPE_CHECKING:  # loads python-tuf, which a gateway without a registry does not need
    from firstline_gateway.registry.registry import Registry

_PUBLICATION = Limits(body_bytes=wire.PUBLICATION_LIMIT_BYTES)
_PAGE_LIMIT = 200
_FILE = {"content": {BINARY: BYTES}, "headers": ETAG}
_READ_BLOB = {
    "parameters": [
        *UNCHANGED["parameters"],
        request_header("Range", "The part, such as `bytes=0-1023`."),
        request_header("If-Range", "The ETag of the file of which the caller has other parts."),
    ],
    "responses": {
        **UNCHANGED["responses"],
        "200": {"description": "The file.", **_FILE},
        "206": {"description": "A part of the file.", **_FILE},
        "416": {"description": "The file has no such part.", "headers": ETAG},
    },
}
_NO_ROOM = {"507": refusal("There is no room for it on the disk.", "Problem")}
_UNSIGNED = {"422": refusal("The metadata is expired, or lacks a valid signature.", "Problem")}
_PUBLISH = schemas(takes=wire.Publication, also={"responses": _NO_ROOM | _UNSIGNED})
_BLOB = wire.BLOBS_PATH + "/{sha256}"
_BUNDLE = wire.BUNDLES_PATH + "/{model}/versions/{version}"
_ALIAS = wire.ALIASES_PATH + "/{model}/{alias}"
_SHA256_LENGTH = 64
# A hash names content that never changes. Shared caches cannot check access, so only private ones may store it.
_IMMUTABLE = "private, max-age=31536000, immutable"
_WRITE_BLOB = {"requestBody": {"required": True, "content": {BINARY: BYTES}}, "responses": _NO_ROOM}

# The routes from which devices fetch files and metadata.
file_router = APIRouter(tags=["registry"], dependencies=[Depends(device_or_fleet), Depends(known_parameters)])
# The routes of operators.
router = APIRouter(tags=["registry"], dependencies=[Depends(scope("fleet")), Depends(known_parameters)])


def _sha256_of(text: str) -> str:
    if len(text) != _SHA256_LENGTH or set(text) - set("0123456789abcdef"):
        raise RequestError(f"{shown(text)} is not a SHA-256; name the file by its 64 hexadecimal digits in lower case.")
    return text


Sha256 = Annotated[str, Path(description="64 hexadecimal digits in lower case."), AfterValidator(_sha256_of)]


@file_router.head(_BLOB, response_class=StreamingResponse, openapi_extra=_READ_BLOB)
@file_router.get(_BLOB, response_class=StreamingResponse, openapi_extra=_READ_BLOB)
async def read_blob(registry: RegistryDep, request: Request, sha256: Sha256) -> Response:
    """The bytes of a file, or a part of them (Range, If-Range); HEAD returns its size."""
    files = _opened(registry).files
    blob = await files.blob(sha256)
    etag = f'"{sha256}"'
    headers = {"ETag": etag, "Accept-Ranges": "bytes", "Cache-Control": _IMMUTABLE}
    if has_already(request.headers.get("if-none-match"), etag):
        return Response(status_code=304, headers=headers)
    try:
        part = byte_range_of(blob.size_bytes, request.headers.get("range"), request.headers.get("if-range"), etag)
    except ValueError:
        return Response(status_code=416, headers=headers | {"Content-Range": f"bytes */{blob.size_bytes}"})
    start, end = part or (0, blob.size_bytes)
    headers |= {"Content-Length": str(end - start), "Content-Type": "application/octet-stream"}
    if part is not None:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{blob.size_bytes}"
    if request.method == "HEAD":
        return Response(status_code=200, headers=headers)
    return StreamingResponse(files.read(sha256, start, end), 206 if part is not None else 200, headers)


@file_router.head(wire.METADATA_PATH + "/{name}", include_in_schema=False)
@file_router.get(wire.METADATA_PATH + "/{name}", openapi_extra=UNCHANGED)
async def read_metadata(
    registry: RegistryDep,
    request: Request,
    name: Annotated[str, Path(description="Such as `timestamp.json` or `3.root.json`.")],
) -> Response:
    """Signed metadata, as The Update Framework names it: timestamp.json, 3.root.json."""
    content = (await _opened(registry).metadata(name)).content
    cache_control = "private, max-age=86400, immutable" if name[0].isdigit() else "private, no-cache"
    return cached_response(request, content, hashlib.sha256(content).hexdigest(), cache_control)


@router.put(_BLOB, responses=NEW, openapi_extra=_WRITE_BLOB)
async def write_blob(registry: RegistryDep, request: Request, sha256: Sha256) -> Response:
    """Store a file: 201 if it is new, 200 if it exists; its body is then not read."""
    files = _opened(registry).files
    limits = Limits(body_bytes=files.blob_limit_bytes)
    parts = limited_chunks(timed_chunks(request.stream()), request.headers, limits)
    declared = request.headers.get("content-length")
    is_new = await files.put(sha256, parts, None if declared is None else int(declared))
    return answer({"sha256": sha256, "new": is_new}, 201 if is_new else 200)


@router.post(wire.METADATA_PATH, openapi_extra=_PUBLISH)
async def publish(registry: RegistryDep, request: Request, principal: Operator) -> Response:
    """Publish newly signed root and targets metadata, atomically."""
    publication = await body_of(request, wire.Publication, _PUBLICATION)
    return answer(await _opened(registry).publish([bytes(content) for content in publication.metadata], principal))


@router.get(wire.REGISTRY_PATH, openapi_extra=schemas(wire.RegistryStatus))
async def read_status(registry: RegistryDep) -> Response:
    """Versions and expiry of the metadata, size of the files, and warnings."""
    return answer(await _opened(registry).status())


@router.get(wire.ONLINE_KEY_PATH, openapi_extra=schemas(wire.OnlineKey))
async def read_online_key(registry: RegistryDep) -> Response:
    """The public key that a root must name for snapshot and timestamp."""
    return answer(await _opened(registry).online_key(fresh=False))


@router.post(wire.ONLINE_KEY_PATH, openapi_extra=schemas(wire.OnlineKey))
async def make_online_key(registry: RegistryDep) -> Response:
    """Create the next such key, for a rotation; the present one signs until a root names the new one."""
    return answer(await _opened(registry).online_key(fresh=True))


@router.get(wire.BUNDLES_PATH, openapi_extra=schemas(wire.BundlePage))
async def list_bundles(
    registry: RegistryDep,
    after: str = "",
    model: OptionalModelName = "",
    limit: Annotated[int, Query(ge=1, le=_PAGE_LIMIT)] = _PAGE_LIMIT,
) -> Response:
    """The signed bundles, by name and version (after=NAME/VERSION, model=)."""
    bundles = await _opened(registry).catalogue.entries(_cursor(after, "a model"), limit + 1, model)
    return answer(wire.BundlePage(tuple(bundles[:limit]), _next_cursor(bundles, limit)))


@router.get(_BUNDLE, openapi_extra=schemas(wire.BundleEntry))
async def read_bundle(registry: RegistryDep, model: ModelName, version: Version) -> Response:
    """A signed bundle: variants, requirements, certificates, aliases."""
    return answer(await _opened(registry).catalogue.entry(ModelKey(model, version)))


@router.get(wire.CONFIGURATIONS_PATH, openapi_extra=schemas(wire.ConfigurationPage))
async def list_configurations(
    registry: RegistryDep, after: str = "", name: OptionalConfigurationName = "", limit: PageLimit = PAGE
) -> Response:
    """The signed configurations, by name and version (after=NAME/VERSION, name=)."""
    behind = _cursor(after, "a configuration")
    listed = (await _opened(registry).catalogue.current()).configurations
    matching = [one for one in listed if (one.name, one.version) > behind and name in ("", one.name)]
    return answer(wire.ConfigurationPage(tuple(matching[:limit]), _next_cursor(matching, limit)))


@router.get(wire.ALIASES_PATH, openapi_extra=schemas(wire.AliasList))
async def list_aliases(registry: RegistryDep, model: OptionalModelName = "") -> Response:
    """The aliases and their versions."""
    return answer(wire.AliasList(tuple(await _opened(registry).aliases.all(model))))


@router.get(_ALIAS, openapi_extra=schemas(wire.AliasList))
async def read_alias(registry: RegistryDep, model: ModelName, alias: AliasName) -> Response:
    """The history of an alias, newest first."""
    return answer(wire.AliasList(tuple(await _opened(registry).aliases.history(model, alias))))


@router.put(_ALIAS, openapi_extra=schemas(wire.AliasChange, takes=wire.AliasRequest))
async def write_alias(
    registry: RegistryDep, request: Request, principal: Operator, model: ModelName, alias: AliasName
) -> Response:
    """Set an alias to a version."""
    alias_request = await body_of(request, wire.AliasRequest)
    return answer(await _opened(registry).aliases.set(model, alias, alias_request.version, principal))


@router.post(_ALIAS + "/revert", openapi_extra=schemas(wire.AliasChange))
async def revert_alias(registry: RegistryDep, principal: Operator, model: ModelName, alias: AliasName) -> Response:
    """Revert the last change of an alias."""
    return answer(await _opened(registry).aliases.revert(model, alias, principal))


@router.delete(_ALIAS, openapi_extra=schemas(wire.AliasChange))
async def remove_alias(registry: RegistryDep, principal: Operator, model: ModelName, alias: AliasName) -> Response:
    """Delete an alias; its history stays."""
    return answer(await _opened(registry).aliases.set(model, alias, None, principal))


def _cursor(after: str, what: str) -> ModelKey:
    """Returns the name and version behind which a page starts."""
    name, _, version = after.partition("/")
    return ModelKey(name_of(name, what), version_of(version)) if after else ModelKey("", 0)


def _next_cursor(found: Sequence[wire.BundleEntry | wire.ConfigurationEntry], limit: int) -> str | None:
    """Returns the `after` of the next page; None if `found` is not longer than a page."""
    return f"{found[limit - 1].name}/{found[limit - 1].version}" if len(found) > limit else None


def _opened(registry: Registry | None) -> Registry:
    """Returns the gateway's registry.

    Raises:
        NotFoundError: the gateway has none.
    """
    if registry is None:
        raise NotFoundError(
            "This gateway has no registry; set registry.blobs in its configuration to a folder or an S3 address."
        )
    return registry
