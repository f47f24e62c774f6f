"""Triton's own load generator against both tiers; `make -C tests perf-analyzer` installs it."""

import asyncio
import csv
import os
from pathlib import Path

import pytest
from support.agent import CHECKOUT
from support.either_tier import either_tier
from support.small_models import put

INSTALLED = CHECKOUT / ".venv-perf-analyzer"
BINARY = INSTALLED / "bin" / "perf_analyzer"

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason="`make -C tests perf-analyzer` installs it")


async def measured(url: str, protocol: str, file: Path) -> dict[str, str]:
    """What it found at one request in flight, and at four."""
    libraries = [
        str(path.parent) for path in INSTALLED.rglob("*.so.*") if path.name in ("libb64.so.0d", "libcudart.so.12")
    ]
    process = await asyncio.create_subprocess_exec(
        *(str(BINARY), "-m", "small", "-u", url, "-i", protocol, "--shape", "image:4"),
        *("--concurrency-range", "1:4:3", "--measurement-mode", "count_windows", "--measurement-request-count", "50"),
        *("--stability-percentage", "999", "-f", str(file)),
        env=os.environ | {"LD_LIBRARY_PATH": ":".join(libraries)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), 90)
    assert process.returncode == 0, output.decode()
    with file.open() as rows:
        return {row["Concurrency"]: row["Inferences/Second"] for row in csv.DictReader(rows)}


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("tier", ["gateway", "agent"])
async def test_it_measures_a_tier(tmp_path: Path, tier: str, protocol: str) -> None:
    put(tmp_path / "models" / "small")
    async with either_tier(tier, tmp_path) as (url, port):
        address = url.removeprefix("http://") if protocol == "http" else f"127.0.0.1:{port}"
        found = await measured(address, protocol, tmp_path / "found.csv")
    assert set(found) == {"1", "4"}
    assert all(float(rate) > 0 for rate in found.values())
