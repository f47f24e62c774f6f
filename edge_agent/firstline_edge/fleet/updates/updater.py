"""All updates of a device: what the fleet wants, given to each model's own, which hold each other up in nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from firstline_core.errors import UnknownModelError
from firstline_core.fleet.twin import DesiredModel, Update
from firstline_edge.fleet.updates.means import Means
from firstline_edge.fleet.updates.model_updates import ModelUpdates


class Updater:
    """Of one device.

    Args:
        means: the collaborators of updates.
    """

    def __init__(self, means: Means) -> None:
        self._means = means
        self._models: dict[str, ModelUpdates] = {}
        self._news = asyncio.Event()
        for name in means.history.names:
            self.model(name)

    def model(self, name: str) -> ModelUpdates:
        """A model's updates, whether there ever was one or not."""
        found = self._models.get(name)
        if found is None:
            found = self._models[name] = ModelUpdates(name, self._means)
            self._news.set()
        return found

    def desire(self, models: Sequence[DesiredModel]) -> None:
        """Takes the models that the fleet desires now; a model that is not named stays as it is."""
        wanted = {model.name: model for model in models}
        for name in sorted({*wanted, *self._models}):
            self.model(name).desire(wanted.get(name))

    def updates(self) -> tuple[Update, ...]:
        """How the latest update of each model stands."""
        found = (self._models[name].update() for name in sorted(self._models))
        return tuple(update for update in found if update is not None)

    async def roll_back(self, name: str) -> None:
        """Rolls a model back; see `ModelUpdates.roll_back`.

        Raises:
            UnknownModelError: the fleet never updated such a model.
            RequestError: there is nothing to go back to.
        """
        if name not in self._models:
            raise UnknownModelError(f"No update of a model {name!a} is known on this device; see `edge-agent updates`.")
        await self._models[name].roll_back()

    async def run(self) -> None:
        """Works until it is cancelled."""
        started: set[str] = set()
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._news.clear()
                for name in self._models.keys() - started:
                    started.add(name)
                    tasks.create_task(self._models[name].run(), name=f"updates of {name}")
                await self._news.wait()
