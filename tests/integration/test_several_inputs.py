"""A bundle with several inputs, of which the edge model reads one, on a real agent with a real gateway."""

import csv
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from support.agent import edge_settings
from support.broker import free_port
from support.gateway import serving
from support.small_models import small_gateway
from support.table_models import table_bundle
from support.waiting import until

from bench.support.bundles import with_certificate
from firstline.workbench.bundle import create_bundle
from firstline.workbench.spec import read_recipe
from firstline_core.bundle.manifest import MANIFEST_NAME, Policy, encode_manifest
from firstline_core.errors import InvalidTensorError, RequestError
from firstline_core.ids import new_request_id
from firstline_core.types import Array, InferRequest, InferResponse, Reason, Route, Status, Tensor, Tier
from firstline_edge.app import EdgeAgent
from firstline_gateway.app import Gateway

RECIPES = Path(__file__).parents[2] / "models"
SURE, UNSURE = 3.0, 0.25


def asked(*names: str, a: tuple[float, ...] = (SURE, UNSURE), **fields: Any) -> InferRequest:
    rows = len(a)
    columns: dict[str, Array] = {
        "a": np.array(a, np.float32).reshape(-1, 1),
        "b": np.arange(2, 2 + rows, dtype=np.int64).reshape(-1, 1),
        "c": np.array([b"red"] * rows, object),
    }
    inputs = tuple([Tensor(name, columns[name]) for name in names or columns])
    return InferRequest("table", inputs, new_request_id(), **fields)


@asynccontextmanager
async def agent_at(folder: Path, url: str, **settings: Any) -> AsyncIterator[EdgeAgent]:
    links = [{"kind": "http", "url": url, "token_file": str(folder / "key")}]
    (folder / "key").write_text("fl_" + "a" * 43)
    models: dict[str, Any] = {"models__directories": [str(folder / "models")], "links": links}
    models["policy__default_timeout_ms"] = 60_000  # a busy machine takes longer than the default
    async with EdgeAgent(edge_settings(folder / "state", **models, **settings)) as agent:
        yield agent


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[tuple[EdgeAgent, Gateway]]:
    table_bundle(tmp_path / "models" / "table", policy=Policy(threshold=0.8))
    gateway = small_gateway(tmp_path)
    async with AsyncExitStack() as opened:
        url = await opened.enter_async_context(serving(gateway))
        yield await opened.enter_async_context(agent_at(tmp_path, url)), gateway


def yes(response: InferResponse) -> list[float]:
    return response.output("probabilities")[:, 1].tolist()


def sigmoid(*logits: float) -> Any:
    return pytest.approx([1 / (1 + np.exp(-logit)) for logit in logits], abs=1e-6)


async def test_each_model_reads_its_own_inputs(site: tuple[EdgeAgent, Gateway]) -> None:
    agent, _ = site
    response = await agent.data_plane.infer(asked())
    assert [(row.tier, row.reason) for row in response.answer.rows] == [
        (Tier.EDGE, Reason.CONFIDENT),
        (Tier.CLOUD, Reason.UNCERTAIN),
    ]
    assert yes(response) == sigmoid(SURE, UNSURE + 3 + 1)


async def test_rows_equal_in_all_inputs_come_from_the_cache(site: tuple[EdgeAgent, Gateway]) -> None:
    agent, _ = site
    await agent.data_plane.infer(asked(a=(UNSURE,)))
    again = await agent.data_plane.infer(asked(a=(UNSURE,)))
    assert again.answer.tier is Tier.CACHE
    other = asked(a=(UNSURE,)).with_inputs(asked(a=(UNSURE,)).arrays | {"c": np.array([b"blue"], object)})
    response = await agent.data_plane.infer(other)
    assert (response.answer.tier, yes(response)) == (Tier.CLOUD, sigmoid(UNSURE + 2))
    edge_only = await agent.data_plane.infer(asked("a", a=(UNSURE,)))
    assert edge_only.answer.tier is Tier.CACHE  # by the edge model's input alone


async def test_a_request_with_the_edge_models_inputs_stays_on_the_device(site: tuple[EdgeAgent, Gateway]) -> None:
    agent, gateway = site
    response = await agent.data_plane.infer(asked("a"))
    assert {(row.tier, row.reason, row.status, row.certified) for row in response.answer.rows} == {
        (Tier.EDGE, Reason.PARTIAL_INPUTS, Status.FINAL, False)
    }
    assert yes(response) == sigmoid(SURE, UNSURE)
    assert [found.inference_count for found in gateway.plane.statistics()] == [0]
    assert not await agent.outbox.pending(9)


@pytest.mark.parametrize(
    ("names", "fields", "message"),
    [
        (("b", "c"), {}, "takes the inputs 'a', 'b', 'c' ('a' at least), each once; the request has: 'b', 'c'."),
        (("a", "a"), {}, "each once; the request has: 'a', 'a'."),
    ],
)
async def test_other_inputs_are_refused_with_the_list(
    site: tuple[EdgeAgent, Gateway], names: tuple[str, ...], fields: Any, message: str
) -> None:
    with pytest.raises(InvalidTensorError) as caught:
        await site[0].data_plane.infer(asked(*names, **fields))
    assert message in caught.value.message


async def test_an_unknown_name_and_rows_that_differ_are_refused(site: tuple[EdgeAgent, Gateway]) -> None:
    agent, gateway = site
    extra = asked().with_inputs(asked().arrays | {"d": np.zeros((2, 1))})
    fewer = asked().with_inputs(asked().arrays | {"b": np.zeros((1, 1), np.int64)})
    for tier in (agent.data_plane, gateway.plane):
        with pytest.raises(InvalidTensorError, match="takes the inputs"):
            await tier.infer(extra)
        with pytest.raises(InvalidTensorError, match=r"'b' \[1, 1\]; all inputs of a request have the same number"):
            await tier.infer(fewer)
    with pytest.raises(InvalidTensorError, match="takes the inputs 'a', 'b', 'c', each once"):
        await gateway.plane.infer(asked("a", "b"))


async def test_the_cloud_is_not_asked_for_half_a_row(site: tuple[EdgeAgent, Gateway]) -> None:
    with pytest.raises(RequestError, match="only the inputs of this device's model, and route=cloud"):
        await site[0].data_plane.infer(asked("a", route=Route.CLOUD))


async def test_numbers_of_other_datatypes_are_converted_on_both_tiers(site: tuple[EdgeAgent, Gateway]) -> None:
    agent, gateway = site
    pandas = asked().with_inputs(
        {"a": np.array([[SURE], [UNSURE]]), "b": np.array([[2], [3]], np.int32), "c": np.array([b"red"] * 2, object)}
    )
    for tier in (agent.data_plane, gateway.plane):
        assert yes(await tier.infer(pandas))[1:] == sigmoid(UNSURE + 3 + 1)
    fraction = pandas.with_inputs(pandas.arrays | {"b": np.array([[2.0], [3.0]])})
    with pytest.raises(InvalidTensorError, match="Input 'b' is INT64, but was sent as FP64"):
        await gateway.plane.infer(fraction)


async def test_a_promise_carries_the_full_models_inputs(tmp_path: Path) -> None:
    table_bundle(tmp_path / "models" / "table", policy=Policy(threshold=0.8))
    port = free_port()
    async with AsyncExitStack() as opened:
        agent = await opened.enter_async_context(agent_at(tmp_path, f"http://127.0.0.1:{port}"))
        request = asked()
        response = await agent.data_plane.infer(request)
        assert (response.answer.status, response.answer.durable) == (Status.PROVISIONAL, True)
        [promise] = await agent.outbox.pending(9)
        assert {name: array.tolist() for name, array in promise.request.arrays.items()} == {
            "a": [[UNSURE]],
            "b": [[3]],
            "c": [b"red"],
        }
        partial = await agent.data_plane.infer(asked("a", a=(0.5,)))
        assert (partial.answer.status, partial.answer.durable) == (Status.FINAL, False)
        assert len(await agent.outbox.pending(9)) == 1

        gateway = small_gateway(tmp_path)
        await opened.enter_async_context(serving(gateway, port))
        await until(lambda: _corrected(agent, request.request_id))


async def _corrected(agent: EdgeAgent, request_id: str) -> bool:
    answer = await agent.outbox.answer(request_id, "")
    return answer is not None and answer.answer.status is Status.FINAL and yes(answer) == sigmoid(SURE, UNSURE + 3 + 1)


async def test_audits_send_the_full_models_inputs_and_partial_requests_are_not_audited(tmp_path: Path) -> None:
    place, policy = tmp_path / "models" / "table", Policy(threshold=0.8)
    manifest = table_bundle(place, policy=policy).manifest
    certified = with_certificate(manifest.edge[0], manifest, 0.8)
    (place / MANIFEST_NAME).write_bytes(encode_manifest(replace(manifest, edge=(certified,))))
    gateway = small_gateway(tmp_path)
    audits = {"per_hour": 1e7, "bytes_per_hour": 1e12, "max_share": 1.0, "spacing_s": 0}
    async with AsyncExitStack() as opened:
        url = await opened.enter_async_context(serving(gateway))
        overrides = {f"audit__{key}": value for key, value in audits.items()}
        agent = await opened.enter_async_context(agent_at(tmp_path, url, **overrides))
        await agent.data_plane.infer(asked("a", a=(SURE,)))
        answered = await agent.data_plane.infer(asked(a=(SURE, SURE)))
        assert {row.reason for row in answered.answer.rows} == {Reason.CONFIDENT}
        await until(lambda: gateway.plane.statistics()[0].inference_count == 2)
        await until(lambda: agent.models.find("table") is not None and _audited(agent) == 2)


def _audited(agent: EdgeAgent) -> int:
    monitored = agent.certificates.find(agent.models.find("table"))
    return 0 if monitored is None else monitored.record.drawn - monitored.record.unanswered


@pytest.mark.shared_data
async def test_diamonds_are_judged_by_three_columns_or_by_nine(shared_data: Path, tmp_path: Path) -> None:
    data = shared_data / "diamonds-tabular-cascade"
    recipe = read_recipe(RECIPES / "diamonds-tabular-cascade" / "recipe.toml", data)
    bundle = create_bundle(recipe, tmp_path / "models" / "diamonds")
    with (data / "dev" / "rows.csv").open(encoding="utf-8") as file:
        rows = list(islice(csv.DictReader(file), 200))
    columns: dict[str, Array] = {}
    for spec in bundle.manifest.inputs:
        values = [row[spec.name] for row in rows]
        encoded = [value.encode() for value in values]
        columns[spec.name] = (
            np.array(encoded, object) if spec.kind == "text" else np.array(values, np.float64).reshape(-1, 1)
        )
    request = InferRequest(
        "diamonds-tabular-cascade", tuple([Tensor(*column) for column in columns.items()]), new_request_id()
    )
    labels, cuts = np.array(bundle.manifest.labels), np.array([row["cut"] for row in rows])

    def right(response: InferResponse) -> float:
        return float((labels[response.output("probabilities").argmax(axis=1)] == cuts).mean())

    gateway = small_gateway(tmp_path)
    async with AsyncExitStack() as opened:
        url = await opened.enter_async_context(serving(gateway))
        agent = await opened.enter_async_context(agent_at(tmp_path, url))
        full = await gateway.plane.infer(request)
        both = await agent.data_plane.infer(request)
        three = {name: columns[name] for name in ("carat", "depth", "table")}
        edge = await agent.data_plane.infer(request.with_inputs(three))
    assert {row.tier for row in both.answer.rows} == {Tier.EDGE, Tier.CLOUD}
    assert {row.reason for row in edge.answer.rows} == {Reason.PARTIAL_INPUTS}
    assert right(full) == pytest.approx(0.796, abs=0.06)
    assert right(edge) == pytest.approx(0.611, abs=0.08)
    assert right(edge) < right(both) <= right(full) + 0.01
