"""The OpenAPI descriptions of both tiers are valid and complete, and clients that are generated from them work."""

import json
import os
import re
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.gateway import gateway_settings
from support.line import Line
from support.needs import missing, program

from firstline_edge.api.app import description
from firstline_gateway.app import open_gateway

IMAGES = Path(__file__).parents[2] / "models/digits/heldout/images.zip"


@pytest.fixture(params=["agent", "gateway"])
def document(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    if request.param == "agent":
        return description()
    gateway = open_gateway(gateway_settings(tmp_path))
    found = gateway.control_plane().openapi()
    gateway.store.close()
    gateway.store.database.close()
    return found


def resolved(document: dict[str, Any], response: dict[str, Any]) -> dict[str, Any]:
    """A response itself, or the one of the components to which it refers."""
    name = response.get("$ref", "").removeprefix("#/components/responses/")
    return document["components"]["responses"][name] if name else response


@pytest.mark.parametrize("kind", ["schemas", "responses"])
def test_each_reference_of_a_description_leads_somewhere(document: dict[str, Any], kind: str) -> None:
    references = set(re.findall(rf'"\$ref": "#/components/{kind}/([^"]+)"', json.dumps(document)))
    assert references == document["components"][kind].keys()
    assert any(name.startswith("Error") for name in references)
    assert '"x-schemas"' not in json.dumps(document)


def test_each_json_answer_has_a_schema(document: dict[str, Any]) -> None:
    answers = {
        (path, status): content["application/json"]
        for path, methods in document["paths"].items()
        for operation in methods.values()
        for status, response in operation["responses"].items()
        if "application/json" in (content := resolved(document, response).get("content", {}))
    }
    assert len(answers) > 100 and all(answer.get("schema") for answer in answers.values())
    assert answers["/v2/models/{model}", "200"]["schema"]["properties"]["inputs"]["type"] == "array"


@pytest.mark.parametrize("path", ["/v2/health/ready", "/v2/models/{model}/ready"])
def test_an_answer_that_is_not_ready_is_described(document: dict[str, Any], path: str) -> None:
    responses = document["paths"][path]["get"]["responses"]
    assert responses["400"]["content"] == responses["200"]["content"]
    assert "ready" in responses["400"]["content"]["application/json"]["schema"]["required"]


@pytest.mark.parametrize("status", ["429", "503", "504"])
def test_a_refusal_for_now_says_when_to_retry(document: dict[str, Any], status: str) -> None:
    responses = document["paths"]["/v2/models/{model}/infer"]["post"]["responses"]
    assert "Retry-After" in resolved(document, responses[status])["headers"]


def test_statistics_have_described_fields(document: dict[str, Any]) -> None:
    answer = document["paths"]["/v2/models/stats"]["get"]["responses"]["200"]["content"]["application/json"]
    one = answer["schema"]["properties"]["model_stats"]["items"]
    assert one["properties"].keys() >= {"name", "inference_count", "inference_stats"}
    assert one["properties"]["batch_stats"]["items"]["properties"].keys() > {"batch_size"}


@pytest.mark.parametrize("document", ["gateway"], indirect=True)
def test_the_definition_of_a_rollout_is_described(document: dict[str, Any]) -> None:
    rollout = document["components"]["schemas"]["RolloutSummary"]
    assert rollout["properties"]["definition"]["$ref"] == "#/components/schemas/Definition"


def test_each_parameter_is_described(document: dict[str, Any]) -> None:
    undescribed = {
        (path, parameter["name"])
        for path, methods in document["paths"].items()
        for operation in methods.values()
        for parameter in operation.get("parameters", ())
        if not parameter.get("description")
    }
    assert not undescribed


def test_sentences_about_attributes_are_at_their_properties(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    assert not [name for name, schema in schemas.items() if "Attributes:" in schema.get("description", "")]
    assert "None" not in json.dumps([schema.get("properties", {}) for schema in schemas.values()])


def test_fields_of_many_types_are_described(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"].values()
    fields = [item for schema in schemas for item in schema.get("properties", {}).items()]
    undescribed = {name for name, field in fields if "description" not in field}
    assert undescribed.isdisjoint({"after", "bundle", "code", "device", "error", "name", "request_id", "version"})
    assert dict(fields).keys() >= {"code", "error", "request_id"}


def test_each_operation_has_an_id_of_its_own(document: dict[str, Any]) -> None:
    ids = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len(set(ids)) == len(ids) > 20


_CALL = """
import importlib, json, sys
sys.path.insert(0, sys.argv[1])
from generated import AuthenticatedClient
client = AuthenticatedClient(base_url=sys.argv[2], token=sys.argv[3])
reply = importlib.import_module(f"generated.api.models.{sys.argv[4]}").sync_detailed(client=client)
print(json.dumps([reply.status_code, json.loads(reply.content)["name"]]))
"""


def succeeds(*command: str | Path, folder: Path) -> str:
    """The output of a program that finds other programs of its environment first in `folder`, and warns of nothing."""
    environment = os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warning" not in (done.stdout + done.stderr).lower()
    return done.stdout


@pytest.fixture(scope="module")
def documents(running: Line, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The description that each running tier serves, in a file."""
    found = {}
    for name, at in running.tiers.items():
        found[name] = tmp_path_factory.mktemp("documents") / f"{name}.json"
        found[name].write_bytes(httpx.get(f"{at.url}/openapi.json", headers=at.headers).content)
    return found


@pytest.mark.parametrize("tier", ["agent", "gateway"])
def test_answers_and_errors_have_the_described_fields(running: Line, documents: dict[str, Path], tier: str) -> None:
    document = json.loads(documents[tier].read_bytes())
    responses = document["paths"]["/firstline/v1/models/{model}/infer"]["post"]["responses"]
    refused = resolved(document, responses["400"])
    assert refused["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Error"}
    answer_schema = responses["200"]["content"]["application/json"]["schema"]
    at, image = running.tiers[tier], zipfile.ZipFile(IMAGES).read("digit_0037.png")
    kinds = {"string": str, "boolean": bool, "number": float, "array": list}
    for body, schema in ((image, answer_schema), (b"no image", document["components"]["schemas"]["Error"])):
        answer = httpx.post(f"{at.url}/firstline/v1/models/digits/infer", content=body, headers=at.headers).json()
        assert set(schema["required"]) <= answer.keys()
        for name in schema["properties"].keys() & answer.keys():
            field = schema["properties"][name]
            assert isinstance(answer[name], kinds[field["type"]]) and answer[name] in field.get("enum", [answer[name]])
    assert "request_id" in schema["properties"] and "request_id" in answer


def test_each_limit_of_a_page_is_a_number(document: dict[str, Any]) -> None:
    parameters = [
        parameter
        for methods in document["paths"].values()
        for operation in methods.values()
        for parameter in operation.get("parameters", ())
    ]
    assert {each["schema"]["type"] for each in parameters if each["name"] == "limit"} <= {"integer"}


@pytest.mark.parametrize(
    ("tier", "headers", "status"),
    [
        ("agent", {"Accept": "image/jpeg"}, 200),
        ("agent", {"Accept": "text/event-stream"}, 200),
        ("agent", {"Accept": "image/png"}, 406),
        ("gateway", {"Accept": "image/jpeg"}, 200),
        ("gateway", {"Prefer": "respond-async"}, 202),
        ("gateway", {"Authorization": "Bearer wrong"}, 401),
    ],
)
def test_each_header_of_an_answer_is_described(
    running: Line, documents: dict[str, Path], tier: str, headers: dict[str, str], status: int
) -> None:
    path, at = "/firstline/v1/models/{model}/infer", running.tiers[tier]
    image = zipfile.ZipFile(IMAGES).read("digit_0037.png")
    answer = httpx.post(at.url + path.format(model="digits"), content=image, headers={**at.headers, **headers})
    document = json.loads(documents[tier].read_bytes())
    response = resolved(document, document["paths"][path]["post"]["responses"][str(status)])
    media_type = answer.headers["content-type"].partition(";")[0]
    assert (answer.status_code, media_type in response["content"]) == (status, True)
    usual = {"date", "content-type", "content-length", "transfer-encoding", "cache-control", "x-accel-buffering"}
    described = usual.union(map(str.lower, response.get("headers", ())))
    assert answer.headers.keys() <= described


@pytest.mark.clients
def test_the_descriptions_are_valid(documents: dict[str, Path], clients_python: Path) -> None:
    tools = clients_python.parent
    printed = succeeds(tools / "openapi-spec-validator", *documents.values(), folder=tools)
    assert printed.count(": OK") == len(documents) == 2


@pytest.mark.clients
@pytest.mark.parametrize("tier", ["agent", "gateway"])
def test_a_generated_client_calls_the_tier(
    running: Line, documents: dict[str, Path], clients_python: Path, tmp_path: Path, tier: str
) -> None:
    document, tools = documents[tier], clients_python.parent
    # Linting takes as long as the rest; the tool does not know that PEM is text.
    config = "post_hooks: []\ncontent_type_overrides: {application/x-pem-file: text/plain}\n"
    (tmp_path / "config.yml").write_text(config)
    options = ("--meta", "none", "--fail-on-warning", "--config", tmp_path / "config.yml")
    generate = ("generate", "--path", document, *options, "--output-path", tmp_path / "generated")
    succeeds(tools / "openapi-python-client", *generate, folder=tools)
    at = running.tiers[tier]
    token = at.headers.get("Authorization", "").removeprefix("Bearer ") or "none"
    call = {"agent": "get_v2", "gateway": "server_metadata_v2_get"}[tier]
    printed = succeeds(clients_python, "-c", _CALL, tmp_path, at.url, token, call, folder=tools)
    status, name = json.loads(printed)
    assert (status, name.partition("-")[0]) == (200, "firstline")


_TYPED_CALL = """
import createClient from "openapi-fetch";
import type { paths } from "./types.js";

declare const process: { argv: string[] };
const [, , baseUrl, token] = process.argv;
const client = createClient<paths>({ baseUrl, headers: { Authorization: `Bearer ${token}` } });
const data = Array.from({ length: 64 }, (_, pixel) => pixel);
const { data: answer, error } = await client.POST("/v2/models/{model}/infer", {
  params: { path: { model: "digits" } },
  body: {
    id: "mine",
    parameters: { timeout: 5_000_000 },
    inputs: [{ name: "image", datatype: "UINT8", shape: [1, 8, 8, 1], data }],
  },
});
if (error) throw new Error(error.error);
if (typeof answer === "string" || !("outputs" in answer)) throw new Error("binary, or a job");
console.log(JSON.stringify([answer.id, answer.parameters?.status, answer.outputs?.[0]?.shape]));
// @ts-expect-error: the description has no such route
void (() => client.GET("/v2/models/{model}/nowhere"));
"""


@pytest.fixture(scope="module")
def npm_packages() -> Path:
    """The folder of the packages that generate and compile TypeScript clients."""
    folder = Path(__file__).parents[2] / ".venv-typescript" / "node_modules"
    if not folder.exists():
        missing("there is no .venv-typescript: `make clients`")
    return folder


@pytest.fixture(scope="module")
def typescript_clients(
    documents: dict[str, Path], npm_packages: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """A compiled client of each tier; each tool runs once, because it takes longest to start."""
    folder, tools = tmp_path_factory.mktemp("typescript"), npm_packages / ".bin"
    (folder / "node_modules").symlink_to(npm_packages)
    (folder / "package.json").write_text('{"type": "module"}')
    for tier in documents:
        (folder / f"{tier}.ts").write_text(_TYPED_CALL.replace("./types.js", f"./{tier}_types.js"))
    described = {
        tier: {"root": str(document), "x-openapi-ts": {"output": f"./{tier}_types.ts"}}
        for tier, document in documents.items()
    }
    (folder / "redocly.yaml").write_text(json.dumps({"apis": described}))
    succeeds(tools / "openapi-typescript", "--redocly", folder / "redocly.yaml", folder=tools)
    compiled = ("--strict", "--target", "es2022", "--module", "nodenext", "--skipLibCheck")
    succeeds(tools / "tsc", *compiled, *(folder / f"{tier}.ts" for tier in documents), folder=tools)
    return {tier: folder / f"{tier}.js" for tier in documents}


@pytest.mark.clients
@pytest.mark.parametrize("tier", ["agent", "gateway"])
def test_a_typescript_client_calls_the_tier(
    running: Line, typescript_clients: dict[str, Path], npm_packages: Path, tier: str
) -> None:
    node, at = program("node", "`apt-get install nodejs`"), running.tiers[tier]
    token = at.headers.get("Authorization", "").removeprefix("Bearer ") or "none"
    printed = succeeds(node, typescript_clients[tier], at.url, token, folder=npm_packages / ".bin")
    assert json.loads(printed) == ["mine", "final", [1, 10]]
