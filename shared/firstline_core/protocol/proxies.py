"""The HTTP proxy that the environment's variables name for a server (HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, NO_PROXY)."""

from __future__ import annotations

import os
from ipaddress import ip_network
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

from firstline_core.errors import ConfigError
from firstline_core.protocol.loopback import ip_address_of, is_loopback


def environment_proxy(url: str) -> str:
    """Returns the URL of the proxy for a server; "" for none, and always for this machine.

    Args:
        url: of the server.

    Raises:
        ConfigError: a variable that cannot be used; the message names it, but not its value, which may be a secret.
    """
    server, variables = urlsplit(url), getproxies_environment()
    host = server.hostname or ""
    scheme = next((scheme for scheme in (server.scheme, "all") if variables.get(scheme)), None)
    port = server.port or (443 if server.scheme == "https" else 80)
    if scheme is None or is_this_machine(host) or _is_excluded(host, port, variables):
        return ""
    proxy = variables[scheme] if "://" in variables[scheme] else f"http://{variables[scheme]}"
    check_proxy(proxy, _name_of(f"{scheme}_proxy"), f", or exclude {host} in NO_PROXY")
    return proxy


def check_proxy(proxy: str, name: str, otherwise: str = "") -> None:
    """Checks the URL of a proxy.

    Args:
        proxy: the URL.
        name: of the setting or variable.
        otherwise: what to do instead of correcting it, as the end of a sentence.

    Raises:
        ConfigError: not the URL of an HTTP proxy.
    """
    try:
        parts = urlsplit(proxy)
        valid = bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise ConfigError(f"{name} is not a URL; set it to http://HOST:PORT{otherwise}.")
    if parts.scheme not in ("http", "https"):
        raise ConfigError(
            f"{name} names a proxy of the kind {parts.scheme}://, which is not supported; set it to the URL of an HTTP "
            f"proxy, http://HOST:PORT{otherwise}."
        )


def is_this_machine(host: str) -> bool:
    """Returns whether a client that connects to a name or an address reaches this machine."""
    name = host.lower().rstrip(".")
    address = ip_address_of(name)
    return is_loopback(name) or name.endswith(".localhost") or (address is not None and address.is_unspecified)


def _is_excluded(host: str, port: int, variables: dict[str, str]) -> bool:
    """Returns whether NO_PROXY excludes a server; it may contain names, addresses, and ranges of addresses."""
    address = ip_address_of(host)
    if address is None:
        return bool(proxy_bypass_environment(f"{host}:{port}", variables))
    for entry in (entry.strip() for entry in variables.get("no", "").split(",")):
        if entry == "*":
            return True
        excluded = entry.removesuffix(f":{port}") if "." in entry or "]" in entry else entry
        try:
            if address in ip_network(excluded.replace("[", "").replace("]", ""), strict=False):
                return True
        except ValueError:
            if "/" in entry and "://" not in entry:
                raise ConfigError(
                    f"{_name_of('no_proxy')} contains '{entry}', which is not a range of addresses; "
                    "write ranges as 10.0.0.0/8 or fd00::/8."
                ) from None
    return False


def _name_of(variable: str) -> str:
    """Returns the variable's name as it is set; `getproxies_environment` prefers small letters."""
    return variable if variable in os.environ else variable.upper()
