"""Asks a V2 server through KServe's REST client, as its users do, and prints what came back as one JSON object.

Runs in the clients' own environment. Standard input: {"url", "headers", "images" (base64), "pixels" (nested lists)}.
"""

import asyncio
import base64
import json
import sys

import httpx
import numpy as np
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.protocol.infer_type import RequestedOutput

MODEL = "digits"
OUTPUT = "probabilities"

job = json.load(sys.stdin)
url, headers = job["url"], job["headers"]
images = np.array([base64.b64decode(text) for text in job["images"]], dtype=np.object_)
pixels = np.array(job["pixels"], dtype=np.uint8)


def request(array, datatype, *, binary=True, outputs=None, parameters=None):
    tensor = InferInput("image", list(array.shape), datatype)
    tensor.set_data_from_numpy(array, binary_data=binary)
    return InferRequest(MODEL, [tensor], request_id="mine", request_outputs=outputs, parameters=parameters)


def requests():
    binary, plain = RequestedOutput(OUTPUT, {"binary_data": True}), RequestedOutput(OUTPUT, {"binary_data": False})
    return {
        "bytes_binary": request(images, "BYTES"),
        "bytes_binary_both": request(images, "BYTES", outputs=[binary]),
        "one_row": request(images[:1], "BYTES", outputs=[plain]),
        "pixels_binary": request(pixels, "UINT8", outputs=[binary]),
        "pixels_json": request(pixels, "UINT8", binary=False),
        "parameters": request(images, "BYTES", parameters={"binary_data_output": True, "wait": "final"}),
        "dictionary": {
            "inputs": [{"name": "image", "shape": list(pixels.shape), "datatype": "UINT8", "data": pixels.tolist()}]
        },
    }


async def main():
    results = {}
    async with InferenceRESTClient(RESTConfig(protocol="v2")) as client:
        results["live"] = await client.is_server_live(url, headers=headers)
        results["ready"] = await client.is_server_ready(url, headers=headers)
        results["model_ready"] = await client.is_model_ready(url, MODEL, headers=headers)
        results["nobody_ready"] = await client.is_model_ready(url, "nobody", headers=headers)
        for name, infer_request in requests().items():
            response = await client.infer(url, infer_request, model_name=MODEL, headers=dict(headers))
            results[name] = np.asarray(response.get_output_by_name(OUTPUT).as_numpy()).tolist()
            results[f"{name}_head"] = {"id": response.id, "model": response.model_name, **response.parameters}
        refused = {
            "wrong_datatype": (MODEL, request(pixels.astype(np.float32), "FP32")),
            "wrong_output": (MODEL, request(images, "BYTES", outputs=[RequestedOutput("logits")])),
            "unknown_model": ("nobody", request(images, "BYTES")),
        }
        for name, (model, infer_request) in refused.items():
            try:
                await client.infer(url, infer_request, model_name=model, headers=dict(headers))
            except httpx.HTTPStatusError as error:
                results[name] = {"status": error.response.status_code, "message": str(error)}
    json.dump(results, sys.stdout)


asyncio.run(main())
