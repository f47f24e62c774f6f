"""The broker's folder and its keeper, from a gateway's settings."""

from __future__ import annotations

from pathlib import PurePosixPath

from firstline_core.clock import Clock
from firstline_gateway.broker.config import Plan
from firstline_gateway.broker.files import BrokerFolder
from firstline_gateway.broker.keeper import BrokerKeeper
from firstline_gateway.identity.folder import AuthorityFolder
from firstline_gateway.identity.known import Known
from firstline_gateway.settings.settings import Settings


def broker_folder(settings: Settings) -> BrokerFolder:
    """The folder that `broker.directory` names."""
    found = settings.broker
    seen = PurePosixPath(found.seen_as or found.folder.resolve())
    plan = Plan(
        folder=seen,
        data_folder=PurePosixPath(found.data_directory) if found.data_directory else seen / "data",
        port=found.port,
        gateway_port=found.gateway_port,
        body_bytes=settings.limits.body_bytes,
        concurrency=settings.mqtt.concurrency,
        connections=found.connections,
        pid_file=found.pid_file,
    )
    return BrokerFolder(found.folder, plan, settings.mqtt.prefix, found.hosts)


def broker_keeper(settings: Settings, authorities: AuthorityFolder, known: Known, clock: Clock) -> BrokerKeeper | None:
    """What keeps that folder up to date; None where there is none."""
    if not settings.broker.directory:
        return None
    return BrokerKeeper(
        broker_folder(settings),
        authorities=authorities.open,
        version=lambda: known.version,
        revoked=known.revoked,
        devices=lambda: known.revoked_devices,
        refresh_s=settings.auth.refresh_s,
        clock=clock,
    )
