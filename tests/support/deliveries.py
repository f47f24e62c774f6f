"""What devices deliver, and what a gateway counts of it."""

from collections.abc import Iterable

import numpy as np
from msgspec.structs import replace
from support.waiting import until

from firstline_core.ids import new_request_id
from firstline_core.types import InferRequest, InferResponse, Status, Tensor, Wait
from firstline_edge.app import EdgeAgent
from firstline_gateway.app import Gateway


def picture(seed: int) -> Tensor:
    """One 8x8 picture for the digits model, of these random pixels."""
    return Tensor("image", np.random.default_rng(seed).integers(0, 17, (1, 8, 8, 1), np.uint8))


def delivery(seed: int) -> InferRequest:
    """A promise's request, as an outbox sends it."""
    return InferRequest("digits", (picture(seed),), new_request_id(), version="1", promised=True, binary_output=True)


async def promise(agent: EdgeAgent, seed: int) -> str:
    """Has the device promise a correction; its id."""
    infer_request = InferRequest("digits", (picture(seed),), new_request_id(), wait=Wait.FIRST, principal="local")
    answer = (await agent.data_plane.infer(infer_request)).answer
    assert answer.durable
    return answer.request_id


async def all_final(agent: EdgeAgent, request_ids: Iterable[str], timeout_s: float = 20) -> None:
    """Expects that these promises end with final answers in this time, and that no other is left."""
    await until(lambda: agent.outbox.depth == 0, timeout_s)
    for request_id in request_ids:
        answer = (await agent.outbox.answer(request_id, "local")).answer
        assert answer.status is Status.FINAL


def same(one: InferResponse, other: InferResponse) -> bool:
    """Whether two answers are one, to the last bit."""
    outputs = zip(one.outputs, other.outputs, strict=True)
    return replace(one, outputs=()) == replace(other, outputs=()) and all(
        a.array.tobytes() == b.array.tobytes() for a, b in outputs
    )


def counted(gateway: Gateway, result: str) -> int:
    """Deliveries of which this became."""
    name = "firstline_gateway_deliveries_total"
    return int(gateway.metrics.registry.get_sample_value(name, {"result": result}) or 0)


def answered(gateway: Gateway) -> int:
    """Requests that the full model ran for."""
    samples = (sample for family in gateway.metrics.registry.collect() for sample in family.samples)
    return int(sum(sample.value for sample in samples if sample.name == "firstline_gateway_requests_total"))
