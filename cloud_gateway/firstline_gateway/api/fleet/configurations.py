"""The route that lists the signed configurations."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from firstline_core.fleet.registry import CONFIGURATIONS_PATH, ConfigurationPage
from firstline_gateway.api.dependencies import require_fleet
from firstline_gateway.api.fleet.blobs import registry_of
from firstline_gateway.api.fleet.shared import PAGE, answer, name_of, number_of

router = APIRouter(tags=["registry"], dependencies=[Depends(require_fleet)])


@router.get(
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
