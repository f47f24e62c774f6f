"""Asks a V2 server through tritonclient's gRPC clients, as their users do; prints what came back as one JSON object.

Runs in the clients' own environment. Standard input: {"grpc", "headers", "images" (base64), "pixels" (nested lists)}.
"""

import asyncio
import base64
import json
import queue
import sys

import numpy as np
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.utils import InferenceServerException

MODEL = "digits"
OUTPUT = "probabilities"

job = json.load(sys.stdin)
headers = {name.lower(): value for name, value in job["headers"].items()}
images = np.array([base64.b64decode(text) for text in job["images"]], dtype=np.object_)
pixels = np.array(job["pixels"], dtype=np.uint8)
results = {}


def tensor(array, datatype):
    found = triton.InferInput("image", list(array.shape), datatype)
    found.set_data_from_numpy(array)
    return [found]


def rows(result):
    return result.as_numpy(OUTPUT).tolist()


INFERS = {
    "bytes": (tensor(images, "BYTES"), {}),
    "pixels": (tensor(pixels, "UINT8"), {"outputs": [triton.InferRequestedOutput(OUTPUT)]}),
    "gzip": (tensor(pixels, "UINT8"), {"compression_algorithm": "gzip"}),
    "version": (tensor(images, "BYTES"), {"model_version": "1"}),
    "parameters": (
        tensor(images, "BYTES"),
        {"timeout": 5_000_000, "priority": 1, "client_timeout": 20, "parameters": {"wait": "final"}},
    ),
}
CLASSES = [triton.InferRequestedOutput(OUTPUT, class_count=2)]
REFUSED = {
    "wrong_datatype": (MODEL, tensor(pixels.astype(np.float32), "FP32"), {}),
    "wrong_output": (MODEL, tensor(images, "BYTES"), {"outputs": [triton.InferRequestedOutput("logits")]}),
    "unknown_model": ("nobody", tensor(images, "BYTES"), {}),
    "unknown_version": (MODEL, tensor(images, "BYTES"), {"model_version": "99"}),
    "no_image": (MODEL, tensor(np.array([b"no image"], dtype=np.object_), "BYTES"), {}),
}


def refusal(error):
    return {"status": error.status(), "message": error.message()}


def ask(client):
    results["live"] = client.is_server_live(headers=headers)
    results["ready"] = client.is_server_ready(headers=headers)
    results["model_ready"] = client.is_model_ready(MODEL, headers=headers)
    results["server"] = client.get_server_metadata(headers=headers, as_json=True)
    results["model"] = client.get_model_metadata(MODEL, headers=headers, as_json=True)
    for name, (inputs, options) in INFERS.items():
        results[name] = rows(client.infer(MODEL, inputs, headers=headers, **options))
    results["classes"] = [
        [text.decode() for text in row]
        for row in client.infer(MODEL, tensor(images, "BYTES"), headers=headers, outputs=CLASSES).as_numpy(OUTPUT)
    ]
    response = client.infer(MODEL, tensor(images, "BYTES"), request_id="mine", headers=headers).get_response(
        as_json=True
    )
    results["response"] = response
    for name, (model, inputs, options) in REFUSED.items():
        try:
            client.infer(model, inputs, headers=headers, **options)
        except InferenceServerException as error:
            results[name] = refusal(error)
    try:
        client.get_model_metadata("nobody", headers=headers)
    except InferenceServerException as error:
        results["unknown_metadata"] = refusal(error)
    answered = queue.Queue()
    client.start_stream(lambda result, error: answered.put((result, error)), headers=headers)
    for inputs in (tensor(images, "BYTES"), REFUSED["no_image"][1], tensor(pixels, "UINT8")):
        client.async_stream_infer(MODEL, inputs, request_id="streamed")
    found = [answered.get(timeout=30) for _ in range(3)]
    client.stop_stream()
    results["stream"] = [rows(result) if error is None else error.message() for result, error in found]


def ask_extensions(client):
    results["index"] = client.get_model_repository_index(headers=headers, as_json=True)
    results["statistics"] = client.get_inference_statistics(MODEL, headers=headers, as_json=True)
    results["all_statistics"] = client.get_inference_statistics(headers=headers, as_json=True)
    results["config"] = client.get_model_config(MODEL, headers=headers, as_json=True)


async def ask_aio(host):
    async with triton_aio.InferenceServerClient(host) as client:
        results["aio_live"] = await client.is_server_live(headers=headers)
        results["aio_ready"] = await client.is_server_ready(headers=headers)
        results["aio_model_ready"] = await client.is_model_ready(MODEL, headers=headers)
        results["aio_model"] = await client.get_model_metadata(MODEL, headers=headers, as_json=True)
        for name, (inputs, options) in INFERS.items():
            results[f"aio_{name}"] = rows(await client.infer(MODEL, inputs, headers=headers, **options))
        for name, (model, inputs, options) in REFUSED.items():
            try:
                await client.infer(model, inputs, headers=headers, **options)
            except InferenceServerException as error:
                results[f"aio_{name}"] = refusal(error)


with triton.InferenceServerClient(job["grpc"]) as sync_client:
    ask(sync_client)
    ask_extensions(sync_client)
asyncio.run(ask_aio(job["grpc"]))
json.dump(results, sys.stdout)
