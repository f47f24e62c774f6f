"""A gateway's process under more than it can answer, and told to stop in the middle of it; no times of this machine."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from bench import overload
from bench.load import models, run
from bench.load.generator import Record
from bench.load.run import Measured
from bench.serving import ours
from bench.serving.processes import Server, cores

# Long against any pause of a machine that is shared.
TIMEOUT_S = 1.0
RATE = 600.0
ROW_MS = 8.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("overload")
    models.slow_bundle(found / "models" / "slow", ROW_MS)
    return found


@pytest.fixture
def gateway(folder: Path) -> Iterator[Server]:
    with ours.gateway(overload.configuration(folder, "off"), cores()[0]) as running:
        yield running


def load(running: Server, rate: float, seconds: float) -> Measured:
    stream = overload.stream("slow", rate=rate, seconds=seconds, timeout_s=TIMEOUT_S)
    return run.put_under(running, [stream], cores()[1], seed=1)


def answered(records: list[Record]) -> int:
    return len(overload.good(records, TIMEOUT_S))


def test_overload_is_refused_without_costing_goodput(gateway: Server) -> None:
    full = load(gateway, 2000 / ROW_MS, 2.0).records  # twice what it can answer
    records = load(gateway, RATE * 2, 2.0).records
    assert {200, 503} <= {record.status for record in records} <= {200, 503, 504}
    assert all(record.retry_after_s >= 1 for record in records if record.status == 503)
    assert answered(records) > 0.5 * answered(full)
    light = load(gateway, 10.0, 1.0).records
    assert answered(light) > 0.5 * len(light)


def test_stopping_under_load_answers_accepted_requests(gateway: Server) -> None:
    stopped_s: list[float] = []
    address = f"http://127.0.0.1:{gateway.port}/metrics"

    def stop() -> None:
        while 'code="queue_full"' not in httpx.get(address).text:
            time.sleep(0.01)
        stopped_s.append(time.monotonic())
        gateway.process.terminate()

    stopping = threading.Thread(target=stop)
    stopping.start()
    measured = load(gateway, RATE, 3.0)
    stopping.join()
    assert gateway.process.wait(20) == 0
    before = [record for record in measured.records if measured.start_s + record.sent_s < stopped_s[0]]
    assert {record.status for record in before} <= {200, 503, 504}  # each has an answer, read by then or not
    assert any(record.status == 200 for record in before)
    # Later requests were refused with a sentence, or found no listener.
    assert {record.status for record in measured.records} <= {200, 503, 504, 0}
