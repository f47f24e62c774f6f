"""gRPC towards a tier in this process, without anybody's generated code."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import numpy as np

from firstline_core.protocol.grpc.schema import SERVICE, message

Call = Callable[..., Any]


@asynccontextmanager
async def calling(
    port: int, *, credentials: grpc.ChannelCredentials | None = None, key: str = ""
) -> AsyncIterator[Call]:
    """A function that makes one call: its method, a message or bytes, and options of `grpc.aio`."""
    address = f"127.0.0.1:{port}"
    # A subchannel of its own: others of this process have other certificates.
    options = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1))
    channel = (
        grpc.aio.insecure_channel(address, options)
        if credentials is None
        else grpc.aio.secure_channel(address, credentials, options)
    )
    metadata = (("authorization", f"Bearer {key}"),) if key else None

    def call(method: str, sent: Any = b"", **call_options: Any) -> Any:
        unary_call = channel.unary_unary(
            f"/{SERVICE.full_name}/{method}",
            request_serializer=lambda request: request if isinstance(request, bytes) else request.SerializeToString(),
            response_deserializer=message(SERVICE.methods_by_name[method].output_type.name).FromString,
        )
        return unary_call(sent, **{"timeout": 20, "metadata": metadata} | call_options)

    async with channel:
        yield call


@asynccontextmanager
async def sending(port: int, method: str) -> AsyncIterator[Any]:
    """A call without a key that has begun, and whose message does not come."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.stream_unary(
            f"/{SERVICE.full_name}/{method}",
            response_deserializer=message(SERVICE.methods_by_name[method].output_type.name).FromString,
        )
        yield call(timeout=5)


@asynccontextmanager
async def streaming(port: int, key: str) -> AsyncIterator[Any]:
    """A stream of inferences: `write` takes messages, `read` returns answers."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.stream_stream(
            f"/{SERVICE.full_name}/ModelStreamInfer",
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=message("ModelStreamInferResponse").FromString,
        )
        yield call(timeout=20, metadata=(("authorization", f"Bearer {key}"),))


def digits_message(rows: int = 1, **fields: Any) -> Any:
    """A ModelInferRequest of empty pictures."""
    infer_request = message("ModelInferRequest")(model_name="digits", **fields)
    infer_request.inputs.add(name="image", datatype="UINT8", shape=(rows, 8, 8, 1))
    infer_request.raw_input_contents.append(np.zeros((rows, 8, 8, 1), np.uint8).tobytes())
    return infer_request


async def refusal(call: Any) -> tuple[str, str, dict[str, str]]:
    """Status, sentence and trailing metadata of a call that must fail."""
    try:
        found = await call
    except grpc.aio.AioRpcError as error:
        return error.code().name, error.details() or "", dict(error.trailing_metadata() or ())
    raise AssertionError(f"it was answered: {found}")
