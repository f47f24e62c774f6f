"""Routes of the registry: files of bundles, signed metadata, bundles, configurations, and aliases."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends, Path, Request
from pydantic import AfterValidator
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
from firstline_core.protocol.http import limited_chunks, timed_chunks
from firstline_core.protocol.limits import Limits
from firstline_gateway.api.auth import GatewayDep, OperatorDep, require_device_or_fleet, require_fleet
from firstline_gateway.api.messages import (
    PAGE,
    AliasName,
    ModelName,
    OptionalConfigurationName,
    OptionalModelName,
    Version,
    answer,
    body_of,
    body_schema,
    cached_response,
    has_already,
    name_of,
    number_of,
    part_of,
)

if TYPE_CHECKING:
    from firstline_gateway.registry.registry import Registry
else:
    Registry = object  # loads python-tuf, which a gateway without a registry does not need

_PUBLICATION = Limits(body_bytes=PUBLICATION_LIMIT_BYTES)
_PAGE_LIMIT = 200
_BLOB = BLOBS_PATH + "/{sha256}"
_BUNDLE = BUNDLES_PATH + "/{model}/versions/{version}"
_ALIAS = ALIASES_PATH + "/{model}/{alias}"
_SHA256_LENGTH = 64
# A hash names content that never changes. Shared caches cannot check access, so only private ones may store it.
_IMMUTABLE = "private, max-age=31536000, immutable"
_BINARY_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


def registry_of(gateway: GatewayDep) -> Registry:
    """Returns the gateway's registry.

    Raises:
        NotFoundError: the gateway has none.
    """
    if gateway.registry is None:
        raise NotFoundError("This gateway has no registry; its operator sets registry.blobs to where files are kept.")
    return gateway.registry


def _sha256_of(text: str) -> str:
    if len(text) != _SHA256_LENGTH or set(text) - set("0123456789abcdef"):
        raise RequestError("A file is named by its sha256: 64 hexadecimal digits in small letters.")
    return text


RegistryDep = Annotated[Registry, Depends(registry_of)]
Sha256 = Annotated[str, Path(description="64 hexadecimal digits in lower case."), AfterValidator(_sha256_of)]

reading = APIRouter(tags=["registry"], dependencies=[Depends(require_device_or_fleet)])
keeping = APIRouter(tags=["registry"], dependencies=[Depends(require_fleet)])


@reading.head(_BLOB)
@reading.get(_BLOB)
async def read_blob(request: Request, registry: RegistryDep, sha256: Sha256) -> Response:
    """The bytes of a file, or a part of them (Range, If-Range); HEAD returns its size."""
    blob = await registry.files.blob(sha256)
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
    if request.method == "HEAD":
        return Response(status_code=200, headers=headers)
    return StreamingResponse(registry.files.read(sha256, start, end), 206 if part is not None else 200, headers)


@keeping.put(_BLOB, openapi_extra=_BINARY_BODY)
async def write_blob(request: Request, gateway: GatewayDep, registry: RegistryDep, sha256: Sha256) -> Response:
    """Store a file: 201 if it is new, 200 if it exists; its body is then not read."""
    limits = Limits(body_bytes=gateway.settings.registry.blob_limit_bytes)
    is_new = await registry.files.put(sha256, limited_chunks(timed_chunks(request.stream()), request.headers, limits))
    return answer({"sha256": sha256, "new": is_new}, 201 if is_new else 200)


@reading.head(METADATA_PATH + "/{name}", include_in_schema=False)
@reading.get(METADATA_PATH + "/{name}")
async def read_metadata(request: Request, registry: RegistryDep, name: str) -> Response:
    """Signed metadata, as The Update Framework names it: timestamp.json, 3.root.json."""
    content = (await registry.metadata(name)).content
    cache_control = "private, max-age=86400, immutable" if name[0].isdigit() else "private, no-cache"
    return cached_response(request, content, hashlib.sha256(content).hexdigest(), cache_control)


@keeping.post(METADATA_PATH, openapi_extra=body_schema(Publication))
async def publish(request: Request, registry: RegistryDep, principal: OperatorDep) -> Response:
    """Publish newly signed root and targets metadata, atomically."""
    publication = await body_of(request, Publication, _PUBLICATION)
    return answer(await registry.publish([bytes(content) for content in publication.metadata], principal))


@keeping.get(REGISTRY_PATH)
async def read_status(registry: RegistryDep) -> Response:
    """Versions and expiry of the metadata, size of the files, and warnings."""
    return answer(await registry.status())


@keeping.get(ONLINE_KEY_PATH)
async def read_online_key(registry: RegistryDep) -> Response:
    """The public key that a root must name for snapshot and timestamp."""
    return answer(await registry.online_key(fresh=False))


@keeping.post(ONLINE_KEY_PATH)
async def make_online_key(registry: RegistryDep) -> Response:
    """Create the next such key, for a rotation; the present one signs until a root names the new one."""
    return answer(await registry.online_key(fresh=True))


@keeping.get(BUNDLES_PATH)
async def list_bundles(
    registry: RegistryDep, after: str = "", model: OptionalModelName = "", limit: str = str(_PAGE_LIMIT)
) -> Response:
    """The signed bundles, by name and version (after=NAME/VERSION, model=)."""
    behind, count = _cursor(after, "a model"), number_of(limit, "a limit", _PAGE_LIMIT)
    bundles = await registry.catalogue.entries(behind, count + 1, model)
    page = bundles[:count]
    last = f"{page[-1].name}/{page[-1].version}" if len(bundles) > count else None
    return answer(BundlePage(tuple(page), last))


@keeping.get(_BUNDLE)
async def read_bundle(registry: RegistryDep, model: ModelName, version: Version) -> Response:
    """A signed bundle: variants, requirements, certificates, aliases."""
    return answer(await registry.catalogue.entry(model, version))


@keeping.get(CONFIGURATIONS_PATH)
async def list_configurations(
    registry: RegistryDep, after: str = "", name: OptionalConfigurationName = "", limit: str = str(PAGE)
) -> Response:
    """The signed configurations, by name and version (after=NAME/VERSION, name=)."""
    behind, count = _cursor(after, "a configuration"), number_of(limit, "a limit", PAGE)
    listed = (await registry.catalogue.current()).configurations
    matching = [one for one in listed if (one.name, one.version) > behind and name in ("", one.name)]
    page = matching[:count]
    last = f"{page[-1].name}/{page[-1].version}" if len(matching) > count else None
    return answer(ConfigurationPage(tuple(page), last))


@keeping.get(ALIASES_PATH)
async def list_aliases(registry: RegistryDep, model: OptionalModelName = "") -> Response:
    """The aliases and their versions."""
    return answer(AliasList(tuple(await registry.aliases.all(model))))


@keeping.get(_ALIAS)
async def read_alias(registry: RegistryDep, model: ModelName, alias: AliasName) -> Response:
    """The history of an alias, newest first."""
    return answer(AliasList(tuple(await registry.aliases.history(model, alias))))


@keeping.put(_ALIAS, openapi_extra=body_schema(AliasRequest))
async def write_alias(
    request: Request, registry: RegistryDep, principal: OperatorDep, model: ModelName, alias: AliasName
) -> Response:
    """Set an alias to a version."""
    wanted = await body_of(request, AliasRequest)
    return answer(await registry.aliases.set(model, alias, wanted.version, principal))


@keeping.post(_ALIAS + "/revert")
async def revert_alias(registry: RegistryDep, principal: OperatorDep, model: ModelName, alias: AliasName) -> Response:
    """Revert the last change of an alias."""
    return answer(await registry.aliases.revert(model, alias, principal))


@keeping.delete(_ALIAS)
async def remove_alias(registry: RegistryDep, principal: OperatorDep, model: ModelName, alias: AliasName) -> Response:
    """Delete an alias; its history stays."""
    return answer(await registry.aliases.set(model, alias, None, principal))


def _cursor(after: str, what: str) -> tuple[str, int]:
    """Returns the name and version behind which a page starts."""
    name, _, version = after.partition("/")
    return (name_of(name, what), number_of(version, "a version")) if after else ("", 0)
