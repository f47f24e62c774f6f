"""Unloads and loads a model through tritonclient, over REST and gRPC, and prints what was seen as one JSON object.

Runs in the clients' own environment. Standard input: {"url", "grpc", "headers" of an operator, "readers" of model
callers}.
"""

import asyncio
import json
import sys

import tritonclient.grpc as triton_grpc
import tritonclient.grpc.aio as triton_grpc_aio
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from tritonclient.utils import InferenceServerException

MODEL = "digits"

job = json.load(sys.stdin)
operator = {key.lower(): value for key, value in job["headers"].items()}
reader = {key.lower(): value for key, value in job["readers"].items()}
host = job["url"].removeprefix("http://")
results = {}


def state(index):
    models = index.get("models", []) if isinstance(index, dict) else index
    return {model["name"]: model["state"] for model in models}


def refusal(error):
    return {"status": error.status(), "message": error.message()}


def ask(client, **form):
    found = {}
    client.unload_model(MODEL, headers=operator)
    found["unloaded"] = state(client.get_model_repository_index(headers=reader, **form))
    found["ready"] = ready(client)
    client.load_model(MODEL, headers=operator)
    found["loaded"] = state(client.get_model_repository_index(headers=reader, **form))
    found["ready_again"] = ready(client)
    for name, options in (("config", {"config": "{}"}), ("files", {"config": "{}", "files": {"file:1/m.onnx": b"x"}})):
        try:
            client.load_model(MODEL, headers=operator, **options)
        except InferenceServerException as error:
            found[name] = refusal(error)
    try:
        client.load_model("nobody", headers=operator)
    except InferenceServerException as error:
        found["nobody"] = refusal(error)
    found["statistics"] = client.get_inference_statistics(MODEL, headers=reader, **form)
    return found


def ready(client):
    try:
        return client.is_model_ready(MODEL, headers=reader)
    except InferenceServerException as error:
        return refusal(error)["status"]


async def ask_aio(client, **form):
    found = {}
    await client.unload_model(MODEL, headers=operator)
    found["unloaded"] = state(await client.get_model_repository_index(headers=reader, **form))
    await client.load_model(MODEL, headers=operator)
    found["loaded"] = state(await client.get_model_repository_index(headers=reader, **form))
    found["statistics"] = await client.get_inference_statistics(MODEL, headers=reader, **form)
    return found


async def all_aio():
    async with triton_aio.InferenceServerClient(host) as client:
        results["http_aio"] = await ask_aio(client)
    async with triton_grpc_aio.InferenceServerClient(job["grpc"]) as client:
        results["grpc_aio"] = await ask_aio(client, as_json=True)


with triton.InferenceServerClient(host) as client:
    results["http"] = ask(client)
with triton_grpc.InferenceServerClient(job["grpc"]) as client:
    results["grpc"] = ask(client, as_json=True)
asyncio.run(all_aio())
json.dump(results, sys.stdout)
