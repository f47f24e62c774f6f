"""The TLS context of a client that verifies its server."""

from __future__ import annotations

import ssl
from pathlib import Path

from firstline_core.errors import ConfigError
from firstline_core.storage.files import not_certificates


def verifying_context(file: Path | str | None, setting: str) -> ssl.SSLContext:
    """Returns a context that trusts a file's certificates, in PEM; those of this machine for None or "".

    Raises:
        ConfigError: no certificates can be read from the file; it names `setting`.
    """
    try:
        return ssl.create_default_context(cafile=file or None)
    except OSError as error:  # an SSLError is one
        raise ConfigError(f"{setting}: {file} {not_certificates(error)}.") from error
