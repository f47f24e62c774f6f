"""Authentication of callers: by bearer token if a token file is set, otherwise any user of this machine."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Protocol

from firstline_core.errors import ConfigError, ForbiddenError, UnauthorizedError
from firstline_core.protocol.cors import check_page
from firstline_core.protocol.loopback import ip_address_of
from firstline_core.storage.files import read_text, unreadable
from firstline_edge.settings.settings import ApiSection

_TOKENS_LIMIT_BYTES = 1024 * 1024

LOCAL_PRINCIPAL = "local"
"""The caller of an agent without a token file."""


def first_token(section: ApiSection) -> str:
    """Returns the first token, for a command that calls the agent on its own device; "" without a token file.

    Raises:
        ConfigError: see `parse_tokens`.
    """
    return next(iter(parse_tokens(section.token_file, "api.token_file").values())) if section.token_file else ""


def parse_tokens(file: str, setting: str) -> dict[str, str]:
    """Returns tokens by name from `NAME:TOKEN` lines; empty lines and lines that start with # are ignored.

    Raises:
        ConfigError: the file cannot be read, holds no token, or a line is not of that form or names a name again.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(_token_lines(file, setting).splitlines(), start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, _, token = (part.strip() for part in text.partition(":"))
        if not name or len(token) < 16 or not token.isascii():  # no header carries other letters
            raise ConfigError(
                f"{setting}: {file}:{number} is not NAME:TOKEN; write it so, with a token of 16 ASCII characters or "
                "more."
            )
        if name in found:
            raise ConfigError(f"{setting}: {file}:{number} gives '{name}' a second token; give each its own name.")
        found[name] = token
    if not found:
        raise ConfigError(f"{setting}: {file} holds no token; write NAME:TOKEN into it.")
    return found


def _token_lines(file: str, setting: str) -> str:
    try:
        return read_text(Path(file), _TOKENS_LIMIT_BYTES)
    except FileNotFoundError as error:
        raise ConfigError(
            f"{setting}: {file} does not exist; create it with lines NAME:TOKEN, or correct the path."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{setting}: {file} {unreadable(error)}") from error


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


class Access(Protocol):
    """Authenticates callers."""

    def principal(self, headers: Mapping[str, str]) -> str:
        """Returns the caller's name, from the headers of an HTTP request.

        Raises:
            RequestError: the caller is refused.
        """

    def bearer(self, authorization: str) -> str:
        """Returns the caller's name on a transport that web pages cannot use.

        Args:
            authorization: "Bearer TOKEN", or "".

        Raises:
            RequestError: the caller is refused.
        """


class TokenAccess:
    """The name of the bearer token is the principal. Only digests are stored, and compared in constant time.

    Args:
        tokens: by the names of their callers.
    """

    def __init__(self, tokens: Mapping[str, str]) -> None:
        self.adopt(tokens)

    def adopt(self, tokens: Mapping[str, str]) -> None:
        """Accepts these tokens from the next request on, and no others."""
        self._digests = {name: _digest(token) for name, token in tokens.items()}

    def principal(self, headers: Mapping[str, str]) -> str:
        return self.bearer(headers.get("authorization", ""))

    def bearer(self, authorization: str) -> str:
        scheme, _, token = authorization.partition(" ")
        given = _digest(token.strip())
        found = [name for name, digest in self._digests.items() if hmac.compare_digest(digest, given)]
        if scheme.lower() != "bearer" or not found:
            raise UnauthorizedError(
                "This agent needs a token of its api.token_file; send `authorization: Bearer TOKEN` as a header, or as "
                "metadata of gRPC."
            )
        return found[0]


class LoopbackAccess:
    """All users of this machine are one principal; web pages in their browsers are refused, see `check_page`.

    With a token file that is not necessary, because no page knows the token.

    Args:
        origins: origins of web pages that may call.
    """

    def __init__(self, origins: Collection[str] = ()) -> None:
        self._origins = origins

    def principal(self, headers: Mapping[str, str]) -> str:
        check_page(headers, self._origins, "This agent")
        return LOCAL_PRINCIPAL

    def bearer(self, authorization: str) -> str:
        return LOCAL_PRINCIPAL


def check_local(peer: tuple[str, int] | None) -> None:
    """Refuses callers on other machines: they may not change the models of this device.

    Args:
        peer: address and port of the caller; None over a Unix socket.

    Raises:
        ForbiddenError: the caller is on another machine.
    """
    if peer is None:
        return
    address = ip_address_of(peer[0])  # a name is the address of no machine
    if address is None or not address.is_loopback:
        raise ForbiddenError(f"Models are loaded and unloaded from the device itself, not from {peer[0]}.")


def access_of(api: ApiSection) -> Access:
    """Returns the authentication that the settings configure.

    Raises:
        ConfigError: the token file cannot be read, or is not valid.
    """
    return (
        TokenAccess(parse_tokens(api.token_file, "api.token_file"))
        if api.token_file
        else LoopbackAccess(api.cors_origins)
    )
