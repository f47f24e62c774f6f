"""Routes of the registry: signed metadata, bundles, and aliases."""

from __future__ import annotations

from hashlib import sha256

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from firstline_core.fleet.registry import (
    ALIASES_PATH,
    BUNDLES_PATH,
    METADATA_PATH,
    ONLINE_KEY_PATH,
    PUBLICATION_LIMIT_BYTES,
    REGISTRY_PATH,
    AliasList,
    AliasRequest,
    BundlePage,
    Publication,
)
from firstline_core.protocol.limits import Limits
from firstline_gateway.api.dependencies import require_fleet
from firstline_gateway.api.fleet.blobs import registry_of
from firstline_gateway.api.fleet.ranges import has_already
from firstline_gateway.api.fleet.shared import (
    answer,
    body_of,
    body_schema,
    name_of,
    number_of,
    require_device_or_fleet,
)

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
