"""The description of the control plane."""

import pytest
from fastapi import APIRouter, FastAPI
from msgspec import Struct, defstruct

from firstline_gateway.api.app import create_app
from firstline_gateway.api.messages import schemas

ONE = defstruct("Document", [("name", str)])
SAME = defstruct("Document", [("name", str)])
OTHER = defstruct("Document", [("number", int)])


def app_of(*answers: type[Struct]) -> FastAPI:
    """The application of a route for each kind of answer."""
    router = APIRouter()

    async def answer(request_id: str) -> None: ...

    for number, kind in enumerate(answers):
        router.add_api_route(f"/{number}/{{request_id}}", answer, openapi_extra=schemas(kind))
    router.add_api_route("/firstline/v1/answers/{request_id}", answer)
    return create_app([router], lambda _: None)


def test_types_that_differ_need_names_of_their_own() -> None:
    with pytest.raises(RuntimeError, match="two types of the API have the name Document; rename one"):
        app_of(ONE, OTHER).openapi()


def test_equal_types_may_share_a_name() -> None:
    described = app_of(ONE, SAME).openapi()["components"]["schemas"]
    assert described["Document"]["properties"].keys() == {"name"}


def test_schemas_of_the_framework_are_not_described() -> None:
    assert app_of(ONE).openapi()["components"]["schemas"].keys() == {"Document", "Error", "Problem"}
