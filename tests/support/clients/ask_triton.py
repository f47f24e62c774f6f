"""Asks a V2 server through tritonclient, as its users do, and prints what came back as one JSON object.

Runs in the clients' own environment. Standard input: {"url", "headers", "images" (base64), "pixels" (nested lists)}.
"""

import asyncio
import base64
import json
import sys

import numpy as np
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from tritonclient.utils import InferenceServerException

MODEL = "digits"
OUTPUT = "probabilities"

job = json.load(sys.stdin)
headers = job["headers"]  # copied for each infer, which writes into what it is given
images = np.array([base64.b64decode(text) for text in job["images"]], dtype=np.object_)
pixels = np.array(job["pixels"], dtype=np.uint8)
results = {}


def tensor(array, datatype, *, binary=True):
    found = triton.InferInput("image", list(array.shape), datatype)
    found.set_data_from_numpy(array, binary_data=binary)
    return [found]


def wanted(*, binary):
    return [triton.InferRequestedOutput(OUTPUT, binary_data=binary)]


def rows(result):
    return result.as_numpy(OUTPUT).tolist()


INFERS = {
    "bytes_binary": ((tensor(images, "BYTES"),), {}),
    "bytes_binary_json_output": ((tensor(images, "BYTES"),), {"outputs": wanted(binary=False)}),
    "one_row": ((tensor(images[:1], "BYTES"),), {"outputs": wanted(binary=True)}),
    "pixels_binary": ((tensor(pixels, "UINT8"),), {"outputs": wanted(binary=True)}),
    "pixels_json": ((tensor(pixels, "UINT8", binary=False),), {"outputs": wanted(binary=False)}),
    "gzip": ((tensor(pixels, "UINT8"),), {"request_compression_algorithm": "gzip"}),
    "deflate": ((tensor(pixels, "UINT8"),), {"request_compression_algorithm": "deflate"}),
    "gzip_response": ((tensor(pixels, "UINT8"),), {"response_compression_algorithm": "gzip"}),
    "version": ((tensor(images, "BYTES"),), {"model_version": "1"}),
    "parameters": ((tensor(images, "BYTES"),), {"timeout": 5_000_000, "parameters": {"wait": "final"}}),
}
REFUSED = {
    "wrong_datatype": (MODEL, tensor(pixels.astype(np.float32), "FP32"), {}),
    "wrong_output": (MODEL, tensor(images, "BYTES"), {"outputs": [triton.InferRequestedOutput("logits")]}),
    "unknown_model": ("nobody", tensor(images, "BYTES"), {}),
    "unknown_version": (MODEL, tensor(images, "BYTES"), {"model_version": "99"}),
    "no_image": (MODEL, tensor(np.array([b"no image"], dtype=np.object_), "BYTES"), {}),
}


CLASSES = [triton.InferRequestedOutput(OUTPUT, binary_data=True, class_count=2)]


def classes(result):
    return [[text.decode() for text in row] for row in result.as_numpy(OUTPUT)]


def refusal(error):
    return {"status": error.status(), "message": error.message()}


def ask(client):
    results["live"] = client.is_server_live(headers=headers)
    results["ready"] = client.is_server_ready(headers=headers)
    results["server"] = client.get_server_metadata(headers=headers)
    results["model_ready"] = client.is_model_ready(MODEL, headers=headers)
    results["version_ready"] = client.is_model_ready(MODEL, "1", headers=headers)
    results["model"] = client.get_model_metadata(MODEL, headers=headers)
    for name, ((inputs,), options) in INFERS.items():
        results[name] = rows(client.infer(MODEL, inputs, headers=dict(headers), **options))
    results["response"] = client.infer(
        MODEL, tensor(images, "BYTES"), request_id="mine", headers=dict(headers)
    ).get_response()
    waiting = [client.async_infer(MODEL, tensor(images, "BYTES"), headers=dict(headers)) for _ in range(3)]
    results["threads"] = [rows(one.get_result()) for one in waiting]
    for name, (model, inputs, options) in REFUSED.items():
        try:
            client.infer(model, inputs, headers=dict(headers), **options)
        except InferenceServerException as error:
            results[name] = refusal(error)
    results["classes"] = classes(client.infer(MODEL, tensor(images, "BYTES"), outputs=CLASSES, headers=dict(headers)))
    results["index"] = client.get_model_repository_index(headers=headers)
    results["statistics"] = client.get_inference_statistics(MODEL, headers=headers)
    results["all_statistics"] = client.get_inference_statistics(headers=headers)
    results["config"] = client.get_model_config(MODEL, headers=headers)
    try:
        client.get_model_metadata("nobody", headers=headers)
    except InferenceServerException as error:
        results["unknown_metadata"] = refusal(error)


async def ask_aio(host):
    async with triton_aio.InferenceServerClient(host) as client:
        results["aio_live"] = await client.is_server_live(headers=headers)
        results["aio_ready"] = await client.is_server_ready(headers=headers)
        results["aio_model_ready"] = await client.is_model_ready(MODEL, headers=headers)
        results["aio_model"] = await client.get_model_metadata(MODEL, headers=headers)
        for name, ((inputs,), options) in INFERS.items():
            results[f"aio_{name}"] = rows(await client.infer(MODEL, inputs, headers=dict(headers), **options))
        for name, (model, inputs, options) in REFUSED.items():
            try:
                await client.infer(model, inputs, headers=dict(headers), **options)
            except InferenceServerException as error:
                results[f"aio_{name}"] = refusal(error)


host = job["url"].removeprefix("http://")
with triton.InferenceServerClient(host, concurrency=3) as sync_client:
    ask(sync_client)
asyncio.run(ask_aio(host))
json.dump(results, sys.stdout)
