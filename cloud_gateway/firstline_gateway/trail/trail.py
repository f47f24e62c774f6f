"""What people ask of the audit trail."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from firstline_core.clock import Clock
from firstline_core.fleet.audit_log import Head
from firstline_core.fleet.rollout import AuditPage
from firstline_gateway.store.readers import Readers
from firstline_gateway.trail import head, records


class Trail:
    """The trail of one gateway, or of the replicas that share its store.

    Args:
        readers: of the store.
        directory: of the authority, where the key is that signs heads; made when it is first asked for.
        clock: for wall time.
    """

    def __init__(self, readers: Readers, directory: Path, *, clock: Clock) -> None:
        self._readers = readers
        self._directory = directory
        self._clock = clock

    async def page(self, after: int, limit: int, subject: str) -> AuditPage:
        """Entries by number."""
        found = await self._readers.ask(partial(records.page, after=after, limit=limit, subject=subject))
        return AuditPage(tuple(found), found[-1].number if len(found) == limit else None)

    async def head(self) -> Head:
        """How far it goes now, signed.

        Raises:
            ConfigError: there is no key, and none can be made.
        """
        last = await self._readers.ask(records.last)
        key = await asyncio.to_thread(head.open_key, self._directory)
        return head.sign(last, key, self._clock.wall_s())
