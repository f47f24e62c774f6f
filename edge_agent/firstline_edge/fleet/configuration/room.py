"""The configuration's part of an agent of a fleet: what it starts with, and what becomes of it later."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firstline_core.clock import Clock
from firstline_core.errors import RequestError
from firstline_core.fleet.twin import Update
from firstline_edge.fleet.configuration.adopting import adopt
from firstline_edge.fleet.configuration.beginning import begin
from firstline_edge.fleet.configuration.configurator import Configurator
from firstline_edge.fleet.configuration.fetching import Configurations
from firstline_edge.fleet.configuration.kept import Kept
from firstline_edge.fleet.updates.means import Trials
from firstline_edge.models.held import HeldModel
from firstline_edge.settings.settings import EdgeSettings

if TYPE_CHECKING:
    from firstline_edge.parts import Parts

# A trial's rows that got no answer, of at least so many: as for a model's.
_LEAST_ROWS, _FAILED_SHARE = 20, 0.5


class ConfigurationRoom:
    """Of one agent.

    Args:
        own: the device's settings.
        path: of the file that says which configuration runs.
        clock: the agent's.

    Attributes:
        settings: what the agent starts with.
        configurator: None until it has joined.
    """

    def __init__(self, own: EdgeSettings, path: Path, clock: Clock) -> None:
        self._own = own
        self._path = path
        self._clock = clock
        self._begun, self.settings = begin(path, own, clock)
        self.configurator: Configurator | None = None

    def join(
        self,
        parts: Parts,
        source: Configurations,
        answered: Callable[[HeldModel], tuple[int, int]],
        rng: random.Random,
        changed: Callable[[], None],
    ) -> Configurator:
        """Takes its place among the other parts.

        Args:
            parts: of the agent.
            source: of what is signed.
            answered: rows of a model so far, and those that got no answer.
            rng: jitter.
            changed: told whenever the update stands otherwise.
        """
        section = self._own.fleet
        failing = _Failing(parts, answered)

        def exchange(settings: EdgeSettings) -> None:
            failing.begin()
            adopt(parts, settings)

        self.configurator = Configurator(
            self._path,
            self._begun,
            self._own,
            source,
            adopt=exchange,
            failed=failing.failed,
            clock=self._clock,
            rng=rng,
            trials=Trials(section.trial_tries, section.trial_s),
            jitter_s=section.download_jitter_s,
            changed=changed,
        )
        return self.configurator

    @property
    def kept(self) -> Kept:
        """What is on the disk."""
        return self.configurator.kept if self.configurator is not None else self._begun

    def running(self) -> dict[str, Any] | None:
        """Which configuration runs, with the digest of what was really read; None for the device's own settings."""
        held = self.kept.running
        return {"name": held.name, "version": held.version, "sha256": held.sha256} if held is not None else None

    def updates(self) -> tuple[Update, ...]:
        """How the latest update stands."""
        record = self.kept.record
        return (record.update(),) if record is not None else ()

    async def roll_back(self) -> None:
        """See `Configurator.roll_back`."""
        if self.configurator is None:
            raise RequestError("This device takes no configuration from a fleet, so there is nothing to go back to.")
        await self.configurator.roll_back()


class _Failing:
    """Whether the agent fails since the latest exchange."""

    def __init__(self, parts: Parts, answered: Callable[[HeldModel], tuple[int, int]]) -> None:
        self._counts = partial(_counts, parts, answered)
        self._before = (0, 0)

    def begin(self) -> None:
        self._before = self._counts()

    def failed(self) -> bool:
        rows, errors = (max(0, now - then) for now, then in zip(self._counts(), self._before, strict=True))
        return rows >= _LEAST_ROWS and errors > _FAILED_SHARE * rows


def _counts(parts: Parts, answered: Callable[[HeldModel], tuple[int, int]]) -> tuple[int, int]:
    found = [answered(held) for held in parts.models.all]
    return sum(rows for rows, _ in found), sum(errors for _, errors in found)
