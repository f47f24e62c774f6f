"""Opens the executors that the configuration names: one (`execution.engine`), or several (`executors`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from typing import assert_never

import msgspec

from firstline_core.bundle.loading import LoadedModel
from firstline_core.errors import FirstlineError
from firstline_core.hardware.kernel_files import Tree
from firstline_core.hardware.survey import fingerprint
from firstline_core.profile.profile import Profile
from firstline_core.runtime.select import RuntimeOptions, check_options
from firstline_core.telemetry.logs import logger
from firstline_gateway.executors.base import Executor
from firstline_gateway.executors.dispatch.dispatcher import Dispatcher
from firstline_gateway.executors.dispatch.member import Member, OpensMember
from firstline_gateway.executors.local import LocalExecutor
from firstline_gateway.executors.oip.dialects import FirstlineModel, RemoteModel, V2Model
from firstline_gateway.executors.oip.server import ServerGroup, open_servers
from firstline_gateway.executors.profiles import batch_seconds, profiles_near, read
from firstline_gateway.executors.ray.deployment import deployment_of
from firstline_gateway.executors.ray.executor import RayExecutor
from firstline_gateway.models.folder import load_full
from firstline_gateway.models.repository import Repository, ServedModel, in_loading_order
from firstline_gateway.settings.settings import ExecutorOf, Oip, Settings

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
    if not settings.executors:
        (only,) = settings.engines.values()
        placed = [served for served in repository if served.loaded is not None or only.engine != "local"]
        open_member = partial(Member, "")
        return Dispatcher(_open(settings, only, placed, options, open_member), is_named=False)
    members = []
    taken = False  # what the repository has loaded is the first one's in this process; others load their own
    for name, found in settings.executors.items():
        load = None
        if found.engine == "local" and taken:
            load = partial(
                load_full,
                options=RuntimeOptions(
                    providers=found.providers or settings.execution.providers, decoding=settings.decoding.limits
                ),
            )
        taken = taken or found.engine == "local"
        members += _open_named(settings, name, repository, options, load=load)
    return Dispatcher(members)


def _open_named(
    settings: Settings,
    name: str,
    repository: Repository,
    options: RuntimeOptions,
    *,
    load: Callable[[ServedModel], LoadedModel] | None,
) -> list[Member]:
    """One of several executors, with the models that it may run, newest first."""

    def takes(model: str) -> bool:
        return name in settings.models.executors_of.get(model, (name,))

    def profiled(served: ServedModel) -> dict[int, float]:
        return batch_seconds([*_profiles(served, found), *profiles], served.full, provider)

    found = settings.executors[name]
    profiles = read(found.profiles)
    provider = (found.providers or settings.execution.providers)[0] if found.engine == "local" else ""
    placed = []
    for served in in_loading_order(repository):
        if not takes(served.key.name):
            log.info("model not on an executor", executor=name, model=served.key.name, version=served.key.version)
        elif found.engine != "local":
            placed.append(served)
        elif served.loaded is not None:
            try:
                placed.append(served if load is None else replace(served, loaded=load(served)))
            except FirstlineError as error:
                log.error("model not on an executor", executor=name, model=served.key.name, error=error.message)
        if load is None and served.loaded is not None and served not in placed:
            served.loaded.close()
    open_member = partial(Member, name, profiled=profiled, takes=takes, load=load)
    return _open(settings, found, placed, options, open_member)


def _profiles(served: ServedModel, found: ExecutorOf) -> list[Profile]:
    """A model's profiles of this machine; of others' machines only what the settings name is known to be theirs."""
    if found.engine != "local":
        return []
    return profiles_near(served.path, served.manifest.name, _fingerprint)


@cache
def _fingerprint() -> str:
    return fingerprint(Tree())


def _open(
    settings: Settings,
    found: ExecutorOf,
    models: Sequence[ServedModel],
    options: RuntimeOptions,
    open_member: OpensMember,
) -> list[Member]:
    """Opens an executor with its models; one of several servers has a member for each."""
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
        seconds = members[0].profiled(served)
        for member in members:
            member.place(served, seconds)
    return members


def _open_oip(
    settings: Settings,
    found: ExecutorOf,
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


def _oip(settings: Settings, found: ExecutorOf) -> Oip:
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
            check_options(RuntimeOptions(providers=found.providers), f"executors.{name}.providers")
