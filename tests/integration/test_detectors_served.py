"""Bundles of detectors on both tiers: the same boxes over the file route and V2."""

import asyncio
import base64
import io
import json
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image
from support.either_tier import either_tier
from support.images import encode, images
from support.sample_bundles import detector_bundle

from firstline import AsyncClient, Client, Detected, Detections, predictions
from firstline_core.protocol import http, oip
from firstline_core.types import InferRequest

BRIGHT = encode(np.full((80, 80, 3), 255, np.uint8))
DARK = encode(np.zeros((80, 80, 3), np.uint8))


async def forms_and_json_are_read(client: httpx.AsyncClient) -> None:
    path, encoded = "/firstline/v1/models/pets/infer", base64.b64encode(BRIGHT).decode()
    for found in (
        await client.post(path, files={"file": BRIGHT}),
        await client.post(path, json={"image": encoded}),
        await client.post(path, json=f"data:image/png;base64,{encoded}"),
    ):
        assert (found.status_code, found.json()["count"], found.json()["width"]) == (200, 1, 80), found.text
    two = await client.post(path, files=[("image", BRIGHT), ("image", DARK)])
    assert [each["count"] for each in two.json()["results"]] == [1, 0]
    refused = await client.post(path, json={"image": "no base64!"})
    assert refused.status_code == 400 and "is not base64" in refused.json()["error"]


async def boxes_are_drawn(client: httpx.AsyncClient) -> None:
    headers = {"Accept": "image/jpeg"}
    drawn, empty = [
        await client.post(f"/firstline/v1/models/pets/infer{query}", content=BRIGHT, headers=headers)
        for query in ("", "?classes=cat")
    ]
    assert (drawn.status_code, drawn.headers["Content-Type"]) == (200, "image/jpeg")
    facts = json.loads(drawn.headers["Firstline-Answer"])
    assert (facts["model"], facts["status"]) == ("pets", "final")
    pictures = [np.asarray(Image.open(io.BytesIO(each.content)), np.int16) for each in (drawn, empty)]
    assert pictures[0].shape == (80, 80, 3)
    assert pictures[1].min() > 250 and pictures[0][:60, :40].min() < 100 and pictures[0][65:].min() > 240
    refused = await client.post("/firstline/v1/models/pets/infer", content=b"no image", headers=headers)
    assert refused.status_code == 400 and "Row 0 of input 'image'" in refused.json()["error"]


async def typed_answers_agree(url: str) -> None:
    """The client returns the same objects for a file, for tensors, and for many of either."""
    async with AsyncClient(url) as client:
        found = await client.infer_file("pets", BRIGHT)
        assert isinstance(found, Detections)
        assert (list(found), found.width) == ([("dog", 0.5, (0, 20, 40, 60))], 80)
        assert len(await filtered(client)) == 0
        metadata = await client.metadata("pets")
        rows = predictions(await client.infer("pets", {"image": [BRIGHT, DARK]}), metadata)
        assert [list(row) for row in rows if isinstance(row, Detections)] == [list(found), []]
        many = [outcome async for outcome in client.infer_files("pets", [BRIGHT, "/absent.png", DARK])]
        assert [str(outcome.error or outcome.response) for outcome in many] == [
            *("dog (50 %)", "/absent.png does not exist; check the path.", "no objects")
        ]
        await asyncio.to_thread(synchronous_answers_agree, url, list(found))


async def filtered(client: AsyncClient) -> Detections:
    found = await client.infer_file("pets", BRIGHT, min_score=0.6, classes=["dog", "cat"], max_objects=1)
    assert isinstance(found, Detections)
    return found


def synchronous_answers_agree(url: str, objects: list[Detected]) -> None:
    with Client(url) as client:
        found = [outcome.result() for outcome in client.infer_files("pets", [BRIGHT] * 3, ordered=False)]
        assert [list(each) for each in found if isinstance(each, Detections)] == [objects] * 3


@pytest.mark.parametrize("tier", ["agent", "gateway"])
async def test_both_tiers_answer_with_boxes_in_the_original_image(tier: str, tmp_path: Path) -> None:
    folder = tmp_path / "models" / "pets"
    folder.mkdir(parents=True)
    detector_bundle(folder, name="pets")
    async with either_tier(tier, tmp_path) as (url, _), httpx.AsyncClient(base_url=url, trust_env=False) as client:
        for _ in range(2):  # the second answer may come from a cache
            found = await client.post("/firstline/v1/models/pets/infer", content=BRIGHT)
            assert found.status_code == 200, found.text
            box = {"x1": 0.0, "y1": 20.0, "x2": 40.0, "y2": 60.0}
            answer = found.json()
            assert answer["objects"] == [{"label": "dog", "score": 0.5, "box": box}]
            assert (answer["width"], answer["height"]) == (80, 80)
        empty = await client.post("/firstline/v1/models/pets/infer", content=DARK)
        assert (empty.json()["count"], empty.json()["objects"]) == (0, [])

        labels = (("classes=cat", 0), ("classes=cat,dog", 1), ("classes=cat&classes=dog", 1))
        for query, count in (("min_score=0.4", 1), ("min_score=0.6", 0), *labels):
            filtered = await client.post(f"/firstline/v1/models/pets/infer?max_objects=3&{query}", content=BRIGHT)
            assert (filtered.json()["count"], filtered.json().get("confidence")) == (count, answer.get("confidence"))
        refused = await client.post("/firstline/v1/models/pets/infer?classes=cow", content=BRIGHT)
        assert (
            refused.status_code == 400 and "'cow', which 'pets' does not know; 'pets' knows cat, dog." in refused.text
        )

        twice = await client.post("/firstline/v1/models/pets/infer?privacy=local_only&privacy=any", content=BRIGHT)
        assert twice.status_code == 400 and "'privacy' has several values" in twice.text

        await typed_answers_agree(url)
        await forms_and_json_are_read(client)
        await boxes_are_drawn(client)

        encoded = oip.encode_request(InferRequest("pets", (images(BRIGHT, DARK),), ""))
        reply = await client.post("/v2/models/pets/infer", content=encoded.body, headers=http.headers_for(encoded))
        outputs = {each["name"]: (each["shape"], each["data"]) for each in reply.json()["outputs"]}
        assert outputs["count"] == ([2], [1, 0])
        assert outputs["classes"] == ([2, 2], [1, -1, -1, -1])
        assert outputs["boxes"] == ([2, 2, 4], [0, 20, 40, 60, *[0] * 12])


async def test_a_fetched_answer_is_filtered_and_a_job_stores_the_whole(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "pets"
    folder.mkdir(parents=True)
    detector_bundle(folder, name="pets")
    job = {"Prefer": "respond-async"}
    async with either_tier("gateway", tmp_path) as (url, _), httpx.AsyncClient(base_url=url, trust_env=False) as client:
        path = "/firstline/v1/models/pets/infer"
        for query, accept in (("?min_score=0.6", "*/*"), ("", "image/jpeg")):
            refused = await client.post(f"{path}{query}", content=BRIGHT, headers=job | {"Accept": accept})
            assert refused.status_code == 400 and "A job stores the whole answer" in refused.json()["error"]
        submitted = await client.post(path, content=BRIGHT, headers=job)
        answer = submitted.headers["Location"]
        waited = await client.get(answer, headers={"Prefer": "wait=10"})
        assert (waited.status_code, waited.json()["count"]) == (200, 1)
        assert (await client.get(f"{answer}?min_score=0.6")).json()["count"] == 0
        wrong = await client.get(f"{answer}?min_score=2")
        assert (wrong.status_code, wrong.json()["code"]) == (400, "invalid_request")
