"""Bundles that take audio files, on both tiers: the same answer over the file route and V2."""

from pathlib import Path

import httpx
import numpy as np
import pytest
from support.audio import clip, clips, tone
from support.either_tier import either_tier
from support.images import by_name

from bench.support.bundles import model, write_manifest
from bench.support.onnx_models import linear
from firstline_core.bundle.loading import load_model
from firstline_core.bundle.manifest import Policy, Score
from firstline_core.processing.steps import Crop, DecodeAudio, InputSpec, Mono, Pad, Resample, Softmax, Windows
from firstline_core.protocol import http, oip
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.types import InferRequest

LOUD, SILENT = clip(tone(100, 44_100), 44_100), clip(np.zeros(9000), 8000, "FLAC")


def loudness_bundle(folder: Path) -> None:
    """Says of the first second whether it is a tone of 100 Hz."""
    folder.mkdir(parents=True)
    weights = np.stack([np.zeros(8000), tone(100, 8000)], axis=1).astype(np.float32) / 100
    path = linear(folder / "m.onnx", weights)
    steps = (DecodeAudio(), Mono(), Resample(8000), Crop(8000), Pad(8000))
    edge = model(path, folder, id="edge", preprocess=steps, postprocess=(Softmax(),))
    full = model(path, folder, id="full", preprocess=steps, postprocess=(Softmax(),))
    policy = Policy(Score("max_probability"), 0.4)
    spec = InputSpec("audio", "BYTES", (-1,), "audio")
    write_manifest(folder, [edge], ("silent", "loud"), name="loudness", full=full, inputs=(spec,), policy=policy)


@pytest.mark.parametrize("tier", ["agent", "gateway"])
async def test_both_tiers_answer_clips_of_any_rate(tier: str, tmp_path: Path) -> None:
    loudness_bundle(tmp_path / "models" / "loudness")
    async with either_tier(tier, tmp_path) as (url, _), httpx.AsyncClient(base_url=url, trust_env=False) as client:
        headers = {"Content-Type": "audio/wav"}
        path = "/firstline/v1/models/loudness/infer"
        found = await client.post(path, content=LOUD, headers=headers)
        assert (found.status_code, found.json()["label"]) == (200, "loud"), found.text

        encoded = oip.encode_request(InferRequest("loudness", (clips(LOUD, SILENT),), ""))
        reply = await client.post("/v2/models/loudness/infer", content=encoded.body, headers=http.headers_for(encoded))
        [output] = reply.json()["outputs"]
        probabilities = np.array(output["data"]).reshape(output["shape"])
        assert probabilities[0, 1] == pytest.approx(found.json()["probability"], abs=1e-6)
        np.testing.assert_allclose(probabilities[1], [0.5, 0.5], atol=1e-6)

        refused = await client.post(path, content=LOUD[:2000], headers=headers)
        assert (refused.status_code, "send the whole file" in refused.text) == (400, True)
        assert "send WAV, FLAC or OGG" in (await client.post(path, content=b"\xff\xfb" + bytes(40))).text


def test_a_clip_is_one_row_whose_windows_are_combined(tmp_path: Path) -> None:
    path = linear(tmp_path / "m.onnx", np.array([[0, 8], [0, 8]], np.float32))
    steps = (DecodeAudio(), Mono(), Resample(8000), Windows(2, 2))
    edge = model(path, tmp_path, preprocess=steps, postprocess=(Softmax(),))
    bundle = write_manifest(tmp_path, [edge], ("no", "yes"), inputs=(InputSpec("audio", "BYTES", (-1,), "audio"),))
    loaded = load_model(bundle, bundle.manifest.edge[0], RuntimeOptions())
    short, long = clip([0.5, 0.5]), clip([0.5, 0.5, -0.5, -0.5, 0])
    together = loaded.predict(by_name(clips(short, long))).outputs["probabilities"]
    sure = 1 / (1 + np.exp(-8))
    np.testing.assert_allclose(together[:, 1], [sure, (sure + (1 - sure) + 0.5) / 3], atol=1e-6)
    for row, encoded in enumerate((short, long)):
        np.testing.assert_array_equal(
            loaded.predict(by_name(clips(encoded))).outputs["probabilities"][0], together[row]
        )
    loaded.close()
