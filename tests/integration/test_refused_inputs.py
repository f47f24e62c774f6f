"""Inputs that are invalid for the full model alone: who notices, and what the device's client gets."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.agent import edge_settings, serving_agent
from support.audio import clip
from support.broker import Broker, free_port
from support.gateway import mqtt_link, serving, wait_for_gauge
from support.grpc_calls import calling, refusal
from support.images import grey
from support.inference import post
from support.small_models import small_gateway
from support.waiting import until

from bench.support.bundles import model, write_manifest
from bench.support.onnx_models import write_graph
from firstline_core.bundle.manifest import Policy
from firstline_core.errors import InvalidTensorError
from firstline_core.ids import new_request_id
from firstline_core.processing import steps
from firstline_core.protocol.grpc.schema import message
from firstline_core.protocol.http import BodyBudget
from firstline_core.protocol.tensors import to_binary
from firstline_core.types import Array, InferRequest, Reason, Status, Tensor, Tier, Wait
from firstline_edge.api import server as edge_server
from firstline_edge.api.access import access_of
from firstline_edge.app import EdgeAgent
from firstline_gateway.app import Gateway

SURE, UNSURE = 3.0, 0.25

INPUTS = (
    steps.InputSpec("a", "FP32", (-1, 1)),
    steps.InputSpec("wave", "FP32", (-1, -1)),  # the full model takes four samples, which its own file says
    steps.InputSpec("reading", "INT64", (-1, 2)),
    steps.InputSpec("photo", "BYTES", (-1,), "image"),
    steps.InputSpec("clip", "BYTES", (-1,), "audio"),
    steps.InputSpec("note", "BYTES", (-1,), "text"),
)
_FULL = (
    steps.ModelInput("a", "x"),
    steps.ModelInput("wave", "wave"),
    steps.ModelInput("reading", "reading"),
    steps.ModelInput("photo", "photo", (steps.Decode("L"), steps.Resize(8, 8), steps.Scale())),
    steps.ModelInput("clip", "clip", (steps.DecodeAudio(), steps.Mono(), steps.Resample(8000), steps.Pad(800))),
    steps.ModelInput("note", "note", (steps.DecodeText("NFC"),)),
)


def write_bundle(folder: Path) -> None:
    """The logit of "yes" is a for the edge model; the full model adds 1 and ignores the values of all other inputs."""
    folder.mkdir(parents=True)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1])
    out = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 2])]
    weights = [numpy_helper.from_array(np.array([[0, 1]], np.float32), "weights")]
    edge = [helper.make_node("MatMul", ["x", "weights"], ["logits"])]
    full = [
        helper.make_node("Add", ["x", "one"], ["more"]),
        helper.make_node("MatMul", ["more", "weights"], ["logits"]),
    ]
    others = [
        helper.make_tensor_value_info(name, kind, shape)
        for name, kind, shape in (
            ("wave", TensorProto.FLOAT, ["n", 4]),
            ("reading", TensorProto.INT64, ["n", 2]),
            ("photo", TensorProto.FLOAT, ["n", 8, 8, 1]),
            ("clip", TensorProto.FLOAT, ["n", 800]),
            ("note", TensorProto.STRING, ["n"]),
        )
    ]
    one = numpy_helper.from_array(np.array([1], np.float32), "one")
    edge_file = write_graph(folder / "edge.onnx", edge, [x], out, weights)
    full_file = write_graph(folder / "full.onnx", full, [x, *others], out, [*weights, one])
    write_manifest(
        folder,
        [model(edge_file, folder, id="edge", inputs=(steps.ModelInput("a"),), postprocess=(steps.Softmax(),))],
        ("no", "yes"),
        name="mixed",
        full=model(full_file, folder, id="full", inputs=_FULL, postprocess=(steps.Softmax(),)),
        inputs=INPUTS,
        policy=Policy(threshold=0.8),
    )


def byte_rows(content: bytes) -> Array:
    array = np.empty(1, object)
    array[0] = content
    return array


def asked(a: float = UNSURE, wait: Wait = Wait.FINAL, **other: Array) -> InferRequest:
    arrays = {
        "a": np.array([[a]], np.float32),
        "wave": np.zeros((1, 4), np.float32),
        "reading": np.zeros((1, 2), np.int64),
        "photo": byte_rows(grey()),
        "clip": byte_rows(clip(np.zeros(800))),
        "note": byte_rows(b"a note"),
    } | other
    inputs = tuple([Tensor(name, array) for name, array in arrays.items()])
    return InferRequest("mixed", inputs, new_request_id(), wait=wait)


FORBIDDEN = {
    "shape": ({"reading": np.zeros((1, 3), np.int64)}, "'reading' has shape [1, 3], but the model takes [any, 2]"),
    "datatype": ({"reading": np.zeros((1, 2))}, "'reading' is INT64, but was sent as FP64"),
    "numbers": ({"wave": np.full((1, 4), np.nan, np.float32)}, "Row 0 of input 'wave' has NaN or infinity"),
    "text": ({"note": byte_rows(b"\xff")}, "Row 0 of input 'note' is not UTF-8 text: byte 0 is 0xff"),
    "image": ({"photo": byte_rows(b"GIF89a")}, "Row 0 of input 'photo' is neither JPEG nor PNG, but a GIF file"),
    "audio": ({"clip": byte_rows(b"ID3")}, "Row 0 of input 'clip' is MP3; send WAV, FLAC or OGG"),
}
"""Inputs that the manifest forbids, and the device's sentence."""

UNFIT = {
    "tensor": ({"wave": np.zeros((1, 5), np.float32)}, "Input 'wave' becomes rows of shape [5]"),
    "text": ({"note": byte_rows(("e" + "\u0301" * 40).encode())}, "more than 30 combining marks"),
    "image": ({"photo": byte_rows(grey()[:40])}, "Row 0 of input 'photo'"),
    "audio": ({"clip": byte_rows(clip(np.zeros(800))[:20])}, "Row 0 of input 'clip'"),
}
"""Inputs that only the full model's file or steps refuse, and the gateway's sentence."""


def grpc_message(request: InferRequest) -> Any:
    sent = message("ModelInferRequest")(model_name=request.model)
    for tensor in request.inputs:
        sent.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        sent.raw_input_contents.append(bytes(to_binary("Input", tensor)))
    return sent


class Site(NamedTuple):
    agent: EdgeAgent
    url: str
    grpc_port: int
    gateway: Gateway

    @property
    def computed(self) -> int:
        """How many requests the gateway has seen."""
        found = self.gateway.plane.statistics()[0]
        return found.inference_count + found.fail.count


@pytest.fixture(params=["http", pytest.param("mqtt", marks=pytest.mark.mosquitto)])
async def site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Site]:
    write_bundle(tmp_path / "models" / "mixed")
    broker: Broker | None = request.getfixturevalue("mosquitto") if request.param == "mqtt" else None
    gateway = small_gateway(tmp_path, broker=broker)
    async with AsyncExitStack() as opened:
        url = await opened.enter_async_context(serving(gateway))
        link: dict[str, Any] = {"kind": "http", "url": url}
        if broker is not None:
            await wait_for_gauge(gateway, "firstline_gateway_mqtt_connected")
            link = mqtt_link(broker)
        port = free_port()
        models = {"models__directories": [str(tmp_path / "models")], "grpc__enabled": True, "grpc__port": port}
        # A busy machine takes longer than the default.
        settings = edge_settings(tmp_path / "state", links=[link], policy__default_timeout_ms=60_000, **models)
        agent, agent_url = await opened.enter_async_context(serving_agent(settings))
        access = access_of(settings.api)
        await opened.enter_async_context(edge_server.serving_grpc(agent.data_plane, access, BodyBudget(1 << 20)))
        await until(lambda: agent.links.chain.available)
        yield Site(agent, agent_url, port, gateway)


async def test_the_device_finds_what_the_manifest_forbids(site: Site) -> None:
    assert (await site.agent.data_plane.infer(asked())).answer.tier is Tier.CLOUD
    before = site.computed
    for a in (SURE, UNSURE):
        for fields, reason in FORBIDDEN.values():
            with pytest.raises(InvalidTensorError) as caught:
                await site.agent.data_plane.infer(asked(a, **fields))
            assert reason in caught.value.message
    assert site.computed == before


async def test_the_gateways_sentence_reaches_the_client_of_an_uncertain_answer(site: Site) -> None:
    async with httpx.AsyncClient(base_url=site.url) as http, calling(site.grpc_port) as call:
        for fields, reason in UNFIT.values():
            request = asked(UNSURE, **fields)
            reply = await post(http, request)
            assert (reply.status_code, reply.json()["code"]) == (400, "invalid_tensor")
            assert reason in reply.json()["error"]
            status, sentence, _ = await refusal(call("ModelInfer", grpc_message(request)))
            assert status == "INVALID_ARGUMENT" and reason in sentence


@pytest.mark.parametrize("site", ["http"], indirect=True)
async def test_an_answer_that_the_device_trusts_stays(site: Site) -> None:
    for fields, _ in UNFIT.values():
        answer = (await site.agent.data_plane.infer(asked(SURE, **fields))).answer
        assert (answer.status, answer.reason, answer.refusal) == (Status.FINAL, Reason.CONFIDENT, "")


@pytest.mark.parametrize("site", ["http"], indirect=True)
async def test_a_provisional_answer_expires_and_says_why_the_gateway_refused(site: Site) -> None:
    for fields, reason in UNFIT.values():
        request = asked(UNSURE, Wait.FIRST, **fields)
        first = (await site.agent.data_plane.infer(request)).answer
        assert (first.status, first.reason, first.refusal) == (Status.PROVISIONAL, Reason.REQUESTED, "")

        async def ended(request_id: str = request.request_id, reason: str = reason) -> bool:
            found = await site.agent.outbox.answer(request_id, "")
            answer = None if found is None else found.answer
            return answer is not None and answer.status is Status.EXPIRED and reason in answer.refusal

        await until(ended)
