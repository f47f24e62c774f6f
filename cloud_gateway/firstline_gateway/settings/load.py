"""Reads the gateway's settings from a TOML file, `FIRSTLINE_GATEWAY_SECTION__KEY` variables and flags, and checks them.

Fills in defaults that depend on other settings, such as where relative paths start.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from msgspec.structs import replace

from firstline_core.errors import ConfigError, did_you_mean
from firstline_core.protocol.loopback import ip_address_of, is_loopback
from firstline_core.storage import settings as sources
from firstline_core.storage.setting_places import Sources, quoted
from firstline_gateway.settings.settings import (
    BROKER_AUTHORITIES_FILE,
    BROKER_PASSWORD_FILE,
    BROKER_USER,
    MqttSection,
    Settings,
)

ENVIRONMENT_PREFIX = "FIRSTLINE_GATEWAY_"
_SQLITE = "sqlite:///"
_POSTGRESQL = "postgresql+psycopg://"
# A name of DNS, perhaps with a star for its first part.
_HOST = re.compile(r"(?=.{1,253}\Z)(\*\.)?([A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?\.?)+")


def load(
    file: Path | None, *, environ: Mapping[str, str] | None = None, overrides: Mapping[str, object] | None = None
) -> Settings:
    """Reads the settings; relative paths in them count from the configuration file's folder.

    Raises:
        ConfigError: a source cannot be read, or contains invalid settings.
    """
    origins = Sources(file, None, environ or {}, ENVIRONMENT_PREFIX, overrides or {})
    settings = sources.load(Settings, origins)
    with sources.naming_sources(Settings, origins):
        _check(settings)
        base = file.parent if file is not None else Path()
        settings = sources.with_absolute_paths(settings, base)
        settings = replace(
            settings,
            store=replace(settings.store, url=_store_url(base, settings.store.url)),
            identity=replace(settings.identity, broker_port=settings.identity.broker_port or settings.broker.port),
        )
        return _with_broker(settings) if settings.broker.directory else settings


def naming_sources(
    file: Path | None, environ: Mapping[str, str], overrides: Mapping[str, object]
) -> AbstractContextManager[None]:
    """Adds the source of a setting to an error that names the setting."""
    return sources.naming_sources(Settings, Sources(file, None, environ, ENVIRONMENT_PREFIX, overrides))


def _with_broker(settings: Settings) -> Settings:
    """Returns the settings with the defaults of a gateway that writes its broker's files.

    Raises:
        ConfigError: no setting says how the broker is reached.
    """
    broker, mqtt = settings.broker, settings.mqtt
    named = (settings.identity.broker_host, mqtt.host if mqtt.enabled else "")
    hosts = broker.hosts or tuple(dict.fromkeys(host for host in named if host))
    if not hosts:
        raise ConfigError(
            "broker.hosts is empty; name the broker as devices and gateways reach it, or set identity.broker_host."
        )
    _check_hosts("broker.hosts", hosts)
    if not mqtt.username:
        mqtt = replace(
            mqtt,
            port=broker.gateway_port if mqtt.port == MqttSection().port else mqtt.port,  # it has no port without TLS
            username=BROKER_USER,
            password_file=str(broker.folder / BROKER_PASSWORD_FILE),
            tls_ca_file=mqtt.tls_ca_file or str(broker.folder / BROKER_AUTHORITIES_FILE),
        )
    return replace(settings, broker=replace(broker, hosts=hosts), mqtt=mqtt)


def _store_url(base: Path, url: str) -> str:
    """Returns the URL of the store; the path of an SQLite file counts from the configuration's folder."""
    if url.startswith(_SQLITE):
        path = url.removeprefix(_SQLITE)
        if not path or path == ":memory:" or "?" in path:
            raise ConfigError(f'store.url {url!a} names no file; write it as "{_SQLITE}gateway.db".')
        return _SQLITE + str(base / path)
    if not url.startswith(_POSTGRESQL):
        # the URL is not quoted, because it may contain a password
        raise ConfigError(
            f'store.url begins with neither "{_SQLITE}" nor "{_POSTGRESQL}"; write {_SQLITE}FILE, or '
            f"{_POSTGRESQL}USER@HOST/DATABASE with the password in the file store.password_file."
        )
    try:
        parts = urlsplit(url)
        named = {name.lower() for name, _ in parse_qsl(parts.query, keep_blank_values=True)}
    except ValueError:  # its message would quote the URL too
        raise ConfigError(
            f'store.url is no URL; write it as "{_POSTGRESQL}USER@HOST/DATABASE", the password in store.password_file.'
        ) from None
    if parts.password is not None or any("password" in name for name in named):
        raise ConfigError("store.url has a password in it; put it into a file, and name that as store.password_file.")
    return url


def _check(settings: Settings) -> None:
    """Checks combinations of settings before anything is opened.

    Raises:
        ConfigError: some contradict each other, or a needed one is missing.
    """
    if settings.auth.mode == "off" and not is_loopback(settings.api.host):
        raise ConfigError(
            f'auth.mode = "off" would let anybody who reaches {settings.api.host} run the models; '
            'set auth.mode = "tokens", or api.host = "127.0.0.1".'
        )
    _check_tls(settings)
    _check_engine(settings)
    _check_webhooks(settings)
    if settings.mqtt.password_file and not settings.mqtt.username:
        raise ConfigError("mqtt.password_file is set without mqtt.username; name the user that the password is for.")
    if settings.mqtt.enabled and not settings.mqtt.host:
        raise ConfigError("mqtt.host is empty; name the broker, or set mqtt.enabled = false.")
    if settings.registry.full_models and not settings.registry.blobs:
        raise ConfigError(
            "registry.full_models is set, but registry.blobs is empty, so that there is nothing to fetch; set that too."
        )
    if settings.api.bodies_limit_bytes < 2 * settings.api.body_limit_bytes:
        raise ConfigError(
            f"api.bodies_limit_bytes is {settings.api.bodies_limit_bytes}, too little for a body of "
            f"{settings.api.body_limit_bytes} bytes (api.body_limit_bytes) and as much beside it; raise the one or "
            "lower the other."
        )


def _check_engine(settings: Settings) -> None:
    """Checks that the engine has servers or executors that run the models.

    Raises:
        ConfigError: it has none.
    """
    _check_executors(settings)
    without = [key for key, each in settings.executors.items() if each.engine == "oip" and not each.endpoints]
    if without and not settings.oip.endpoints:
        raise ConfigError(
            f"executors.{quoted(without[0])}.endpoints is empty; name the servers that run the models, such as "
            '["https://gpu-1.example.com:8000"], there or as oip.endpoints.'
        )
    if settings.execution.engine == "oip" and not settings.oip.endpoints:
        raise ConfigError(
            'oip.endpoints is empty; name the servers that run the models, such as ["https://gpu-1.example.com:8000"], '
            'or set execution.engine = "local".'
        )
    if settings.ray.address != "auto" and not _is_ray_head(settings.ray.address):
        raise ConfigError(
            f'ray.address is {settings.ray.address!a}; write it as "HOST:PORT" of the cluster\'s head, or "auto" on a '
            "machine that is a node of it."
        )
    if settings.ray.replicas_max < settings.ray.replicas_min:
        raise ConfigError(
            f"ray.replicas_max is {settings.ray.replicas_max}, less than the {settings.ray.replicas_min} of "
            "ray.replicas_min; raise the one or lower the other."
        )
    _check_endpoints("oip.endpoints", settings.oip.endpoints)
    for name, each in settings.executors.items():
        _check_endpoints(f"executors.{quoted(name)}.endpoints", each.endpoints)


def _check_webhooks(settings: Settings) -> None:
    """Checks the addresses of webhooks, and that each has events and a signing key.

    Raises:
        ConfigError: one has not, or would send messages unencrypted.
    """
    for name, each in settings.webhooks.items():
        key = f"webhooks.{quoted(name)}"
        # The URL is not quoted, because it may contain a token.
        endpoint = each.url.partition("?")[0]
        if not _is_endpoint(endpoint) or "#" in each.url or not (each.url.isascii() and each.url.isprintable()):
            raise ConfigError(f"{key}.url is no URL; write it as https://HOST/PATH.")
        if not endpoint.startswith("https:") and not is_loopback(urlsplit(endpoint).hostname or ""):
            raise ConfigError(f"{key}.url would send messages unencrypted; write it as https://HOST/PATH.")
        if not each.events:
            raise ConfigError(f"{key}.events is empty; name what it receives, or delete {key}.")
        if not each.secret_file:
            raise ConfigError(f'{key}.secret_file is not set; name a file with its signing key ("whsec_" and base64).')


def _check_endpoints(setting: str, endpoints: tuple[str, ...]) -> None:
    """Checks that these are URLs of servers, each named once.

    Raises:
        ConfigError: one is not, or is named twice.
    """
    for endpoint in endpoints:
        if not _is_endpoint(endpoint):
            raise ConfigError(
                f"{setting} has {_without_user(endpoint)!a}; write a server as http://HOST:PORT or "
                "https://HOST:PORT, and its token into oip.token_file."
            )
    if len({endpoint.rstrip("/") for endpoint in endpoints}) < len(endpoints):
        raise ConfigError(f"{setting} names a server twice; its failures would count for two.")


def _check_executors(settings: Settings) -> None:
    """Checks the settings of several executors.

    Raises:
        ConfigError: they contradict each other.
    """
    for name, each in settings.executors.items():
        key = f"executors.{quoted(name)}"
        if each.providers and each.engine != "local":
            raise ConfigError(f'{key}.providers is for engine = "local"; this one is "{each.engine}".')
        if each.endpoints and each.engine != "oip":
            raise ConfigError(f'{key}.endpoints is for engine = "oip"; this one is "{each.engine}".')
    if sum(each.engine == "ray" for each in settings.executors.values()) > 1:
        raise ConfigError("executors has two of Ray; a gateway joins one cluster.")
    if settings.executors and settings.execution.engine != "local":
        raise ConfigError(
            f'execution.engine = "{settings.execution.engine}" and executors are both set; the executors name their '
            "own engines, so leave execution.engine out."
        )
    for model, names in settings.models.executors_of.items():
        if unknown := set(names).difference(settings.executors):
            raise ConfigError(
                f"models.executors_of sends {model!a} to {min(unknown)!a}, which is not declared; add the section "
                f"[executors.{quoted(min(unknown))}]{did_you_mean(min(unknown), settings.executors)}"
            )
        if not names:
            raise ConfigError(f"models.executors_of leaves {model!a} without an executor; name one, or leave it out.")


def _without_user(url: str) -> str:
    """Returns a URL without its user information, which may contain a password."""
    scheme, _, rest = url.rpartition("//")
    return f"{scheme}//...@{rest.rpartition('@')[2]}" if "@" in rest else url


def _is_endpoint(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    plain = url.isascii() and url.isprintable() and " " not in url
    named = parts.hostname is not None and _is_host(parts.hostname) and parts.username is None and port != 0
    return plain and parts.scheme in {"http", "https"} and named and not parts.query and not parts.fragment


def _is_ray_head(address: str) -> bool:
    return "/" not in address and _is_endpoint(f"http://{address}") and urlsplit(f"http://{address}").port is not None


def _check_tls(settings: Settings) -> None:
    """Checks the settings of TLS: clients can verify this gateway, and plain HTTP is served only if it is allowed.

    Raises:
        ConfigError: they cannot, or it would.
    """
    api, tls, auth = settings.api, settings.tls, settings.auth
    if not (tls.enabled or api.plain_http or is_loopback(api.host)):
        raise ConfigError(
            f'api.host = "{api.host}" would send API keys and pictures over the network unencrypted; set tls.enabled = '
            "true and tls.hosts, or api.plain_http = true where something else protects that network."
        )
    if bool(tls.certificate_file) != bool(tls.key_file):
        given, missing = ("certificate_file", "key_file") if tls.certificate_file else ("key_file", "certificate_file")
        raise ConfigError(f"tls.{given} is set without tls.{missing}; set both, or neither.")
    if tls.enabled and not (tls.hosts or tls.certificate_file):
        raise ConfigError(
            'tls.hosts is empty; name what devices reach this gateway by, such as ["gateway.example.com", '
            '"192.0.2.7"], or set tls.certificate_file and tls.key_file to a certificate of your own.'
        )
    if settings.grpc.client_certificates and not tls.enabled:
        raise ConfigError("grpc.client_certificates is set without TLS; set tls.enabled = true, or leave it out.")
    _check_hosts("tls.hosts", tls.hosts)
    if bool(auth.proxy_certificate_header) != bool(auth.trusted_proxies):
        raise ConfigError(
            "Of auth.proxy_certificate_header and auth.trusted_proxies one is set; a header counts from named proxies "
            "alone, so set both, or neither."
        )


def _check_hosts(key: str, hosts: Iterable[str]) -> None:
    """Checks that these are names and addresses for a certificate.

    Raises:
        ConfigError: one is neither.
    """
    for host in hosts:
        if not _is_host(host):
            raise ConfigError(
                f"{key} has {host!a}, which is neither a host name nor an address; write it without scheme and port."
            )


def _is_host(text: str) -> bool:
    return ip_address_of(text) is not None or _HOST.fullmatch(text) is not None
