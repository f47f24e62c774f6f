"""All updates of a device: of its models, which do not wait for each other, and of its configuration."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from firstline_core.errors import RequestError
from firstline_core.fleet.twin import UPDATES, DesiredConfiguration, DesiredModel, Update
from firstline_edge.fleet.configuration.configurator import Configurator
from firstline_edge.fleet.updates.installation import Installer
from firstline_edge.fleet.updates.model_store import ModelStore
from firstline_edge.fleet.updates.model_updates import ModelUpdates
from firstline_edge.fleet.updates.trial import AgentServing


@dataclass(eq=False)
class Updater:
    """The updates of one device.

    Args:
        store: the installed models.
        installer: fills slots with signed bundles.
        serving: the models that answer.
        configurator: the updates of the configuration; None in a simulation without one.
    """

    store: ModelStore
    installer: Installer
    serving: AgentServing
    configurator: Configurator | None = None
    _models: dict[str, ModelUpdates] = field(default_factory=dict, init=False)
    _added: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def __post_init__(self) -> None:
        for name in self.store.names:
            self.model(name)

    def model(self, name: str) -> ModelUpdates:
        """Returns the updates of a model, which may have none yet."""
        updates = self._models.get(name)
        if updates is None:
            updates = ModelUpdates(name, self.store, self.installer, self.serving)
            self._models[name] = updates
            self._added.set()
        return updates

    def receive(self, models: Sequence[DesiredModel], configuration: DesiredConfiguration | None = None) -> None:
        """Takes what the fleet desires now; a model that is not named stays as it is."""
        desired = {model.name: model for model in models}
        for name in sorted({*desired, *self._models}):
            self.model(name).receive(desired.get(name))
        if self.configurator is not None:
            self.configurator.receive(configuration)

    def updates(self) -> tuple[Update, ...]:
        """Returns the state of the latest update of each model and of the configuration, at most `UPDATES`."""
        models = [update for name in sorted(self._models) if (update := self._models[name].update()) is not None]
        configuration = self.configurator.update() if self.configurator is not None else None
        last = (configuration,) if configuration is not None else ()
        return (*models[: UPDATES - len(last)], *last)

    async def roll_back(self, model: str | None) -> None:
        """Rolls a model back on request, or the configuration if no model is named.

        Raises:
            UnknownModelError: the fleet never updated such a model.
            RequestError: there is no previous version.
        """
        if model is not None:
            self.store.known(model)
            await self.model(model).roll_back()
        elif self.configurator is not None:
            await self.configurator.roll_back()
        else:
            raise RequestError("This device takes no configuration.")

    async def run(self) -> None:
        """Works until it is cancelled."""
        started: set[str] = set()
        async with asyncio.TaskGroup() as tasks:
            if self.configurator is not None:
                tasks.create_task(self.configurator.run(), name="updates of the configuration")
            while True:
                self._added.clear()
                for name in self._models.keys() - started:
                    started.add(name)
                    tasks.create_task(self._models[name].run(), name=f"updates of {name}")
                await self._added.wait()
