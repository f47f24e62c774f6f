"""Sends both tiers, as processes, what schemathesis makes of their OpenAPI descriptions: valid and invalid requests.

Any answer is right but a 500, one with a status or a media type that the description does not name, one whose JSON does
not match its schema, none at all, and one after which the tier does not answer any more.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from hypothesis.strategies import SearchStrategy
from schemathesis import Case, GenerationMode
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import response_schema_conformance
from support.line import Tier, line

_TIMEOUT_S = 20.0
# A name that leads somewhere, in two of three requests; what schemathesis thinks of, in the third.
_KNOWN = {"model": "digits", "bundle": "digits", "version": "1"}
_NO_REQUEST = (requests.exceptions.InvalidHeader, requests.exceptions.InvalidURL, UnicodeError)


@dataclass(slots=True)
class Found:
    """What came of one tier.

    Args:
        faults: method, address and what was wrong.
        responses: of the tier's description, by the name with which its routes refer to them.
    """

    routes: int = 0
    requests: int = 0
    statuses: dict[int, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    responses: dict[str, Any] = field(default_factory=dict)


def run(folder: Path, per_route: int, start: int) -> dict[str, Found]:
    """Starts both tiers and asks each; then a gateway that lets everybody do what operators may.

    Args:
        folder: empty, for the tiers' files.
        per_route: requests, about.
        start: the seed of what is made.
    """
    with line(_made(folder / "guarded")) as running:
        found = {name: ask(tier, per_route, start) for name, tier in running.tiers.items()}
    with line(_made(folder / "open"), environ={"FIRSTLINE_GATEWAY_AUTH__MODE": "off"}) as running:
        return found | {"gateway without authentication": ask(running.gateway, per_route, start)}


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def ask(tier: Tier, per_route: int, start: int) -> Found:
    """Asks one tier that is running."""
    found = Found()
    with httpx.Client(base_url=tier.url, headers=tier.headers) as http:
        document = http.get("/openapi.json").json()
        found.responses = document["components"]["responses"]
        schema = schemathesis.openapi.from_dict(document)
        for operation in (described.ok() for described in schema.get_all_operations() if isinstance(described, Ok)):
            found.routes += 1
            for mode in GenerationMode.POSITIVE, GenerationMode.NEGATIVE:
                _ask(tier, operation.as_strategy(generation_mode=mode), per_route // 2, start, found)
            if http.get("/v2/health/live").status_code != httpx.codes.OK:
                found.faults.append(f"{operation.label}: nothing is answered any more")
    return found


def _ask(tier: Tier, cases: SearchStrategy[Case[Any]], count: int, start: int, found: Found) -> None:
    @seed(start)
    @settings(
        max_examples=max(1, count),
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases)
    def send(case: Case[Any]) -> None:
        found.requests += 1
        if found.requests % 3:
            case.path_parameters = {name: _KNOWN.get(name, value) for name, value in case.path_parameters.items()}
        where = f"{case.method} {case.formatted_path}"
        try:
            answer = case.call(base_url=tier.url, headers=tier.headers, timeout=_TIMEOUT_S)
        except _NO_REQUEST:  # not sent at all
            found.requests -= 1
            return
        except requests.exceptions.RequestException as error:
            found.faults.append(f"{where}: {error!r}"[:300])
            return
        status, kind = answer.status_code, answer.headers.get("content-type", [""])[0].partition(";")[0]
        found.statuses[status] = found.statuses.get(status, 0) + 1
        described = case.operation.definition.raw["responses"].get(str(status))
        if described is not None and "$ref" in described:
            described = found.responses[described["$ref"].removeprefix("#/components/responses/")]
        is_described = described is not None and (not answer.content or kind in described.get("content", ()))
        if status == httpx.codes.INTERNAL_SERVER_ERROR or not is_described:
            found.faults.append(f"{where}: {status} {kind} to {case.as_curl_command()}"[:1000])
            return
        try:
            case.validate_response(answer, checks=[response_schema_conformance])
        except FailureGroup as group:
            found.faults.append(f"{where}: {status} {group.exceptions}"[:1000])

    try:
        send()
    except Unsatisfiable:  # a route without parameters has no invalid request
        return
