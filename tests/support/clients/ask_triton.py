"""Asks a V2 server through tritonclient, as its users do, and prints what came back as one JSON object.

Runs in the clients' own environment. The argument is the transport, http or grpc. Standard input: {"url", "grpc",
"headers", "images" (base64), "pixels" (nested lists)}.
"""

import asyncio
import base64
import importlib
import json
import queue
import sys

import numpy as np
from tritonclient.utils import InferenceServerException

MODEL = "digits"
OUTPUT = "probabilities"
TRANSPORT = sys.argv[1]
IS_GRPC = TRANSPORT == "grpc"
FORM = {"as_json": True} if IS_GRPC else {}
triton = importlib.import_module(f"tritonclient.{TRANSPORT}")
triton_aio = importlib.import_module(f"tritonclient.{TRANSPORT}.aio")

job = json.load(sys.stdin)
host = job["grpc"] if IS_GRPC else job["url"].removeprefix("http://")
headers = {name.lower(): value for name, value in job["headers"].items()}  # copied for each infer, which writes into it
images = np.array([base64.b64decode(text) for text in job["images"]], dtype=np.object_)
pixels = np.array(job["pixels"], dtype=np.uint8)
results = {}


def tensor(array, datatype, **form):
    found = triton.InferInput("image", list(array.shape), datatype)
    found.set_data_from_numpy(array, **form)
    return [found]


def outputs(**form):
    return [triton.InferRequestedOutput(OUTPUT, **form)]


def rows(result):
    return result.as_numpy(OUTPUT).tolist()


INFERS = {"version": (tensor(images, "BYTES"), {"model_version": "1"})}
PARAMETERS = {"timeout": 5_000_000, "parameters": {"wait": "final"}}
if IS_GRPC:
    INFERS |= {
        "bytes": (tensor(images, "BYTES"), {}),
        "pixels": (tensor(pixels, "UINT8"), {"outputs": outputs()}),
        "gzip": (tensor(pixels, "UINT8"), {"compression_algorithm": "gzip"}),
        "parameters": (tensor(images, "BYTES"), {"priority": 1, "client_timeout": 20, **PARAMETERS}),
    }
else:
    INFERS |= {
        "bytes_binary": (tensor(images, "BYTES"), {}),
        "bytes_binary_json_output": (tensor(images, "BYTES"), {"outputs": outputs(binary_data=False)}),
        "one_row": (tensor(images[:1], "BYTES"), {"outputs": outputs(binary_data=True)}),
        "pixels_binary": (tensor(pixels, "UINT8"), {"outputs": outputs(binary_data=True)}),
        "pixels_json": (tensor(pixels, "UINT8", binary_data=False), {"outputs": outputs(binary_data=False)}),
        "gzip": (tensor(pixels, "UINT8"), {"request_compression_algorithm": "gzip"}),
        "deflate": (tensor(pixels, "UINT8"), {"request_compression_algorithm": "deflate"}),
        "gzip_response": (tensor(pixels, "UINT8"), {"response_compression_algorithm": "gzip"}),
        "parameters": (tensor(images, "BYTES"), PARAMETERS),
    }
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
    results["server"] = client.get_server_metadata(headers=headers, **FORM)
    results["model_ready"] = client.is_model_ready(MODEL, headers=headers)
    results["version_ready"] = client.is_model_ready(MODEL, "1", headers=headers)
    results["model"] = client.get_model_metadata(MODEL, headers=headers, **FORM)
    for name, (inputs, options) in INFERS.items():
        results[name] = rows(client.infer(MODEL, inputs, headers=dict(headers), **options))
    answer = client.infer(MODEL, tensor(images, "BYTES"), request_id="mine", headers=dict(headers))
    results["response"] = answer.get_response(**FORM)
    for name, (model, inputs, options) in REFUSED.items():
        try:
            client.infer(model, inputs, headers=dict(headers), **options)
        except InferenceServerException as error:
            results[name] = refusal(error)
    answer = client.infer(MODEL, tensor(images, "BYTES"), outputs=outputs(class_count=2), headers=dict(headers))
    results["classes"] = [[text.decode() for text in row] for row in answer.as_numpy(OUTPUT)]
    results["index"] = client.get_model_repository_index(headers=headers, **FORM)
    results["statistics"] = client.get_inference_statistics(MODEL, headers=headers, **FORM)
    results["all_statistics"] = client.get_inference_statistics(headers=headers, **FORM)
    results["config"] = client.get_model_config(MODEL, headers=headers, **FORM)
    try:
        client.get_model_metadata("nobody", headers=headers)
    except InferenceServerException as error:
        results["unknown_metadata"] = refusal(error)


def ask_from_threads(client):
    waiting = [client.async_infer(MODEL, tensor(images, "BYTES"), headers=dict(headers)) for _ in range(3)]
    results["threads"] = [rows(one.get_result()) for one in waiting]


def ask_in_a_stream(client):
    answered = queue.Queue()
    client.start_stream(lambda result, error: answered.put((result, error)), headers=headers)
    for inputs in (tensor(images, "BYTES"), REFUSED["no_image"][1], tensor(pixels, "UINT8")):
        client.async_stream_infer(MODEL, inputs, request_id="streamed")
    found = [answered.get(timeout=30) for _ in range(3)]
    client.stop_stream()
    results["stream"] = [rows(result) if error is None else error.message() for result, error in found]


async def ask_aio():
    async with triton_aio.InferenceServerClient(host) as client:
        results["aio_live"] = await client.is_server_live(headers=headers)
        results["aio_ready"] = await client.is_server_ready(headers=headers)
        results["aio_model_ready"] = await client.is_model_ready(MODEL, headers=headers)
        results["aio_model"] = await client.get_model_metadata(MODEL, headers=headers, **FORM)
        for name, (inputs, options) in INFERS.items():
            results[f"aio_{name}"] = rows(await client.infer(MODEL, inputs, headers=dict(headers), **options))
        for name, (model, inputs, options) in REFUSED.items():
            try:
                await client.infer(model, inputs, headers=dict(headers), **options)
            except InferenceServerException as error:
                results[f"aio_{name}"] = refusal(error)


with triton.InferenceServerClient(host, **({} if IS_GRPC else {"concurrency": 3})) as sync_client:
    ask(sync_client)
    (ask_in_a_stream if IS_GRPC else ask_from_threads)(sync_client)
asyncio.run(ask_aio())
json.dump(results, sys.stdout)
