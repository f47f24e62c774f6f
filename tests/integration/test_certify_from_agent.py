"""`firstline certify --from-agent`: rows from a device and a gateway that run as processes."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from support.agent import edge_settings, serving_agent
from support.digits import few_scans
from support.gateway import DIGITS
from support.line import Line
from typer.testing import CliRunner

from firstline import Client
from firstline.cli.app import app
from firstline.workbench.data.dataset import Dataset, open_dataset
from firstline.workbench.evidence import gather, gather_from_agent
from firstline_core.bundle.manifest import valid_certificate
from firstline_core.bundle.store import open_bundle
from firstline_core.errors import ConfigError, LinkDownError

pytestmark = pytest.mark.usefixtures("few_checked_rows")

PROMISE = ("--epsilon", 0.2, "--delta", 0.1)
ROWS = 60


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As many scans as the promise takes."""
    return few_scans(tmp_path_factory.mktemp("few") / "scans", ROWS)


@pytest.fixture(scope="module")
def scans(few: Path) -> Dataset:
    return open_dataset(few)


def run(data: Path, *arguments: object, code: int = 0) -> Any:
    """Certifies the digits with some data."""
    result = CliRunner().invoke(app, ["certify", *map(str, (DIGITS, "--data", data, *PROMISE, *arguments))])
    assert result.exit_code == code, result.output
    return result


def changed(folder: Path, **changes: Any) -> Path:
    """The digits bundle with other words in its manifest."""
    shutil.copytree(DIGITS, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    for path, value in changes.items():
        *above, last = path.split("__")
        place = manifest
        for key in above:
            place = place[int(key) if key.isdigit() else key]
        place[last] = value
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def test_device_and_gateway_certify_a_bundle(running: Line, few: Path, tmp_path: Path) -> None:
    """Device and test run on one processor here, so that the rows must be those of this machine, bit for bit."""
    out, token_file = tmp_path / "certified", tmp_path / "token"
    token_file.write_text(running.gateway.token)
    here = msgspec.json.decode(run(few, "-o", "json").stdout)
    servers = ("--from-agent", running.agent.url, "--full-from", running.gateway.url, "--full-token-file", token_file)
    found = msgspec.json.decode(run(few, *servers, "--out", out, "-o", "json").stdout)
    assert found["certified"] and found == here
    manifest = open_bundle(out).manifest
    certificate = valid_certificate(manifest, manifest.edge[0])
    assert certificate.threshold == found["threshold"]


def test_cached_outputs_give_the_same_certificate(running: Line, scans: Dataset) -> None:
    bundle = open_bundle(DIGITS)
    reported: list[int] = []
    with Client(running.agent.url) as agent:
        rows = [
            gather_from_agent(bundle, scans, agent, progress=lambda done, total: reported.append(done))
            for _ in range(2)
        ]
        again = agent.infer("digits", {"image": next(scans.contents())}, route="edge").answer
    assert again.tier == "cache"
    here = gather(bundle, scans)
    for found in rows:
        assert found.variant.id == here.variant.id == "edge-onnx"
        np.testing.assert_array_equal(found.scores, here.scores)
        for ours, theirs in (
            (found.edge.outputs, here.edge.outputs),
            (found.full, here.full),
            (found.truth, here.truth),
        ):
            assert ours.keys() == theirs.keys()
            for name, array in ours.items():
                np.testing.assert_array_equal(array, theirs[name])
    assert reported[-1] == len(scans) == len(reported) // 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 7}, r"holds 'digits' in version 1, not 7"),
        ({"name": "letters"}, r"holds no model 'letters'"),
        ({"policy__score__temperature": 2.0}, r"with another score; certify the bundle that it runs"),
        (
            {"edge__0__postprocess": [], "full__postprocess": []},
            r"another edge model or processing and another full model",
        ),
    ],
)
def test_device_with_another_bundle_is_refused(
    running: Line, scans: Dataset, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    bundle = open_bundle(changed(tmp_path / "other", **changes))
    with Client(running.agent.url) as agent, pytest.raises(ConfigError, match=message):
        gather_from_agent(bundle, scans, agent)


def test_gateway_instead_of_a_device_is_refused(running: Line, scans: Dataset) -> None:
    with (
        Client(running.gateway.url, token=running.gateway.token) as gateway,
        pytest.raises(ConfigError, match="not an edge agent"),
    ):
        gather_from_agent(open_bundle(DIGITS), scans, gateway)


def test_unreachable_device_prints_one_sentence(scans: Dataset, few: Path) -> None:
    result = run(few, "--from-agent", "http://127.0.0.1:9", code=1)
    assert "cannot be reached" in result.stderr and result.stderr.count("\n") == 1
    with Client("http://127.0.0.1:9") as agent, pytest.raises(LinkDownError):
        gather_from_agent(open_bundle(DIGITS), scans, agent)


def test_incompatible_options_are_refused(running: Line, few: Path, tmp_path: Path) -> None:
    assert "goes with --from-agent" in run(few, "--full-from", running.gateway.url, code=2).stderr
    assert "goes with --from-agent" in run(few, "--token-file", tmp_path / "t", code=2).stderr
    missing = run(few, "--from-agent", running.agent.url, "--token-file", tmp_path / "t", code=2)
    assert "--token-file" in missing.stderr and "does not exist; create it with the token" in missing.stderr
    refused = run(few, "--from-agent", running.agent.url, "--full-from", running.gateway.url, code=1)
    assert "API key" in refused.stderr
    other = run(few, "--from-agent", running.agent.url, "--edge", "edge-tflite-int8", code=2)
    assert "runs the variant 'edge-onnx', not 'edge-tflite-int8'" in other.stderr


async def test_device_token_is_read_from_a_file(few: Path, tmp_path: Path) -> None:
    tokens, mine = tmp_path / "tokens", tmp_path / "mine"
    tokens.write_text("workbench:a-token-of-some-length-0001\n")
    tokens.chmod(0o600)
    mine.write_text("a-token-of-some-length-0001\n")
    async with serving_agent(edge_settings(tmp_path / "state", api__token_file=str(tokens))) as (_, url):
        refused = await asyncio.to_thread(run, few, "--from-agent", url, code=1)
        assert "token" in refused.stderr and "not an edge agent" not in refused.stderr
        certified = await asyncio.to_thread(run, few, "--from-agent", url, "--token-file", mine)
        assert f"Certified on {ROWS} rows" in certified.stdout
