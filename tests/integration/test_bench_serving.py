"""The speed benchmark still runs, against real processes and for a moment: every row of its table is measured."""

import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import figures
from bench.serving import compare_peers, ours, rest, rounds, run, wrk
from bench.serving.processes import StartError, cores, free_port, marked, started
from bench.serving.samples import QUICK

pytestmark = pytest.mark.skipif(not wrk.available(), reason="needs wrk: `make wrk`")


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    yield tmp_path


def results_of(results: Path, target: str) -> dict[str, Any]:
    return json.loads((results / f"{target}.json").read_text())


def _listens(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port)):
        return True


@pytest.mark.timeout(180)
def test_every_figure_of_the_gateway_is_measured(results: Path) -> None:
    assert run.main(["--quick", "--only", "rest"]) == 0
    report = results_of(results, "serving")
    assert [row["figure"] for row in report["figures"] if row["value"] is None] == []
    assert {(one["who"], one["what"]) for one in report["samples"]} >= {
        (who, question.name) for who in (rounds.GATEWAY, rounds.RAW) for question in rest.SMALL
    }
    (none_bad,) = (row for row in report["figures"] if row["figure"] == "rest: answers that were no 200")
    assert none_bad["holds"]
    assert report["machine"]["rest"]["cores"] >= 1


def test_another_part_keeps_the_figures_of_the_first(results: Path) -> None:
    first = run.Found([figures.Figure("a", 1.0, "")], [])
    run.keep("serving", {"rest": first}, {"when": "then"}, QUICK)
    run.keep("serving", {"device": run.Found([figures.Figure("b", 2.0, "")], [])}, {"when": "now"}, QUICK)
    report = results_of(results, "serving")
    assert [row["figure"] for row in report["figures"]] == ["rest: a", "device: b"]
    assert [report["machine"][part]["when"] for part in ("rest", "device")] == ["then", "now"]


def test_peer_without_an_environment_is_reported(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare_peers.peer, "_CHECKOUT", results)  # without any peer's environment
    monkeypatch.setattr(ours, "create_key", lambda *_: "")  # no gateway runs
    assert compare_peers.main(["--quick", "--only", "pytriton"]) == 0
    assert "has no environment" in results_of(results, "peers")["not measured"]["pytriton"]


@pytest.mark.skipif(not compare_peers.peer.PEERS[1].python.exists(), reason="needs `make .venv-peers/mlserver/stamp`")
@pytest.mark.timeout(180)
def test_gateway_is_compared_with_a_peer(results: Path) -> None:
    assert compare_peers.main(["--quick", "--only", "gateway", "MLServer"]) == 0
    report = results_of(results, "peers")
    assert report["not measured"] == {}
    assert report["machine"]["peers"]["MLServer"]["mlserver"]
    aimed = [row for row in report["figures"] if row["aim"] and "MLServer" in row["figure"]]
    assert [row["figure"] for row in aimed] == ["gateway, S binary, 32 in flight: rate / MLServer's best"]
    assert aimed[0]["value"] > 0


def test_stopping_a_server_ends_its_child_processes(tmp_path: Path) -> None:
    """Also what has left its session, as Ray's processes do."""
    port = free_port()
    script = (
        "import subprocess, sys, http.server as h\n"
        "subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        f"h.HTTPServer(('127.0.0.1', {port}), h.SimpleHTTPRequestHandler).serve_forever()\n"
    )
    with started(
        [sys.executable, "-c", script], port=port, on=cores()[0], log=tmp_path / "log", answers=_listens
    ) as server:
        assert len(marked(server.mark)) == 2
        assert server.rss_mb() > 5
    assert marked(server.mark) == []


def test_failed_start_quotes_the_servers_log(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such thing')"]
    with (
        pytest.raises(StartError, match=r"ended with 1.*no such thing"),
        started(command, port=free_port(), on=cores()[0], log=tmp_path / "log", answers=lambda _: False),
    ):
        pass
