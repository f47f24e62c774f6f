"""Checks that involve several settings."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, assert_never
from urllib.parse import urlsplit

from firstline_core.errors import ConfigError, did_you_mean
from firstline_core.protocol.cors import ANY_ORIGIN
from firstline_core.protocol.loopback import is_loopback

if TYPE_CHECKING:
    from firstline_edge.settings.settings import EdgeSettings, LinkSection

_PORT = re.compile(r"https?://[^/@]*:(\d{1,9})(?:/.*)?")
_LAST_PORT = 65535
# Their types accept NaN, which compares with nothing; a bound refuses it.
_WITHOUT_BOUNDS = ("policy.threshold", "policy.threshold_cross_entropy", "policy.min_threshold", "costs.heat_limit_c")


def check(settings: EdgeSettings) -> None:
    """Checks the combinations of settings.

    Raises:
        ConfigError: an address or origins open to all without tokens, a value that is not a number, a link without
            an address, a certificate without TLS, or a policy by price without prices.
    """
    if not is_loopback(settings.api.host) and not settings.api.token_file:
        raise ConfigError(
            f"api.host is {settings.api.host}, which others can reach, but api.token_file is empty; "
            "name a file of NAME:TOKEN lines, or listen on 127.0.0.1."
        )
    if ANY_ORIGIN in settings.api.cors_origins and not settings.api.token_file:
        raise ConfigError(
            "api.cors_origins has *, but api.token_file is empty, so that every web page in a browser on this device "
            "could run the models; list the origins, or name a file of NAME:TOKEN lines."
        )
    if settings.api.bodies_limit_bytes < settings.api.body_limit_bytes:
        raise ConfigError(
            f"api.bodies_limit_bytes is {settings.api.bodies_limit_bytes}, less than one body may take "
            f"(api.body_limit_bytes, {settings.api.body_limit_bytes}); raise one or lower the other."
        )
    for name in _WITHOUT_BOUNDS:
        section, key = name.split(".")
        if math.isnan(getattr(getattr(settings, section), key)):
            raise ConfigError(f"{name} is not a number; set one, or leave it out.")
    if settings.policy.kind == "value" and not _has_prices(settings):
        raise ConfigError(
            "policy.kind is value, but nothing has a price, so that everything would be escalated; set a [budget], "
            "costs.money_per_request, costs.money_per_mib, costs.money_per_joule or policy.least_value."
        )
    if settings.adaptation.battery_empty >= settings.adaptation.battery_full:
        raise ConfigError(
            f"adaptation.battery_empty is {settings.adaptation.battery_empty:g}, not below adaptation.battery_full "
            f"({settings.adaptation.battery_full:g}); lower battery_empty, or raise battery_full."
        )
    if settings.fleet.locked:
        _check_locked(settings.fleet.locked)
    for number, link in enumerate(settings.links):
        match link.kind:
            case "http":
                _check_http(f"links[{number}]", link)
            case "mqtt":
                _check_mqtt(f"links[{number}]", link)
            case _:
                assert_never(link.kind)


def _check_locked(names: tuple[str, ...]) -> None:
    from firstline_core.fleet.configuration import KEYS, SECTIONS  # most devices do not need to import it

    unknown = [name for name in names if name not in SECTIONS and name not in KEYS]
    if unknown:
        raise ConfigError(
            f"fleet.locked names {unknown[0]!a}, which no configuration of the fleet can set; use a key such as "
            f"{KEYS[0]}, or a section of {', '.join(SECTIONS)}{did_you_mean(unknown[0], (*SECTIONS, *KEYS))}"
        )


def _has_prices(settings: EdgeSettings) -> bool:
    costs = settings.costs
    stated = (costs.money_per_request, costs.money_per_mib, costs.money_per_joule, settings.policy.least_value)
    return any(stated) or settings.budget != type(settings.budget)()


def _check_http(where: str, link: LinkSection) -> None:
    if "@" in link.url:  # logs and `status` show it
        raise ConfigError(
            f"{where}.url names a user or a password; put the token into a file, and name that (token_file)."
        )
    if (port := _PORT.fullmatch(link.url)) and not 1 <= int(port[1]) <= _LAST_PORT:
        raise ConfigError(f"{where}.url is '{link.url}', which has port {port[1]}; use 1 to {_LAST_PORT}.")
    if not _is_url(link.url):
        raise ConfigError(f"{where}.url is '{link.url}'; an http link needs a URL such as https://HOST:PORT.")
    parts = urlsplit(link.url)
    if parts.scheme == "http" and not (link.plain_http or is_loopback(parts.hostname or "")):
        raise ConfigError(
            f"{where}.url is '{link.url}', which would send tokens and pictures over the network unencrypted; use "
            "https://, or set plain_http = true in this section where something else protects that network."
        )
    if link.proxy:
        from firstline_core.protocol.proxies import check_proxy  # most devices do not need to import it

        check_proxy(link.proxy, f"{where}.proxy", ", or leave it out")


def _check_mqtt(where: str, link: LinkSection) -> None:
    if not link.host:
        raise ConfigError(f"{where}.host is empty; an mqtt link needs the broker's host.")
    if link.tls_key_file and not link.tls_certificate_file:
        raise ConfigError(f"{where}.tls_key_file is named without its tls_certificate_file; name both.")
    if link.tls_certificate_file and not link.tls_ca_file:
        raise ConfigError(
            f"{where}.tls_certificate_file is named but tls_ca_file is empty, so the link would not use TLS; name the "
            'authorities to trust, or "system" for the usual ones.'
        )


def _is_url(text: str) -> bool:
    """Returns whether a text is the URL of an HTTP server, to which a path can be appended."""
    try:
        parts = urlsplit(text)
        has_port = parts.port != 0  # raises if it is not a number
    except ValueError:
        return False
    plain = text.isprintable() and " " not in text and "?" not in text and "#" not in text
    return parts.scheme in ("http", "https") and bool(parts.hostname) and has_port and plain
