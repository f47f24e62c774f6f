"""Secrets in separate files, so that they are in no configuration, environment listing or log."""

from __future__ import annotations

from pathlib import Path

from firstline_core.errors import ConfigError
from firstline_core.storage.files import read_text, unreadable

_LIMIT_BYTES = 4096
_CERTIFICATE = "-----BEGIN CERTIFICATE-----"


def read_secret(file: str, setting: str, what: str = "the secret") -> str:
    """Returns the only line of the file; "" if no file is named.

    Args:
        file: path.
        setting: name of the setting, for the message.
        what: the secret, for the message.

    Raises:
        ConfigError: the file cannot be read, is empty, or has more than one line.
    """
    if not file:
        return ""
    try:
        text = read_text(Path(file), _LIMIT_BYTES)
    except FileNotFoundError as error:
        raise ConfigError(f"{setting}: {file} does not exist; create it with {what}, or correct the path.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{setting}: {file} is not UTF-8 text; write {what} alone into it.") from error
    except OSError as error:
        raise ConfigError(f"{setting}: {file} {unreadable(error)}") from error
    except ValueError as error:  # a path with a NUL
        raise ConfigError(f"{setting}: {file} cannot be read: {error}.") from error
    secret = text.strip()
    if not secret:
        raise ConfigError(f"{setting}: {file} is empty; write {what} into it.")
    if _CERTIFICATE in secret:
        raise ConfigError(f"{setting}: {file} holds a certificate, not {what}; name the file with {what} alone.")
    if not secret.isprintable():
        fault = "more than one line" if len(secret.splitlines()) > 1 else "control characters"
        raise ConfigError(f"{setting}: {file} has {fault}; write {what} alone into it.")
    return secret


def read_token(file: str, setting: str) -> str:
    """Returns the token in a file, for a header of HTTP; "" if no file is named.

    Args:
        file: path.
        setting: name of the setting, for the message.

    Raises:
        ConfigError: see `read_secret`, or no header can carry the token.
    """
    token = read_secret(file, setting, "the token")
    if not token.isascii():
        raise ConfigError(f"{setting}: {file} has letters beyond ASCII, which no token has; write the token into it.")
    return token
