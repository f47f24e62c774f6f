"""An agent as a process that is pressed, and a client that asks it without a pause."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from support.processes import TierProcess


class Client:
    """Sends requests without a pause and records each outcome.

    Args:
        url: of the agent.
        variants: ids by digest.
    """

    def __init__(self, url: str, variants: Mapping[str, str]) -> None:
        self._http = httpx.AsyncClient(base_url=url, trust_env=False, timeout=20)
        self._variants = variants
        self._asked = 0

    async def asks(self) -> str:
        """The variant that answered, or the code of the refusal; for a new row each time, which no cache knows."""
        self._asked += 1
        return await self._came(9 + self._asked / 1000)

    async def asks_again(self) -> str:
        """The same, always for one row; "cache" where that knew it."""
        return await self._came(5.0)

    async def _came(self, first: float) -> str:
        body = {
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [first, 0]}],
            "parameters": {"privacy": "any"},
        }
        reply = await self._http.post("/v2/models/small/infer", content=json.dumps(body))
        document = reply.json()
        if reply.status_code == 200:
            if document["parameters"]["tier"] == "cache":
                return "cache"
            return self._variants[document["parameters"]["model_digest"]]
        assert reply.status_code == 503 and "Retry-After" in reply.headers, document
        return str(document["code"])

    async def status(self) -> dict[str, Any]:
        """Of the model's variants."""
        (model,) = (await self._http.get("/firstline/v1/status")).json()["models"]
        found: dict[str, Any] = model["variants"]
        return found

    async def read_at_s(self) -> float:
        """Monotonic time of the sensors' latest reading."""
        return float((await self._http.get("/firstline/v1/status")).json()["hardware"]["at_s"])

    async def close(self) -> None:
        await self._http.aclose()


def agent_process(
    folder: Path, settings: str, within: Callable[[Sequence[str]], Sequence[str]] = lambda command: command
) -> TierProcess:
    """An agent with `folder/bundle` that is not yet started.

    Args:
        folder: for its settings, its state and its log.
        settings: sections of its TOML in addition to the state directory and the bundle.
        within: puts a command before it.
    """
    about = '[agent]\nstate_dir = "state"\n[models]\ndirectories = ["bundle"]\n'
    (folder / "edge.toml").write_text(about + settings)
    return TierProcess("firstline_edge", "--config", folder / "edge.toml", log=folder / "stderr", within=within)


def switches(folder: Path) -> list[tuple[str, bool]]:
    """What the agent switched to so far, and whether it sheds: from its decision log."""
    logged = [json.loads(line) for line in (folder / "state" / "decisions.jsonl").read_text().splitlines()]
    return [(line["to"], line["sheds"]) for line in logged if line["event"] == "switched"]


def refusals(folder: Path) -> set[str]:
    """Codes of what was refused so far."""
    logged = [json.loads(line) for line in (folder / "state" / "decisions.jsonl").read_text().splitlines()]
    return {line["code"] for line in logged if line["event"] == "refused"}
