"""The servers of `oip.endpoints` as executors of the pool: it chooses, retries, hedges and ejects them like any other.

Batches are made here because only here all waiting requests are seen; the servers may put them together further.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from firstline_core.clock import SYSTEM_CLOCK, Clock
from firstline_core.types import ModelKey
from firstline_gateway.executors.dispatch.member import HedgeBudget, Member, OpensMember
from firstline_gateway.executors.oip.dialects import RemoteModel
from firstline_gateway.executors.oip.server import OipServer, ServerGroup, Transport
from firstline_gateway.models.repository import ServedModel
from firstline_gateway.settings.settings import Oip


def open_servers(
    models: Iterable[ServedModel],
    transports: Mapping[str, Transport],
    settings: Oip,
    open_member: OpensMember,
    *,
    sessions: int,
    threads: int,
    max_batch_rows: int,
    make: Callable[[ServedModel], RemoteModel],
    clock: Clock = SYSTEM_CLOCK,
) -> list[Member]:
    """Returns a member for each server of one executor.

    Args:
        models: that the servers should have.
        transports: sends requests to each server, by its URL.
        settings: how many batches, for how long.
        open_member: opens a member with the name of the executor, which its servers share.
        sessions: batches that really run at the same moment on all servers together; 0 if that is unknown.
        threads: that prepare inputs side by side.
        max_batch_rows: the most rows in one request to a server.
        make: returns a model as the servers have it.
        clock: for deadlines.
    """
    members: list[Member] = []

    def has_peer(server: OipServer, key: ModelKey) -> bool:
        return any(member.takes_now(key) for member in members if member.executor is not server)

    group = ServerGroup(
        {served.key: make(served) for served in models},
        make,
        has_peer,
        ThreadPoolExecutor(threads, thread_name_prefix="prepare"),
        in_flight=settings.in_flight,
        timeout_s=settings.timeout_s,
        max_batch_rows=max_batch_rows,
        clock=clock,
    )
    hedges = HedgeBudget(settings.hedge_share)
    for url, transport in transports.items():
        members.append(
            open_member(
                OipServer(url, transport, group),
                sessions=math.ceil(sessions / len(transports)),
                url=url,
                hedges=hedges,
                is_shared=len(transports) > 1,
            )
        )
    return members
