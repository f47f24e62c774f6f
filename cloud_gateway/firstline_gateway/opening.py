"""From settings to a gateway: what they name beside the models is tried, the models are read, the engine is opened."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from firstline_core.clock import SYSTEM_CLOCK
from firstline_core.runtime.select import RuntimeOptions, check_options
from firstline_core.telemetry.logs import logger
from firstline_gateway import mqtt
from firstline_gateway.executors.engine import check_engine, open_engine
from firstline_gateway.gateway import Gateway
from firstline_gateway.identity import identity
from firstline_gateway.identity.folder import AuthorityFolder
from firstline_gateway.models.folder import load_full, load_repository
from firstline_gateway.profiles.priors import priors_in
from firstline_gateway.settings.settings import Settings
from firstline_gateway.store.database import open_database

log = logger(__name__)


def open_gateway(settings: Settings) -> Gateway:
    """Puts the gateway together; where it is to wait for its models, that takes as long as they take to load.

    Raises:
        ConfigError: a setting names something that is not there or no good.
    """
    check_files(settings)
    options = runtime_options(settings)
    here = settings.loads_here
    repository = load_repository(
        Path(settings.models.directory),
        options if here and settings.models.wait else None,
        budget_bytes=settings.models.memory_budget_mb << 20 if here else 0,
        fetched=settings.fetched_models,
    )
    had_authority = AuthorityFolder(Path(settings.identity.directory), SYSTEM_CLOCK).exists
    load = partial(load_full, options=options) if here else None
    if settings.executors:
        open_database(settings.store).close()  # so that it has its schema when it is asked for profiles
    engine = open_engine(settings, repository, options, priors_in(settings.store))
    gateway = Gateway(settings, repository, engine, load=load)
    if not repository.models:
        log.warning("no model to serve", directory=settings.models.directory)
    for name in repository.unknown(settings.models.concurrency_of):  # its bundle may come later
        log.warning("models.concurrency_of names a model that there is not; is it misspelt?", model=ascii(name))
    if gateway.identity.required and not gateway.identity.gatekeeper.known.anybody:
        log.warning("no API key and no device yet, so nobody may call", create="firstline-gateway key create NAME")
        if had_authority:
            log.warning(
                "devices that had joined are in another store: is store.url right, or is a backup to be restored?",
                store=gateway.database.shown,
            )
    return gateway


def runtime_options(settings: Settings) -> RuntimeOptions:
    """How this gateway's models run: sessions side by side, each on one thread.

    Raises:
        ConfigError: an execution provider that this onnxruntime does not offer.
    """
    options = RuntimeOptions(providers=settings.providers, threads=1)
    check_options(options, "execution.providers")
    return options


def check_files(settings: Settings) -> None:
    """Tries what the settings name beside the models.

    Raises:
        ConfigError: the token file, the broker's password or certificate, the topics, or what the engine needs are no
            good.
    """
    check_engine(settings)
    identity.check_files(settings)
    if settings.mqtt.enabled and not settings.broker.directory:  # else what it reads is made with the gateway
        mqtt.check(settings.mqtt)
