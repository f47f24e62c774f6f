"""The engine that the configuration names (`execution.engine`)."""

from __future__ import annotations

from firstline_core.runtime.select import RuntimeOptions
from firstline_gateway.executors.base import Executor
from firstline_gateway.executors.local import LocalExecutor
from firstline_gateway.executors.oip.dialects import FarModel, FirstlineModel, V2Model
from firstline_gateway.executors.oip.executor import OipExecutor, open_transports
from firstline_gateway.repository import Repository, ServedModel
from firstline_gateway.settings import Settings


def open_engine(settings: Settings, repository: Repository, options: RuntimeOptions) -> Executor:
    """The engine for the models of a repository; `loads_here` says how to load that.

    Raises:
        ConfigError: what the engine's settings name is no good.
    """
    if loads_here(settings):
        return LocalExecutor(
            {served.key: served.loaded for served in repository if served.loaded is not None},
            sessions=settings.sessions,
            max_batch_rows=settings.execution.max_batch_rows,
        )

    def far(served: ServedModel) -> FarModel:
        if settings.oip.processing == "there":
            return FirstlineModel(served, settings.limits)
        return V2Model(served, options, settings.limits)

    return OipExecutor(
        {served.key: far(served) for served in repository},
        open_transports(settings.oip, settings.limits),
        settings.oip,
        threads=settings.sessions,
        max_batch_rows=settings.execution.max_batch_rows,
        make=far,
    )


def loads_here(settings: Settings) -> bool:
    """Whether full models run, and are loaded, in this process."""
    return settings.execution.engine == "local"
