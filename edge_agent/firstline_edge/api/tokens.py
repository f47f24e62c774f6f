"""Bearer tokens of callers, read from a file. `firstline_core/storage/secrets.py` reads files that hold one secret."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from firstline_core.errors import ConfigError, UnauthorizedError


class Tokens:
    """The callers by their bearer tokens. Only digests are stored, and they are compared in constant time."""

    def __init__(self, names_and_tokens: dict[str, str]) -> None:
        self._digests = {name: _digest(token) for name, token in names_and_tokens.items()}

    def principal(self, authorization: str) -> str:
        """Returns the name of the caller that an `Authorization` header identifies.

        Raises:
            UnauthorizedError: the header has no valid token.
        """
        scheme, _, token = authorization.partition(" ")
        given = _digest(token.strip())
        found = [name for name, digest in self._digests.items() if hmac.compare_digest(digest, given)]
        if scheme.lower() != "bearer" or not found:
            raise UnauthorizedError("No valid token; send `Authorization: Bearer TOKEN` with one from api.token_file.")
        return found[0]


def read_tokens(file: str, setting: str) -> Tokens:
    """The tokens of a file.

    Raises:
        ConfigError: see `parse_tokens`.
    """
    return Tokens(parse_tokens(file, setting))


def first_token(file: str, setting: str) -> str:
    """The first token of a file, for a command that calls the agent on its own device; "" where no file is named.

    Raises:
        ConfigError: see `parse_tokens`.
    """
    return next(iter(parse_tokens(file, setting).values())) if file else ""


def parse_tokens(file: str, setting: str) -> dict[str, str]:
    """Tokens by name from `NAME:TOKEN` lines; empty lines and those that start with # are passed over.

    Raises:
        ConfigError: the file cannot be read, holds no token, or a line is not of that form or names a name again.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(_read(file, setting).splitlines(), start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, _, token = (part.strip() for part in text.partition(":"))
        if not name or len(token) < 16:
            raise ConfigError(f"{setting}: {file}:{number} is not NAME:TOKEN with a token of 16 characters or more.")
        if name in found:
            raise ConfigError(f"{setting}: {file}:{number} gives '{name}' a second token; give each its own name.")
        found[name] = token
    if not found:
        raise ConfigError(f"{setting}: {file} holds no token; write NAME:TOKEN into it.")
    return found


def _read(file: str, setting: str) -> str:
    try:
        return Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{setting}: {file} cannot be read: {error}.") from error


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
