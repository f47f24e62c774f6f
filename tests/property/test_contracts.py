"""The gateway's pools over any sequence of audits: what counts is counted once, whatever process counts it."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.audits import EPSILON, THRESHOLD, certified_digits, note_of, request_from, settled
from support.databases import OpenStore, sqlite_store

from firstline_core.clock import SimulatedClock
from firstline_core.routing import audit
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.telemetry.metrics import RequestMetrics
from firstline_core.types import PROBABILITIES
from firstline_gateway.contracts.monitor import ContractMonitor
from firstline_gateway.models.folder import ModelsFolder
from firstline_gateway.models.repository import Repository
from firstline_gateway.settings.settings import ContractsSection
from firstline_gateway.store.service_clock import ServiceClock

IDS = [f"01890a5d-ac96-774b-bcce-b302099a80{number:02d}" for number in range(12)]
SETTINGS = ContractsSection(audits_per_device_hour=4)

audits = st.tuples(
    st.sampled_from(["device:a", "device:b", "device:c", "application:a"]),
    st.sampled_from(IDS),
    st.integers(3, 4),
    st.sampled_from([0.1, 1.0]),
    st.sampled_from([THRESHOLD, THRESHOLD, THRESHOLD, 0.91, 0.5]),
)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    found = ModelsFolder(certified_digits(tmp_path_factory.mktemp("bundles"))).load(RuntimeOptions())
    yield found
    for served in found:
        served.loaded.close()


def states(monitor: ContractMonitor) -> dict[float, audit.AuditState]:
    return {pool.key.threshold: pool.state for pool in monitor.pools()}


@settings(max_examples=25, deadline=None)
@given(st.lists(audits | st.none(), max_size=40))
def test_no_audit_counts_twice(repository: Repository, steps: list[tuple[str, str, int, float, float] | None]) -> None:
    (served,) = repository
    three = {PROBABILITIES: np.eye(10, dtype=np.float32)[[3]]}
    clock = SimulatedClock()
    with TemporaryDirectory() as folder:

        def opened(store: OpenStore) -> ContractMonitor:
            return ContractMonitor(
                store.store,
                repository,
                SETTINGS,
                metrics=RequestMetrics("gateway"),
                clock=clock,
                service=ServiceClock(store.database, clock),
            )

        store = OpenStore(sqlite_store(Path(folder, "restarted")))
        steadily = OpenStore(sqlite_store(Path(folder, "steady")))
        restarted, steady = opened(store), opened(steadily)
        expected: dict[float, audit.AuditState] = {}
        counted: list[tuple[str, str]] = []
        for step in steps:
            if step is None:
                store.close()
                store = OpenStore(sqlite_store(Path(folder, "restarted")))
                restarted = opened(store)
                continue
            principal, request_id, label, propensity, threshold = step
            note = note_of(served, propensity=propensity, threshold=threshold)
            request = request_from("", note, label, principal=principal, request_id=request_id)
            before = states(steady)
            for monitor in (restarted, steady):
                monitor.answered(request, served, three)
                settled(monitor).result()
            if states(steady).get(threshold) != before.get(threshold):
                counted.append((principal, request_id))
                state = before.get(threshold, audit.begin(EPSILON))
                expected[threshold] = audit.update(state, float(label != 3))
            assert restarted.pools() == steady.pools()
        assert len(set(counted)) == len(counted)
        assert all(sum(principal == one for principal, _ in counted) <= 4 for one, _ in counted)
        assert not any(principal.startswith("application") for principal, _ in counted)
        assert states(steady) == expected
        assert expected.keys() <= {THRESHOLD}
        store.close()
        steadily.close()
