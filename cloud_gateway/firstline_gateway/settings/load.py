"""From one TOML file, `FIRSTLINE_GATEWAY_SECTION__KEY` variables and flags to the gateway's settings.

Fills in defaults that depend on other settings: where relative paths start, how a broker of the gateway's own is
reached.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from msgspec.structs import replace

from firstline_core.errors import ConfigError
from firstline_core.storage import settings as sources
from firstline_gateway.settings.check import check, check_hosts
from firstline_gateway.settings.settings import (
    BROKER_AUTHORITIES_FILE,
    BROKER_PASSWORD_FILE,
    BROKER_USER,
    Mqtt,
    Settings,
)

ENVIRONMENT_PREFIX = "FIRSTLINE_GATEWAY_"
_SQLITE = "sqlite:///"
_POSTGRESQL = "postgresql+psycopg://"


def load(
    file: Path | None,
    *,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Settings:
    """Reads the settings; relative paths in them count from the configuration file's folder.

    Raises:
        ConfigError: a source cannot be read, or says something that makes no sense.
    """
    found = sources.load(Settings, file=file, environ=environ, prefix=ENVIRONMENT_PREFIX, overrides=overrides)
    check(found)
    base = file.parent if file is not None else Path()
    anchored = replace(
        found,
        tls=replace(
            found.tls,
            certificate_file=_below(base, found.tls.certificate_file),
            key_file=_below(base, found.tls.key_file),
            ca_file=_below(base, found.tls.ca_file),
        ),
        identity=replace(
            found.identity,
            directory=_below(base, found.identity.directory),
            broker_port=found.identity.broker_port or found.broker.port,
        ),
        models=replace(found.models, directory=_below(base, found.models.directory)),
        executors={
            name: replace(each, profiles=tuple(_below(base, file) for file in each.profiles))
            for name, each in found.executors.items()
        },
        oip=replace(
            found.oip,
            token_file=_below(base, found.oip.token_file),
            ca_file=_below(base, found.oip.ca_file),
        ),
        store=replace(
            found.store,
            url=_store_url(base, found.store.url),
            password_file=_below(base, found.store.password_file),
        ),
        registry=replace(
            found.registry,
            blobs=found.registry.blobs
            if found.registry.blobs.startswith("s3://")
            else _below(base, found.registry.blobs),
            full_models=_below(base, found.registry.full_models),
        ),
        mqtt=replace(
            found.mqtt,
            password_file=_below(base, found.mqtt.password_file),
            tls_ca_file=found.mqtt.tls_ca_file
            if found.mqtt.tls_ca_file == "system"
            else _below(base, found.mqtt.tls_ca_file),
        ),
        broker=replace(
            found.broker,
            directory=_below(base, found.broker.directory),
            pid_file=_below(base, found.broker.pid_file),
        ),
    )
    return _with_broker(anchored) if found.broker.directory else anchored


def _with_broker(found: Settings) -> Settings:
    """With what goes without saying where the broker's files are this gateway's own.

    Raises:
        ConfigError: nothing says how the broker is reached.
    """
    broker, mqtt = found.broker, found.mqtt
    named = (found.identity.broker_host, mqtt.host if mqtt.enabled else "")
    hosts = broker.hosts or tuple(dict.fromkeys(host for host in named if host))
    if not hosts:
        raise ConfigError(
            "broker.hosts is empty; name the broker as devices and gateways reach it, or set identity.broker_host."
        )
    check_hosts("broker.hosts", hosts)
    if not mqtt.username:
        mqtt = replace(
            mqtt,
            port=broker.gateway_port if mqtt.port == Mqtt().port else mqtt.port,  # it has no port without TLS
            username=BROKER_USER,
            password_file=str(broker.folder / BROKER_PASSWORD_FILE),
            tls_ca_file=mqtt.tls_ca_file or str(broker.folder / BROKER_AUTHORITIES_FILE),
        )
    return replace(found, broker=replace(broker, hosts=hosts), mqtt=mqtt)


def _store_url(base: Path, url: str) -> str:
    """The URL with SQLite's file below the configuration's folder."""
    if url.startswith(_SQLITE):
        path = url.removeprefix(_SQLITE)
        if not path or path == ":memory:" or "?" in path:
            raise ConfigError(f'store.url {url!a} names no file; write it as "{_SQLITE}gateway.db".')
        return _SQLITE + _below(base, path)
    if not url.startswith(_POSTGRESQL):
        # not quoted: there may be a password in it
        raise ConfigError(f'store.url is neither "{_SQLITE}FILE" nor "{_POSTGRESQL}USER@HOST/DATABASE".')
    try:
        parts = urlsplit(url)
        named = {name.lower() for name, _ in parse_qsl(parts.query, keep_blank_values=True)}
    except ValueError:  # its message would quote it too
        raise ConfigError(
            f'store.url is no URL; write it as "{_POSTGRESQL}USER@HOST/DATABASE", the password in store.password_file.'
        ) from None
    if parts.password is not None or any("password" in name for name in named):
        raise ConfigError("store.url has a password in it; put it into a file, and name that as store.password_file.")
    return url


def _below(base: Path, path: str) -> str:
    return str(base / path) if path else ""
