"""Opens the executors that the configuration names: one (`execution.engine`), or several (`executors`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import assert_never

import msgspec

from firstline_core.errors import FirstlineError
from firstline_core.runtime.select import RuntimeOptions, check_options
from firstline_core.storage.setting_places import quoted
from firstline_core.telemetry.logs import logger
from firstline_gateway.executors.base import Executor
from firstline_gateway.executors.dispatch.dispatcher import Dispatcher
from firstline_gateway.executors.dispatch.member import Member, OpensMember
from firstline_gateway.executors.local import LocalExecutor
from firstline_gateway.executors.oip.dialects import FirstlineModel, RemoteModel, V2Model
from firstline_gateway.executors.oip.server import ServerGroup, open_servers
from firstline_gateway.executors.profiles import batch_seconds, read
from firstline_gateway.executors.ray.deployment import deployment_of
from firstline_gateway.executors.ray.executor import RayExecutor
from firstline_gateway.models.folder import load_full
from firstline_gateway.models.memory import Load
from firstline_gateway.models.repository import Repository, ServedModel, in_loading_order
from firstline_gateway.settings.settings import ExecutorSection, OipSection, Settings

log = logger(__name__)


def open_executors(settings: Settings, repository: Repository, options: RuntimeOptions) -> Dispatcher:
    """Opens the executors for the models of a repository, which is loaded where `settings.loads_here` says so.

    Args:
        settings: the gateway's.
        repository: the models.
        options: how they run here.

    Raises:
        ConfigError: a setting of the executors is invalid.
    """
    members: list[Member] = []
    loads_own = False  # the first local executor runs what the repository has loaded; others load their own copies
    for name, found in settings.engines.items():
        load = None
        if found.engine == "local" and loads_own:
            load = partial(
                load_full,
                options=RuntimeOptions(
                    providers=found.providers or settings.execution.providers, decoding=settings.decoding.limits
                ),
            )
        loads_own = loads_own or found.engine == "local"
        members += _open(settings, name if settings.executors else "", found, repository, options, load=load)
    return Dispatcher(members)


def _open(
    settings: Settings,
    name: str,
    found: ExecutorSection,
    repository: Repository,
    options: RuntimeOptions,
    *,
    load: Load | None,
) -> list[Member]:
    """Opens an executor with the models that it may run; one of several servers has a member for each.

    Args:
        settings: the gateway's.
        name: of the executor; "" if it is the only one, without a name.
        found: the executor's settings.
        repository: the models.
        options: how they run here.
        load: loads the executor's own copy of a model; None if it takes what the repository has loaded.
    """

    def takes(model: str) -> bool:
        return name in settings.models.executors_of.get(model, (name,))

    def profiled(served: ServedModel) -> dict[int, float]:
        return batch_seconds(profiles, served.full, provider)

    profiles = read(found.profiles)
    provider = (found.providers or settings.execution.providers)[0] if found.engine == "local" else ""
    models = _models_of(name, found, repository, takes, load)
    open_member = partial(Member, name, profiled=profiled, takes=takes, load=load)
    match found.engine:
        case "local":
            sessions = found.sessions or settings.sessions
            loaded = {served.key: served.loaded for served in models if served.loaded is not None}
            rows = settings.execution.max_batch_rows
            executor: Executor = LocalExecutor(loaded, sessions=sessions, max_batch_rows=rows)
            members = [open_member(executor, sessions=sessions)]
        case "oip":
            members = _open_oip(settings, found, models, options, open_member)
        case "ray":
            members = [open_member(_open_ray(settings, models), sessions=found.sessions)]
        case _:
            assert_never(found.engine)
    for served in models:
        for member in members:
            member.place(served, member.profiled(served))
    return members


def _models_of(
    name: str, found: ExecutorSection, repository: Repository, takes: Callable[[str], bool], load: Load | None
) -> list[ServedModel]:
    """Returns the models that an executor may run, newest first; closes those that it may not run."""
    models = []
    is_here = found.engine == "local"
    for served in in_loading_order(repository):
        if not takes(served.key.name):
            log.info("model not on an executor", executor=name, model=served.key.name, version=served.key.version)
            if is_here and load is None and served.loaded is not None:
                served.loaded.close()
        elif not is_here:
            models.append(served)
        elif served.loaded is not None:
            try:
                models.append(served if load is None else replace(served, loaded=load(served)))
            except FirstlineError as error:
                log.error("model not on an executor", executor=name, model=served.key.name, error=error.message)
    return models


def _open_oip(
    settings: Settings,
    found: ExecutorSection,
    models: Sequence[ServedModel],
    options: RuntimeOptions,
    open_member: OpensMember,
) -> list[Member]:
    from firstline_gateway.executors.oip.http_transport import open_transports  # imports aiohttp

    def far(served: ServedModel) -> RemoteModel:
        if settings.oip.processing == "there":
            return FirstlineModel(served, settings.limits)
        return V2Model(served, options, settings.limits)

    oip = _oip(settings, found)
    threads = ThreadPoolExecutor(settings.sessions, thread_name_prefix="prepare")
    group = ServerGroup(
        {served.key: far(served) for served in models}, far, oip, threads, settings.execution.max_batch_rows
    )
    return open_servers(group, open_transports(oip, settings.limits), open_member, sessions=found.sessions)


def _oip(settings: Settings, found: ExecutorSection) -> OipSection:
    return msgspec.structs.replace(settings.oip, endpoints=found.endpoints or settings.oip.endpoints)


def _open_ray(settings: Settings, models: Sequence[ServedModel]) -> Executor:
    from firstline_gateway.executors.ray.cluster import RayCluster  # seconds, and hundreds of MB on disk

    return RayExecutor(
        {served.key: deployment_of(served, settings) for served in models},
        RayCluster(settings.ray.address),
        in_flight=settings.ray.in_flight * settings.ray.replica_cores,
        timeout_s=settings.ray.timeout_s,
        make=partial(deployment_of, settings=settings),
    )


def check_executors(settings: Settings) -> None:
    """Checks the files and libraries that the executors need, except the models.

    Raises:
        ConfigError: one is missing or invalid.
    """
    for name, found in settings.engines.items():
        if found.engine == "oip":
            from firstline_gateway.executors.oip.http_transport import open_transports  # imports aiohttp

            open_transports(_oip(settings, found), settings.limits)
        if found.engine == "ray":
            import firstline_gateway.executors.ray.cluster  # noqa: F401 (raises where Ray is absent)
        read(found.profiles)
        if found.providers:
            check_options(RuntimeOptions(providers=found.providers), f"executors.{quoted(name)}.providers")
