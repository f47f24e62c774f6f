"""Asks a V2 server through KServe's gRPC client, as its users do, and prints what came back as one JSON object.

Runs in the clients' own environment. Standard input: {"grpc", "headers", "images" (base64), "pixels" (nested lists)}.
"""

import asyncio
import base64
import json
import sys

import grpc
import numpy as np
from kserve import InferenceGRPCClient, InferInput, InferRequest

MODEL = "digits"
OUTPUT = "probabilities"

job = json.load(sys.stdin)
headers = [(name.lower(), value) for name, value in job["headers"].items()]
images = np.array([base64.b64decode(text) for text in job["images"]], dtype=np.object_)
pixels = np.array(job["pixels"], dtype=np.uint8)


def request(array, datatype, *, binary=True, model=MODEL, parameters=None):
    tensor = InferInput("image", list(array.shape), datatype)
    tensor.set_data_from_numpy(array, binary_data=binary)
    return InferRequest(model, [tensor], request_id="mine", parameters=parameters)


async def main():
    results = {}
    async with InferenceGRPCClient(job["grpc"], retries=0) as client:
        results["live"] = await client.is_server_live(headers=headers)
        results["ready"] = await client.is_server_ready(headers=headers)
        results["model_ready"] = await client.is_model_ready(MODEL, headers=headers)
        requests = {
            "bytes": request(images, "BYTES"),
            "pixels": request(pixels, "UINT8"),
            "typed": request(pixels, "UINT8", binary=False),
            "one_row": request(images[:1], "BYTES"),
            "parameters": request(images, "BYTES", parameters={"wait": "final", "timeout": 5_000_000}),
        }
        for name, one in requests.items():
            response = await client.infer(one, headers=headers)
            results[name] = np.asarray(response.get_output_by_name(OUTPUT).as_numpy()).tolist()
            results[f"{name}_head"] = {
                "id": response.id,
                "model": response.model_name,
                "status": response.parameters["status"].string_param,
            }
        refused = {
            "wrong_datatype": request(pixels.astype(np.float32), "FP32"),
            "unknown_model": request(images, "BYTES", model="nobody"),
        }
        for name, one in refused.items():
            try:
                await client.infer(one, headers=headers)
            except grpc.RpcError as error:
                results[name] = {"status": error.code().name, "message": error.details()}
    json.dump(results, sys.stdout)


asyncio.run(main())
