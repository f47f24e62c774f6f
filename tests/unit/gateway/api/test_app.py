"""The description of the control plane, and gateways of one process, which share the routes and nothing else."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec
import pytest
from fastapi import APIRouter, FastAPI
from msgspec import Struct, defstruct
from support.executor import single_executor
from support.gateway import GatedExecutor, digits_repository, gateway_settings
from support.keys import bearer, create_key

from firstline_core.fleet.persons import PERSON_HEADER, Person, Role
from firstline_gateway.api.app import describe
from firstline_gateway.api.messages import schemas
from firstline_gateway.app import Gateway
from firstline_gateway.models.repository import Repository

ONE = defstruct("Document", [("name", str)])
SAME = defstruct("Document", [("name", str)])
OTHER = defstruct("Document", [("number", int)])
MODELS = "/firstline/v1/models"
AUDIT = "/fleet/v1/audit"
VIEWER = msgspec.json.encode(Person("viewer@example.org", Role.VIEWER, "site=kiel")).decode()


def app_of(*answers: type[Struct]) -> FastAPI:
    """The application of a route for each kind of answer."""
    router = APIRouter()

    async def answer(request_id: str) -> None: ...

    for number, kind in enumerate(answers):
        router.add_api_route(f"/{number}/{{request_id}}", answer, openapi_extra=schemas(kind))
    router.add_api_route("/firstline/v1/answers/{request_id}", answer)
    app = FastAPI(routes=router.routes)
    describe(app)
    return app


def test_types_that_differ_need_names_of_their_own() -> None:
    with pytest.raises(RuntimeError, match="two types of the API have the name Document; rename one"):
        app_of(ONE, OTHER).openapi()


def test_equal_types_may_share_a_name() -> None:
    described = app_of(ONE, SAME).openapi()["components"]["schemas"]
    assert described["Document"]["properties"].keys() == {"name"}


def test_schemas_of_the_framework_are_not_described() -> None:
    assert app_of(ONE).openapi()["components"]["schemas"].keys() == {"Document", "Error", "Problem"}


@dataclass
class Site:
    """A gateway's application, with a client and an operator's key."""

    app: FastAPI
    client: httpx.AsyncClient
    key: dict[str, str]

    async def denials(self) -> int:
        """The number of times that the audit log says that a person was refused."""
        entries = (await self.client.get(AUDIT, headers=self.key)).json()["entries"]
        return sum(entry["action"] == "person.denied" for entry in entries)


@pytest.fixture
async def sites(tmp_path: Path) -> AsyncIterator[tuple[Site, Site]]:
    """Two gateways of this process; the second one has no model."""
    found = []
    async with AsyncExitStack() as opened:
        for name, repository in (("first", digits_repository()), ("second", Repository({}))):
            settings = gateway_settings(tmp_path / name)
            key = create_key(settings.store, "console", "operator")
            gateway = Gateway(settings, repository, single_executor(GatedExecutor(), repository))
            opened.push_async_callback(gateway.close)
            app = gateway.control_plane()
            transport = httpx.ASGITransport(app)
            client = await opened.enter_async_context(httpx.AsyncClient(transport=transport, base_url="http://gateway"))
            found.append(Site(app, client, bearer(key)))
        yield found[0], found[1]


async def test_gateways_of_one_process_share_no_service(sites: tuple[Site, Site]) -> None:
    first, second = sites
    for own, other, models in ((first, second, ["digits"]), (second, first, [])):
        reply = await own.client.get(MODELS, headers=own.key)
        assert [model["name"] for model in reply.json()["models"]] == models
        assert (await other.client.get(MODELS, headers=own.key)).status_code == 401


async def test_each_gateway_notes_denials_itself(sites: tuple[Site, Site]) -> None:
    for site in sites:
        for _ in range(2):
            refused = await site.client.get(AUDIT, headers=site.key | {PERSON_HEADER: VIEWER})
            assert refused.status_code == 403
        assert await site.denials() == 1


async def test_descriptions_of_two_gateways_are_independent(sites: tuple[Site, Site]) -> None:
    first, second = sites
    expected = first.app.openapi()["info"]["title"]
    for path in first.app.openapi()["paths"].values():
        path.clear()
    first.app.openapi()["info"]["title"] = "changed"
    assert (await first.client.get("/openapi.json")).json()["info"]["title"] == "changed"
    described = (await second.client.get("/openapi.json")).json()
    assert described["info"]["title"] == expected and all(described["paths"].values())


async def test_a_stranger_learns_no_parameter(sites: tuple[Site, Site]) -> None:
    site = sites[0]
    asked = 0
    for path, methods in site.app.openapi()["paths"].items():
        for method, operation in methods.items():
            takes_query = any(each["in"] == "query" for each in operation.get("parameters", ()))
            if "security" not in operation or not takes_query or path.endswith("/infer"):
                continue
            asked += 1
            address = path.replace("{version}", "1").replace("{", "").replace("}", "")
            query = {"unknown": "1"}
            assert (await site.client.request(method, address, params=query)).status_code == 401
            refused = await site.client.request(method, address, params=query, headers=site.key)
            assert refused.status_code == 400 and "There is no parameter 'unknown'" in refused.text
    assert asked > 10
