"""Requests made from the OpenAPI descriptions of both tiers; `make -C bench chaos` sends more of them."""

from pathlib import Path

import httpx
from support.agent import edge_settings, serving_agent
from support.line import line

from firstline_edge.api.app import ROUTES


async def test_the_agents_description_covers_every_address(tmp_path: Path) -> None:
    async with serving_agent(edge_settings(tmp_path)) as (_, url), httpx.AsyncClient(base_url=url) as http:
        document = (await http.get("/openapi.json")).json()
    served = {(route.path, route.method.lower()) for route in ROUTES}
    assert {(path, method) for path, methods in document["paths"].items() for method in methods} == served
    for path, methods in document["paths"].items():
        for operation in methods.values():
            in_path = {parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "path"}
            assert in_path == {part[1:-1] for part in path.split("/") if part.startswith("{")}


def test_neither_tier_ever_fails(tmp_path: Path) -> None:
    from chaos import described  # only here, because it imports schemathesis

    with line(tmp_path, environ={"FIRSTLINE_GATEWAY_AUTH__MODE": "off"}) as running:  # so that nothing stops at a 401
        for name, tier in running.tiers.items():
            found = described.ask(tier, 4, 3)
            assert found.faults == [], name
            assert found.requests > 2 * found.routes > 20
            assert {200, 400, 404} <= set(found.statuses), name
