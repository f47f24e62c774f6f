import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from sqlalchemy import Connection
from support.databases import OpenStore, PostgreSql

from firstline_gateway.fleet import devices


def test_replicas_that_write_the_same_rows_in_groups_cannot_block_each_other(postgresql: PostgreSql) -> None:
    settings, runs, gate, met = (
        postgresql.new_store(),
        Counter[tuple[int, str]](),
        threading.Event(),
        threading.Barrier(2),
    )

    def see(replica: int, name: str) -> Callable[[Connection], None]:
        def seen(connection: Connection) -> None:
            devices.mark_seen(connection, name, "session", 1e9, accept=True)
            runs[replica, name] += 1
            if sum(runs[replica, each] for each in ("a", "b")) == 1:  # with one row locked, as the other replica may be
                with suppress(threading.BrokenBarrierError):
                    met.wait(0.5)

        return seen

    with OpenStore(settings) as one, OpenStore(settings) as other:
        done = []
        for replica, (store, names) in enumerate(((one.store, ("a", "b")), (other.store, ("b", "a")))):
            store.submit(lambda _: gate.wait(10))  # so that both rows are one group
            done += [store.submit_then(see(replica, name), lambda _: None, key=name) for name in names]
        gate.set()
        for each in done:
            each.result(20)
    assert set(runs.values()) == {1}
