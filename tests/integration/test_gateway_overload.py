"""A gateway's process under more than it can answer, and told to stop in the middle of it; no times of this machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import overload
import pytest
from load import models, run
from load.run import Measured, Running

TIMEOUT_S = 0.5
RATE = 600.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("overload")
    models.slow_bundle(found / "models" / "slow", 8.0)
    return found


@pytest.fixture
def gateway(folder: Path) -> Iterator[Running]:
    with run.gateway(overload.configuration(folder, "off"), run.cores()[0]) as running:
        yield running


def load(running: Running, seconds: float) -> Measured:
    flood = overload.stream("slow", rate=RATE, seconds=seconds, timeout_s=TIMEOUT_S)
    return run.put_under(running, [flood], run.cores()[1], seed=1)


def test_what_is_let_in_is_answered_and_the_rest_is_told_when_to_come_back(gateway: Running) -> None:
    records = load(gateway, 3.0).records
    statuses = {record.status for record in records}
    assert {200, 503} <= statuses <= {200, 503, 504}
    assert all(record.retry_after_s >= 1 for record in records if record.status == 503)
    assert len(overload.good(records, TIMEOUT_S)) > 1
    light = overload.stream("slow", rate=20.0, seconds=1.0, timeout_s=TIMEOUT_S, start_s=2.0)
    after = run.put_under(gateway, [light], run.cores()[1], seed=2).records
    assert overload.good(after, TIMEOUT_S)
    assert httpx.get(f"http://127.0.0.1:{gateway.port}/v2/health/ready").status_code == 200


def test_stopping_under_full_load_loses_nothing_that_was_taken(gateway: Running) -> None:
    told: list[float] = []

    def stop() -> None:
        while "firstline_gateway_batch_rows_count 0.0" in httpx.get(f"http://127.0.0.1:{gateway.port}/metrics").text:
            time.sleep(0.01)
        time.sleep(1.5)  # into the flood
        told.append(time.monotonic())
        gateway.process.terminate()

    stopping = threading.Thread(target=stop)
    stopping.start()
    measured = load(gateway, 3.0)
    stopping.join()
    assert gateway.process.wait(20) == 0
    # What a slow machine had not read a second later was not taken.
    before = [record for record in measured.records if measured.start_s + record.sent_s < told[0] - 1.0]
    assert {record.status for record in before} <= {200, 503, 504}
    assert any(record.status == 200 for record in before)
    # What came afterwards was refused in words, or found nobody who listens.
    assert {record.status for record in measured.records} <= {200, 503, 504, 0}
