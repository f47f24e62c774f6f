"""Text in, labels out: the edge model reads the string, the full model tokens of the same text."""

from pathlib import Path

import httpx
import pytest
from support.either_tier import either_tier

from firstline.workbench.bundle import create_bundle
from firstline.workbench.spec import read_recipe

pytest.importorskip("tokenizers", reason="the extra text is not installed")

pytestmark = [pytest.mark.shared_data, pytest.mark.usefixtures("brief_row_checks")]

_RECIPE = Path(__file__).parents[2] / "models" / "clinc-cascade" / "recipe.toml"
_V2 = "/v2/models/clinc-cascade/infer"
_FILE = "/firstline/v1/models/clinc-cascade/infer"


@pytest.mark.parametrize("tier", ["agent", "gateway"])
async def test_both_tiers_answer_texts(tier: str, tmp_path: Path, shared_data: Path) -> None:
    create_bundle(read_recipe(_RECIPE, shared_data / "clinc-cascade"), tmp_path / "models" / "clinc-cascade")
    texts = ["what is my balance", "how do you say hello in french", ""]
    async with either_tier(tier, tmp_path) as (url, _), httpx.AsyncClient(base_url=url, trust_env=False) as client:
        inputs = [{"name": "text", "datatype": "BYTES", "shape": [3], "data": texts}]
        reply = await client.post(
            _V2, json={"inputs": inputs, "parameters": {"route": "edge"} if tier == "agent" else {}}
        )
        assert reply.status_code == 200, reply.text
        [output] = reply.json()["outputs"]
        assert output["shape"] == [3, 150]

        found = await client.post(_FILE, content=texts[0], headers={"Content-Type": "text/plain; charset=utf-8"})
        assert (found.status_code, found.json()["label"]) == (200, "balance"), found.text
        found = await client.post(_FILE, content=texts[1])
        assert found.json()["label"] == "translate"

        refused = await client.post(_FILE, content=b"caf\xe9", headers={"Content-Type": "text/plain"})
        assert (refused.status_code, "not UTF-8" in refused.text) == (400, True), refused.text
