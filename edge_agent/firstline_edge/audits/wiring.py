"""The audits, put together: what the cascade hooks into, what runs beside it, and what is told of an alarm."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from pathlib import Path

from firstline_core.clock import Clock
from firstline_core.errors import FirstlineError
from firstline_core.routing import audit, drift
from firstline_core.routing.certificate import Contract
from firstline_core.telemetry.logs import logger
from firstline_edge.audits.auditor import Auditor
from firstline_edge.audits.drawn import Finding
from firstline_edge.audits.samples import SampleLog
from firstline_edge.audits.standing import Standings
from firstline_edge.audits.watched import Watched
from firstline_edge.cache.results import ResultCache
from firstline_edge.cloud.links import Links
from firstline_edge.cloud.live_traffic import LiveTraffic
from firstline_edge.models.held import HeldModel, Models
from firstline_edge.settings.settings import AuditSection
from firstline_edge.state import StateDirectory

log = logger(__name__)


class AuditRoom:
    """All of the contract in the field, for one agent.

    Args:
        settings: what audits may cost, and what an alarm does.
        state: where their results are kept.
        models: those held.
        clock: for budgets and deadlines.
    """

    def __init__(self, settings: AuditSection, state: StateDirectory, models: Models, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._auditor: Auditor | None = None
        self._news: asyncio.Queue[Watched] = asyncio.Queue()
        self._samples = SampleLog(state.samples_path, settings.samples_limit_bytes)
        self.traffic = LiveTraffic()
        self.standings = Standings(
            state.standing_path, models.all, self._samples, settings, clock, on_alarm=self._news.put_nowait
        )

    def auditor(
        self,
        cache: ResultCache,
        links: Links,
        *,
        certifies: Collection[Contract],
        ample: Callable[[], bool],
        on_drawn: Callable[[], None],
        on_finding: Callable[[Finding], None],
    ) -> Auditor:
        """Who draws and sends; the links are not needed before.

        Args:
            cache: gains what the full model says.
            links: the ways to the gateway.
            certifies: the contracts that the device's policy keeps.
            ample: whether the device's budgets are.
            on_drawn: told when an answer is drawn.
            on_finding: told how each audit ended.
        """
        self._auditor = Auditor(
            cloud=links.chain,
            available=lambda: links.available,
            cache=cache,
            standings=self.standings,
            samples=self._samples,
            traffic=self.traffic,
            settings=self._settings,
            clock=self._clock,
            rng=random.Random(),  # noqa: S311 (nobody gains by guessing which answer is audited)
            certifies=certifies,
            ample=ample,
            on_drawn=on_drawn,
            on_finding=on_finding,
        )
        return self._auditor

    def adopt(self, settings: AuditSection, certifies: Collection[Contract]) -> None:
        """Goes on under other settings, for a policy that keeps these contracts."""
        self.standings.adopt(settings)
        if self._auditor is not None:
            self._auditor.adopt(settings, certifies)

    async def run(self, auditor: Auditor, links: Links) -> None:
        """Audits, saves and tells until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(auditor.run(), name="auditor")
            tasks.create_task(self.standings.keep_saving(), name="standings")
            tasks.create_task(self._tell_fleet(links), name="alarms")

    def clear_samples(self) -> list[Path]:
        """Forgets which answers were found right and wrong; how the certificates stand is kept.

        Returns:
            The files that are still to be erased.

        Raises:
            OSError: the disk refuses.
        """
        return self._samples.clear()

    async def close(self) -> None:
        """Keeps what is known; audits under way are lost."""
        await self.standings.close()
        self._samples.close()

    def describe(self, held: HeldModel) -> dict[str, object] | None:
        """How the model's certificate stands, for `status`; None where audits can test none."""
        watched = self.standings.find(held)
        if watched is None:
            return None
        record, index = watched.record, watched.stability_index()
        return {
            "alarm": record.alarmed,
            "cause": record.cause or None,
            "since": _shown(record.alarmed_wall_s) if record.alarmed else None,
            "tightened": record.tightened,
            "escalates_all": record.escalates_all,
            "escalations_per_hour": self.standings.quota_per_hour(watched) if record.alarmed else None,
            "epsilon": watched.epsilon,
            "e_value": audit.e_value(record.test),
            "alarm_at": 1 / self.standings.level(watched),
            "audits": {
                "drawn": record.drawn,
                "agreed": record.agreed,
                "disagreed": record.disagreed,
                "lost": record.lost,
            },
            "drift": None if index is None else {"index": round(index, 4), "word": drift.word(index)},
        }

    async def _tell_fleet(self, links: Links) -> None:
        while True:
            record = (await self._news.get()).record
            facts = {
                "event": "contract_alarm",
                "model": record.model,
                "version": record.version,
                "cause": record.cause,
                "threshold": record.tightened,
                "escalates_all": record.escalates_all,
            }
            for link in links.mqtt:
                try:
                    await link.tell(facts)
                except FirstlineError as error:  # the birth message says it at the next connection
                    log.info("the alarm was not told over MQTT", error=error.message)


def _shown(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
