"""Other people's clients, unchanged and in an environment of their own, against both tiers."""

import base64
import io
import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.broker import free_port
from support.digits import predictions
from support.gateway import DIGITS
from support.keys import bearer, create_key
from support.line import Line, line

from firstline_core.bundle.store import open_bundle
from firstline_gateway.settings.settings import StoreSection

pytestmark = pytest.mark.clients

SCRIPTS = Path(__file__).parents[1] / "support" / "clients"
# No process can import both.
LIBRARIES = {
    "triton": (("ask_triton.py", "http"), ("ask_triton.py", "grpc"), ("ask_repository.py",)),
    "kserve": (("ask_kserve.py",), ("ask_kserve_grpc.py",)),
}
TIERS = ("agent", "gateway")
ROWS = 4

ClientResults = dict[str, Any]


@dataclass(frozen=True)
class Batch:
    """The images and pixels that are sent, and the rows of probabilities that each tier must give for them."""

    images: list[bytes]
    pixels: np.ndarray
    expected: dict[str, np.ndarray]


@dataclass(frozen=True)
class Served:
    """Both tiers, where each listens for gRPC, and what a gateway's operator shows."""

    line: Line
    grpc_ports: dict[str, int]
    operator: dict[str, str]


@pytest.fixture(scope="module")
def batch() -> Batch:
    found = predictions(60)
    # Rows of both kinds, so that the agent's answer is the edge model's for some and the full model's for others.
    chosen = [*np.flatnonzero(found.sure)[: ROWS - 1], np.flatnonzero(~found.sure)[0]]
    assert len(chosen) == ROWS
    encoded = [found.contents[row] for row in chosen]
    pixels = np.stack([np.asarray(Image.open(io.BytesIO(content)).convert("L")) for content in encoded])[..., None]
    expected = np.where(found.sure[chosen, None], found.edge[chosen], found.full[chosen])
    return Batch(encoded, pixels, {"agent": expected, "gateway": found.full[chosen]})


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    ports = {tier: free_port() for tier in TIERS}
    environ = {
        f"FIRSTLINE_{process}_GRPC__{key}": value
        for tier, process in (("agent", "EDGE"), ("gateway", "GATEWAY"))
        for key, value in (("ENABLED", "true"), ("PORT", str(ports[tier])))
    }
    folder = tmp_path_factory.mktemp("line")
    with line(folder, environ=environ) as found:
        (store,) = folder.rglob("gateway.db")
        key = create_key(StoreSection(url=f"sqlite:///{store}"), "keeper", "operator")
        yield Served(found, ports, bearer(key))


@pytest.fixture(scope="module", params=TIERS)
def tier(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def ask(running: Served, batch: Batch, clients_python: Path) -> Callable[..., ClientResults]:
    def job(script: str, tier: str) -> dict[str, Any]:
        server = running.line.tiers[tier]
        return {
            "url": server.url,
            "grpc": f"127.0.0.1:{running.grpc_ports[tier]}",
            "headers": running.operator if script == "ask_repository.py" and tier == "gateway" else server.headers,
            "readers": server.headers,
            "images": [base64.b64encode(image).decode() for image in batch.images],
            "pixels": batch.pixels.tolist(),
        }

    @cache
    def of(library: str) -> dict[tuple[str, ...], ClientResults]:
        """What the library's scripts bring back from both tiers."""
        asking = [(tier, *command) for command in LIBRARIES[library] for tier in TIERS]
        jobs = [
            {"command": [str(SCRIPTS / script), *arguments], "job": job(script, tier)}
            for tier, script, *arguments in asking
        ]
        command = [clients_python, SCRIPTS / "ask_in_turn.py"]
        done = subprocess.run(command, input=json.dumps(jobs), capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return dict(zip(asking, json.loads(done.stdout), strict=True))

    return lambda tier, *command: of("kserve" if command in LIBRARIES["kserve"] else "triton")[tier, *command]


def _results(*command: str) -> Any:
    @pytest.fixture(scope="module")
    def results(ask: Callable[..., ClientResults], tier: str) -> ClientResults:
        return ask(tier, *command)

    return results


repository = _results("ask_repository.py")
triton = _results("ask_triton.py", "http")
kserve = _results("ask_kserve.py")
triton_grpc = _results("ask_triton.py", "grpc")
kserve_grpc = _results("ask_kserve_grpc.py")


def check_rows(found: list[Any], expected: np.ndarray) -> None:
    np.testing.assert_allclose(np.array(found).reshape(-1, expected.shape[1]), expected, atol=1e-5)


@pytest.mark.parametrize("prefix", ["", "aio_"])
@pytest.mark.parametrize("transport", ["triton", "triton_grpc"])
def test_triton_finds_server_and_model(request: pytest.FixtureRequest, tier: str, transport: str, prefix: str) -> None:
    found = request.getfixturevalue(transport)
    assert found[f"{prefix}live"] is True
    assert found[f"{prefix}ready"] is True
    assert found[f"{prefix}model_ready"] is True
    assert found["server"]["name"] == f"firstline-{'edge' if tier == 'agent' else tier}"
    assert {"binary_tensor_data", "statistics", "model_configuration"} <= set(found["server"]["extensions"])
    metadata = found[f"{prefix}model"]
    assert metadata["name"] == "digits"
    assert metadata["versions"] == ["1"]
    for tensor in (*metadata["inputs"], *metadata["outputs"]):
        tensor["shape"] = [int(size) for size in tensor["shape"]]  # gRPC's JSON has numbers of 64 bits as strings
    assert metadata["inputs"] == [{"name": "image", "datatype": "BYTES", "shape": [-1]}]
    assert metadata["outputs"] == [{"name": "probabilities", "datatype": "FP32", "shape": [-1, 10]}]


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("transport", ["triton", "triton_grpc"])
def test_triton_finds_a_version(request: pytest.FixtureRequest, transport: str) -> None:
    assert request.getfixturevalue(transport)["version_ready"] is True


REST_FORMS = ("bytes_binary", "bytes_binary_json_output", "pixels_binary", "pixels_json", "gzip", "deflate")
FORMS = [("triton", name) for name in (*REST_FORMS, "gzip_response", "version", "parameters")]
FORMS += [("triton_grpc", name) for name in ("bytes", "pixels", "gzip", "version", "parameters")]


@pytest.mark.parametrize("prefix", ["", "aio_"])
@pytest.mark.parametrize(("transport", "name"), FORMS)
def test_triton_gets_the_bundles_own_probabilities(
    request: pytest.FixtureRequest, batch: Batch, tier: str, *, prefix: str, transport: str, name: str
) -> None:
    check_rows(request.getfixturevalue(transport)[prefix + name], batch.expected[tier])


@pytest.mark.parametrize("prefix", ["", "aio_"])
def test_triton_sends_one_row(triton: ClientResults, batch: Batch, tier: str, prefix: str) -> None:
    check_rows(triton[f"{prefix}one_row"], batch.expected[tier][:1])


def test_triton_sends_from_several_threads(triton: ClientResults, batch: Batch, tier: str) -> None:
    for found in triton["threads"]:
        check_rows(found, batch.expected[tier])


def test_triton_reads_the_answers_parameters(triton: ClientResults, tier: str) -> None:
    response = triton["response"]
    assert response["id"] == "mine"
    assert response["model_name"] == "digits"
    assert response["parameters"]["status"] == "final"
    assert response["parameters"]["tier"] in ("cloud", "cache")
    assert response["parameters"]["request_id"] != "mine"


REFUSALS = [
    (
        "wrong_datatype",
        400,
        "Input 'image' is BYTES (encoded images) or UINT8 pixels, but was sent as FP32; convert it.",
    ),
    ("wrong_output", 400, "Model 'digits' has no output 'logits'; it has: probabilities."),
    ("unknown_model", 404, "'nobody'"),
]


@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize("prefix", ["", "aio_"])
@pytest.mark.parametrize("transport", ["triton", "triton_grpc"])
@pytest.mark.parametrize(
    ("name", "status", "sentence"),
    [*REFUSALS, ("unknown_version", 404, "version"), ("no_image", 400, "Row 0 of input 'image'")],
)
def test_triton_raises_the_servers_sentence(
    request: pytest.FixtureRequest, transport: str, prefix: str, *, name: str, status: int, sentence: str
) -> None:
    refused = request.getfixturevalue(transport)[prefix + name]
    over_grpc = {400: "StatusCode.INVALID_ARGUMENT", 404: "StatusCode.NOT_FOUND"}[status]
    assert refused["status"] == (over_grpc if transport == "triton_grpc" else str(status))
    assert sentence in refused["message"]
    assert refused["message"].endswith(".")


def test_triton_gets_404_for_metadata_of_an_unknown_model(triton: ClientResults) -> None:
    assert int(triton["unknown_metadata"]["status"]) == 404
    assert "'nobody'" in triton["unknown_metadata"]["message"]


def test_kserve_finds_server_and_model(kserve: ClientResults) -> None:
    assert kserve["live"] is True
    assert kserve["ready"] is True
    assert kserve["model_ready"] is True
    assert kserve["nobody_ready"] is False


@pytest.mark.parametrize(
    "name", ["bytes_binary", "bytes_binary_both", "pixels_binary", "pixels_json", "parameters", "dictionary"]
)
def test_kserve_gets_the_bundles_own_probabilities(kserve: ClientResults, batch: Batch, tier: str, name: str) -> None:
    check_rows(kserve[name], batch.expected[tier])
    head = kserve[f"{name}_head"]
    assert (head["model"], head["status"]) == ("digits", "final")
    if name != "dictionary":
        assert head["id"] == "mine"


def test_kserve_sends_one_row(kserve: ClientResults, batch: Batch, tier: str) -> None:
    check_rows(kserve["one_row"], batch.expected[tier][:1])


@pytest.mark.parametrize(("name", "status", "sentence"), REFUSALS)
def test_kserve_raises_the_servers_sentence(kserve: ClientResults, name: str, status: int, sentence: str) -> None:
    assert kserve[name]["status"] == status
    assert sentence in kserve[name]["message"]


def check_statistics(found: ClientResults) -> None:
    """gRPC's JSON has numbers of 64 bits as strings, and leaves zeros out."""
    (model,) = found["model_stats"]
    assert (model["name"], model["version"]) == ("digits", "1")
    counted = model["inference_stats"]
    assert int(counted["success"]["count"]) > 0
    assert int(counted["success"]["ns"]) > 0
    assert int(counted["fail"]["count"]) > 0
    assert int(counted["compute_infer"]["ns"]) > 0
    assert int(model["execution_count"]) <= int(model["inference_count"])
    assert sum(int(batch["compute_infer"]["count"]) for batch in model["batch_stats"]) == int(model["execution_count"])


def test_triton_reads_index_statistics_and_configuration(triton: ClientResults, triton_grpc: ClientResults) -> None:
    assert triton["index"] == [{"name": "digits", "version": "1", "state": "READY", "reason": ""}]
    assert triton_grpc["index"] == {"models": [{"name": "digits", "version": "1", "state": "READY"}]}
    for found in (triton, triton_grpc):
        check_statistics(found["statistics"])
        check_statistics(found["all_statistics"])
    config = triton["config"]
    assert (config["name"], config["max_batch_size"]) == ("digits", 4096)
    assert config["input"] == [{"name": "image", "data_type": "TYPE_STRING", "dims": [1]}]
    assert config["output"] == [{"name": "probabilities", "data_type": "TYPE_FP32", "dims": [10]}]
    over_grpc = triton_grpc["config"]["config"]
    assert over_grpc["max_batch_size"] == 4096
    assert over_grpc["output"] == [{"name": "probabilities", "data_type": "TYPE_FP32", "dims": ["10"]}]


@pytest.mark.parametrize("transport", ["triton", "triton_grpc"])
def test_triton_gets_likeliest_classes(request: pytest.FixtureRequest, batch: Batch, tier: str, transport: str) -> None:
    labels = open_bundle(DIGITS).manifest.labels
    for texts, expected in zip(request.getfixturevalue(transport)["classes"], batch.expected[tier], strict=True):
        order = np.argsort(-expected)[:2]
        for text, index in zip(texts, order, strict=True):
            value, number, label = text.split(":")
            assert (int(number), label) == (index, labels[index])
            assert float(value) == pytest.approx(expected[index], abs=1e-5)


def test_triton_reads_the_answers_parameters_over_grpc(triton_grpc: ClientResults) -> None:
    response = triton_grpc["response"]
    assert (response["id"], response["model_name"]) == ("mine", "digits")
    assert response["parameters"]["status"] == {"string_param": "final"}


def test_an_error_in_a_stream_ends_its_request_alone(triton_grpc: ClientResults, batch: Batch, tier: str) -> None:
    first, refused, last = triton_grpc["stream"]
    check_rows(first, batch.expected[tier])
    check_rows(last, batch.expected[tier])
    assert "Row 0 of input 'image'" in refused


def test_kserve_speaks_grpc(kserve_grpc: ClientResults, batch: Batch, tier: str) -> None:
    assert (kserve_grpc["live"], kserve_grpc["ready"], kserve_grpc["model_ready"]) == (True, True, True)
    for name in ("bytes", "pixels", "typed", "parameters"):
        check_rows(kserve_grpc[name], batch.expected[tier])
        assert kserve_grpc[f"{name}_head"] == {"id": "mine", "model": "digits", "status": "final"}
    check_rows(kserve_grpc["one_row"], batch.expected[tier][:1])
    for name, status, sentence in (
        ("wrong_datatype", "INVALID_ARGUMENT", REFUSALS[0][2]),
        ("unknown_model", "NOT_FOUND", "'nobody'"),
    ):
        assert kserve_grpc[name]["status"] == status
        assert sentence in kserve_grpc[name]["message"]


@pytest.mark.parametrize("transport", ["http", "grpc", "http_aio", "grpc_aio"])
def test_triton_unloads_and_loads(repository: ClientResults, transport: str) -> None:
    found = repository[transport]
    assert found["unloaded"] == {"digits": "UNAVAILABLE"}
    assert found["loaded"] == {"digits": "READY"}
    (statistics,) = found["statistics"]["model_stats"]
    assert statistics["name"] == "digits"
    if not transport.endswith("aio"):
        assert found["ready"] in (False, "404", "StatusCode.NOT_FOUND")
        assert found["ready_again"] is True
        for name in ("config", "files"):
            assert found[name]["status"] in ("400", "StatusCode.INVALID_ARGUMENT")
            assert "a model is what its signed bundle says" in found[name]["message"]
        assert found["nobody"]["status"] in ("404", "StatusCode.NOT_FOUND")
        assert "'nobody'" in found["nobody"]["message"]
