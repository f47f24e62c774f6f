"""Routes of the registry: signed metadata, bundles, and aliases."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends, Path, Request
from starlette.responses import Response, StreamingResponse

from firstline_core.errors import NotFoundError, RequestError
from firstline_core.fleet.registry import (
    ALIASES_PATH,
    BLOBS_PATH,
    BUNDLES_PATH,
    CONFIGURATIONS_PATH,
    METADATA_PATH,
    ONLINE_KEY_PATH,
    PUBLICATION_LIMIT_BYTES,
    REGISTRY_PATH,
    AliasList,
    AliasRequest,
    BundlePage,
    ConfigurationPage,
    Publication,
)
from firstline_core.protocol.http_body import in_time, within
from firstline_core.protocol.limits import Limits
from firstline_gateway.api.auth import gateway_of, require_fleet
from firstline_gateway.api.fleet.shared import (
    PAGE,
    answer,
    body_of,
    body_schema,
    has_already,
    name_of,
    number_of,
    part_of,
    require_device_or_fleet,
)

if TYPE_CHECKING:
    from firstline_gateway.registry.registry import Registry

_PUBLICATION = Limits(body_bytes=PUBLICATION_LIMIT_BYTES)
_PAGE_LIMIT = 200
_BUNDLE = BUNDLES_PATH + "/{model}/versions/{version}"
_ALIAS = ALIASES_PATH + "/{model}/{alias}"

reading = APIRouter(tags=["registry"], dependencies=[Depends(require_device_or_fleet)])
keeping = APIRouter(tags=["registry"], dependencies=[Depends(require_fleet)])


@reading.head(METADATA_PATH + "/{name}", include_in_schema=False)
@reading.get(
    METADATA_PATH + "/{name}", summary="Signed metadata, as The Update Framework names it: timestamp.json, 3.root.json."
)
async def read_metadata(request: Request, name: str) -> Response:
    found = await registry_of(request).metadata(name)
    etag = f'"{sha256(found.content).hexdigest()}"'
    numbered = name[0].isdigit()
    headers = {"ETag": etag, "Cache-Control": "private, max-age=86400, immutable" if numbered else "private, no-cache"}
    if has_already(request.headers.get("if-none-match"), etag):
        return Response(status_code=304, headers=headers)
    return Response(found.content, headers=headers, media_type="application/json")


@keeping.post(
    METADATA_PATH,
    summary="Publish newly signed root and targets metadata, atomically.",
    openapi_extra=body_schema(Publication),
)
async def publish(request: Request) -> Response:
    registry = registry_of(request)
    publication = await body_of(request, Publication, _PUBLICATION)
    contents = [bytes(content) for content in publication.metadata]
    return answer(await registry.publish(contents, request.state.principal))


@keeping.get(REGISTRY_PATH, summary="Versions and expiry of the metadata, size of the files, and warnings.")
async def read_status(request: Request) -> Response:
    return answer(await registry_of(request).status())


@keeping.get(ONLINE_KEY_PATH, summary="The public key that a root must name for snapshot and timestamp.")
async def read_online_key(request: Request) -> Response:
    return answer(await registry_of(request).online_key(fresh=False))


@keeping.post(
    ONLINE_KEY_PATH,
    summary="Create the next such key, for a rotation; the present one signs until a root names the new one.",
)
async def make_online_key(request: Request) -> Response:
    return answer(await registry_of(request).online_key(fresh=True))


@keeping.get(BUNDLES_PATH, summary="The signed bundles, by name and version (after=NAME/VERSION, model=).")
async def list_bundles(request: Request, after: str = "", model: str = "", limit: str = str(_PAGE_LIMIT)) -> Response:
    name, _, version = after.partition("/")
    behind = (name_of(name, "a model"), number_of(version, "a version")) if after else ("", 0)
    count = number_of(limit, "a limit", _PAGE_LIMIT)
    model = model and name_of(model, "a model")
    found = await registry_of(request).bundles.entries(behind, count + 1, model)
    page = found[:count]
    last = f"{page[-1].name}/{page[-1].version}" if len(found) > count else None
    return answer(BundlePage(tuple(page), last))


@keeping.get(_BUNDLE, summary="A signed bundle: variants, requirements, certificates, aliases.")
async def read_bundle(request: Request, model: str, version: str) -> Response:
    bundles = registry_of(request).bundles
    return answer(await bundles.entry(name_of(model, "a model"), number_of(version, "a version")))


@keeping.get(ALIASES_PATH, summary="The aliases and their versions.")
async def list_aliases(request: Request, model: str = "") -> Response:
    found = await registry_of(request).aliases.all(model and name_of(model, "a model"))
    return answer(AliasList(tuple(found)))


@keeping.get(_ALIAS, summary="The history of an alias, newest first.")
async def read_alias(request: Request, model: str, alias: str) -> Response:
    found = await registry_of(request).aliases.history(name_of(model, "a model"), name_of(alias, "an alias"))
    return answer(AliasList(tuple(found)))


@keeping.put(_ALIAS, summary="Set an alias to a version.", openapi_extra=body_schema(AliasRequest))
async def write_alias(request: Request, model: str, alias: str) -> Response:
    aliases = registry_of(request).aliases
    asked = await body_of(request, AliasRequest)
    names = name_of(model, "a model"), name_of(alias, "an alias")
    return answer(await aliases.set(*names, asked.version, request.state.principal))


@keeping.post(_ALIAS + "/revert", summary="Revert the last change of an alias.")
async def revert_alias(request: Request, model: str, alias: str) -> Response:
    aliases = registry_of(request).aliases
    return answer(await aliases.revert(name_of(model, "a model"), name_of(alias, "an alias"), request.state.principal))


@keeping.delete(_ALIAS, summary="Delete an alias; its history stays.")
async def remove_alias(request: Request, model: str, alias: str) -> Response:
    aliases = registry_of(request).aliases
    names = name_of(model, "a model"), name_of(alias, "an alias")
    return answer(await aliases.set(*names, None, request.state.principal))


_SHA256_LENGTH = 64
# A hash names content that never changes. Shared caches cannot check access, so only private ones may store it.
_IMMUTABLE = "private, max-age=31536000, immutable"


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


@keeping.put(
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


@keeping.get(
    CONFIGURATIONS_PATH,
    summary="The signed configurations, by name and version (after=NAME/VERSION, name=).",
)
async def list_configurations(request: Request, after: str = "", name: str = "", limit: str = str(PAGE)) -> Response:
    last, _, version = after.partition("/")
    behind = (name_of(last, "a configuration"), number_of(version, "a version")) if after else ("", 0)
    count = number_of(limit, "a limit", PAGE)
    wanted = name and name_of(name, "a configuration")
    listed = (await registry_of(request).bundles.catalogue()).configurations
    known = [one for one in listed if (one.name, one.version) > behind and wanted in ("", one.name)]
    page = known[:count]
    end = f"{page[-1].name}/{page[-1].version}" if len(known) > count else None
    return answer(ConfigurationPage(tuple(page), end))
