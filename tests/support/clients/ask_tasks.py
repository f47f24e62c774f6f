"""Asks a V2 server for every model of a list over REST and gRPC; prints what came back as one JSON object.

Runs in the clients' own environment. The argument names the clients, triton or kserve, which a process cannot import
both. Standard input: {"url", "grpc", "models": [{"name", "input", "datatype", "shape", "data" (flat; base64 for BYTES),
"outputs"}]}.
"""

import asyncio
import base64
import hashlib
import json
import sys

import numpy as np

job = json.load(sys.stdin)


def array(model):
    if model["datatype"] == "BYTES":
        return np.array([base64.b64decode(text) for text in model["data"]], dtype=np.object_).reshape(model["shape"])
    return np.array(model["data"], np.float32).reshape(model["shape"])


def summary(found):
    """Shape and dtype of an output, and a digest of its elements."""
    found = np.asarray(found)
    if found.dtype.kind in "OSU":
        flat = [element.decode() if isinstance(element, bytes) else str(element) for element in found.flat]
        dtype, content = "object", "\n".join(flat).encode()
    else:
        dtype, content = str(found.dtype), np.ascontiguousarray(found).tobytes()
    return {"shape": list(found.shape), "dtype": dtype, "sha256": hashlib.sha256(content).hexdigest()}


def ask_triton(client, module, model):
    sent = module.InferInput(model["input"], model["shape"], model["datatype"])
    sent.set_data_from_numpy(array(model))
    result = client.infer(model["name"], [sent])
    return {name: summary(result.as_numpy(name)) for name in model["outputs"]}


def triton():
    import tritonclient.grpc as triton_grpc
    import tritonclient.http as triton_http

    with triton_http.InferenceServerClient(job["url"].removeprefix("http://")) as client:
        over_rest = {model["name"]: ask_triton(client, triton_http, model) for model in job["models"]}
    with triton_grpc.InferenceServerClient(job["grpc"]) as client:
        return over_rest, {model["name"]: ask_triton(client, triton_grpc, model) for model in job["models"]}


async def kserve():
    from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig
    from kserve.protocol.infer_type import RequestedOutput

    over_rest, over_grpc = {}, {}
    rpc = InferenceGRPCClient(job["grpc"], retries=0)
    async with InferenceRESTClient(RESTConfig(protocol="v2")) as rest, rpc:
        for model in job["models"]:
            name = model["name"]
            sent = InferInput(model["input"], model["shape"], model["datatype"])
            sent.set_data_from_numpy(array(model), binary_data=True)
            outputs = [RequestedOutput(each, {"binary_data": True}) for each in model["outputs"]]
            request = InferRequest(name, [sent], request_outputs=outputs)
            found = await rest.infer(job["url"], request, model_name=name), await rpc.infer(InferRequest(name, [sent]))
            for answers, answer in zip((over_rest, over_grpc), found, strict=True):
                answers[name] = {each: summary(answer.get_output_by_name(each).as_numpy()) for each in model["outputs"]}
    return over_rest, over_grpc


answers = triton() if sys.argv[1] == "triton" else asyncio.run(kserve())
json.dump(dict(zip(("rest", "grpc"), answers, strict=True)), sys.stdout)
