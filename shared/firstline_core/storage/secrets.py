"""Secrets in separate files, so that they are in no configuration, environment listing or log."""

from __future__ import annotations

from pathlib import Path

from firstline_core.errors import ConfigError

_LIMIT_BYTES = 4096


def read_secret(file: str, setting: str) -> str:
    """Returns the only line of the file; "" if no file is named.

    Args:
        file: path.
        setting: name of the setting, for the message.

    Raises:
        ConfigError: the file cannot be read, is empty, or has more than one line.
    """
    if not file:
        return ""
    try:
        with Path(file).open("rb") as stream:
            content = stream.read(_LIMIT_BYTES + 1)
        text = content.decode()
    except OSError as error:
        raise ConfigError(f"{setting}: {file} cannot be read: {error.strerror}.") from error
    except ValueError as error:  # a path with a NUL, or bytes that are not UTF-8
        raise ConfigError(f"{setting}: {file} cannot be read: {error}.") from error
    if len(content) > _LIMIT_BYTES:
        raise ConfigError(f"{setting}: {file} is larger than {_LIMIT_BYTES} bytes; put the secret into it alone.")
    secret = text.strip()
    if not secret:
        raise ConfigError(f"{setting}: {file} is empty; write the secret into it.")
    if not secret.isprintable():
        raise ConfigError(f"{setting}: {file} has more than one line, or characters that no secret has.")
    return secret
