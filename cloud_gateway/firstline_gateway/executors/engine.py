"""The engine that the configuration names (`execution.engine`)."""

from __future__ import annotations

from functools import partial

from firstline_core.runtime.select import RuntimeOptions
from firstline_gateway.executors.base import Executor
from firstline_gateway.executors.local import LocalExecutor
from firstline_gateway.executors.oip.dialects import FarModel, FirstlineModel, V2Model
from firstline_gateway.executors.oip.executor import OipExecutor, open_transports
from firstline_gateway.executors.ray.deployment import deployment_of
from firstline_gateway.executors.ray.executor import RayExecutor
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
    if settings.execution.engine == "ray":
        return _open_ray(settings, repository)

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


def _open_ray(settings: Settings, repository: Repository) -> Executor:
    from firstline_gateway.executors.ray.cluster import RayCluster  # seconds, and hundreds of MB on disk

    return RayExecutor(
        {served.key: deployment_of(served, settings) for served in repository},
        RayCluster(settings.ray.address),
        in_flight=settings.ray.in_flight * settings.ray.replica_cores,
        timeout_s=settings.ray.timeout_s,
        make=partial(deployment_of, settings=settings),
    )


def check_engine(settings: Settings) -> None:
    """Whether what the engine needs beside the models is there.

    Raises:
        ConfigError: it is not.
    """
    if settings.execution.engine == "oip":
        open_transports(settings.oip, settings.limits)
    if settings.execution.engine == "ray":
        import firstline_gateway.executors.ray.cluster  # noqa: F401 (raises where Ray is absent)


def loads_here(settings: Settings) -> bool:
    """Whether full models run, and are loaded, in this process."""
    return settings.execution.engine == "local"
