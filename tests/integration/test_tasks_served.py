"""Models of every task on both tiers: the canonical outputs over each V2 transport, with other people's clients too."""

import asyncio
import base64
import hashlib
import json
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from support.broker import Broker
from support.either_tier import either_tier
from support.gateway import wait_for_gauge
from support.grpc_calls import calling
from support.mqtt_device import device_at
from support.small_models import small_gateway
from support.task_bundles import TASKS, write_tasks

from firstline import AsyncClient, predictions
from firstline_core.ids import new_request_id
from firstline_core.protocol.grpc.schema import message
from firstline_core.protocol.tensors import from_binary, to_binary
from firstline_core.types import Array, Arrays, InferRequest, Tensor

SCRIPTS = Path(__file__).parents[1] / "support" / "clients"


def check(found: Mapping[str, Array], expected: Arrays) -> None:
    assert set(found) == set(expected)
    for name, array in expected.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape), name
        np.testing.assert_array_equal(found[name], array, err_msg=name)


@pytest.fixture(params=["agent", "gateway"])
def tier(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def grpc_request(model: str, tensor: Tensor) -> Any:
    sent = message("ModelInferRequest")(model_name=model)
    sent.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    sent.raw_input_contents.append(bytes(to_binary("Input", tensor)))
    return sent


def grpc_outputs(reply: Any) -> dict[str, Array]:
    return {
        each.name: from_binary(each.name, each.datatype, tuple(each.shape), memoryview(raw))
        for each, raw in zip(reply.outputs, reply.raw_output_contents, strict=True)
    }


async def test_outputs_pass_rest_and_grpc(tier: str, tmp_path: Path) -> None:
    expected = write_tasks(tmp_path / "models")
    async with either_tier(tier, tmp_path) as (url, port), AsyncClient(url) as client, calling(port) as call:
        for name, (_, inputs) in TASKS.items():
            response = await client.infer(name, {inputs.name: inputs.array})
            check(response.arrays, expected[name])
            rows = predictions(response, await client.metadata(name))
            assert len(rows) == len(inputs.array) and all(map(str, rows))
            check(grpc_outputs(await call("ModelInfer", grpc_request(name, inputs))), expected[name])
        async with httpx.AsyncClient(base_url=url, trust_env=False) as http:  # the same in JSON, by the shorter route
            rows = {"x": TASKS["text"][1].array.tolist()}
            texts = (await http.post("/firstline/v1/models/text/infer", json=rows)).json()["results"]
            assert [row["text"].encode() for row in texts] == expected["text"]["text"].tolist()
            row = {"x": TASKS["tensors"][1].array[:1].tolist()}
            tensors = (await http.post("/firstline/v1/models/tensors/infer", json=row)).json()["outputs"]
            assert tensors == {name: array[:1].tolist() for name, array in expected["tensors"].items()}


@pytest.mark.mosquitto
async def test_outputs_pass_mqtt(mosquitto: Broker, tmp_path: Path) -> None:
    expected = write_tasks(tmp_path / "models")
    gateway = small_gateway(tmp_path, broker=mosquitto)
    await gateway.start()
    try:
        await wait_for_gauge(gateway, "firstline_gateway_mqtt_connected")
        async with device_at(mosquitto, "cam") as device:
            for name, (_, inputs) in TASKS.items():
                request = InferRequest(name, (inputs,), new_request_id(), binary_output=True)
                check((await device.infer(request)).arrays, expected[name])
    finally:
        await gateway.close()


def summary(array: Array) -> dict[str, Any]:
    """An output in the words of the script."""
    if array.dtype.hasobject:
        content = "\n".join(element.decode() for element in array.flat).encode()
        return {"shape": list(array.shape), "dtype": "object", "sha256": hashlib.sha256(content).hexdigest()}
    content = np.ascontiguousarray(array).tobytes()
    return {"shape": list(array.shape), "dtype": str(array.dtype), "sha256": hashlib.sha256(content).hexdigest()}


def described(name: str, tensor: Tensor, outputs: Arrays) -> dict[str, Any]:
    flat = tensor.array.reshape(-1).tolist()
    data = [base64.b64encode(each).decode() for each in flat] if tensor.datatype == "BYTES" else flat
    fields = {"input": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape), "data": data}
    return {"name": name, **fields, "outputs": list(outputs)}


@pytest.mark.clients
@pytest.mark.parametrize("clients", ["triton", "kserve"])
async def test_other_clients_call_every_task(clients: str, tmp_path: Path, clients_python: Path) -> None:
    tiers = ("agent", "gateway")
    for tier in tiers:
        expected = write_tasks(tmp_path / tier / "models")
    models = [described(name, inputs, expected[name]) for name, (_, inputs) in TASKS.items()]
    async with AsyncExitStack() as opened:
        served = [await opened.enter_async_context(either_tier(tier, tmp_path / tier)) for tier in tiers]
        jobs = [
            {
                "command": [str(SCRIPTS / "ask_tasks.py"), clients],
                "job": {"url": url, "grpc": f"127.0.0.1:{port}", "models": models},
            }
            for url, port in served
        ]
        pipe = asyncio.subprocess.PIPE
        command = (clients_python, SCRIPTS / "ask_in_turn.py")
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
        async with asyncio.timeout(60):
            out, errors = await process.communicate(json.dumps(jobs).encode())
    assert process.returncode == 0, errors.decode()
    summaries = {name: {each: summary(array) for each, array in outputs.items()} for name, outputs in expected.items()}
    for tier, answers in zip(tiers, json.loads(out), strict=True):
        assert answers == {"rest": summaries, "grpc": summaries}, tier
