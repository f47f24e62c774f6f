"""Options of commands that use a gateway's fleet API: the gateway, the API key and the signing keys."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firstline.fleet.client import Fleet, open_fleet
from firstline_core.errors import ConfigError
from firstline_core.storage.secrets import read_secret

if TYPE_CHECKING:  # a command that speaks to a fleet alone needs no python-tuf
    from firstline.release.keyring import Keyring
    from firstline.release.registry import Registry

_GATEWAY, _KEY, _PASSPHRASE = "FIRSTLINE_GATEWAY_URL", "FIRSTLINE_TOKEN", "FIRSTLINE_KEY_PASSPHRASE"

KEYS = Path("keys")
"""Default folder of the signing keys."""

GatewayOption = Annotated[
    str,
    typer.Option(envvar=_GATEWAY, show_envvar=False, metavar="URL", help=f"URL of the gateway; default: {_GATEWAY}."),
]
KeyFileOption = Annotated[
    str, typer.Option(metavar="FILE", help=f"File with an API key with the scope fleet; default: {_KEY}.")
]
CaOption = Annotated[Path | None, typer.Option(metavar="FILE", help="CA certificate used to verify the gateway (PEM).")]
KeysOption = Annotated[Path, typer.Option("--keys", metavar="DIR", help="Folder of the signing keys.")]
PassphraseOption = Annotated[
    str,
    typer.Option(
        metavar="FILE", help=f"File with the signing keys' passphrase, if there is one; default: {_PASSPHRASE}."
    ),
]
RootKeyOption = Annotated[
    list[Path] | None,
    typer.Option(metavar="FILE", help="A root key in another place, e.g. on a USB stick; may be repeated."),
]


@contextmanager
def registry_at(gateway: str, key_file: str, ca: Path | None) -> Iterator[Registry]:
    """Opens the registry that the options name.

    Raises:
        ConfigError: none is named, or there is no API key.
    """
    from firstline.release.registry import open_registry

    with open_registry(gateway_named(gateway), api_key(key_file), ca) as registry:
        yield registry


@contextmanager
def fleet_at(gateway: str, key_file: str, ca: Path | None) -> Iterator[Fleet]:
    """Opens the fleet API that the options name.

    Raises:
        ConfigError: none is named, or there is no API key.
    """
    with open_fleet(gateway_named(gateway), api_key(key_file), ca) as fleet:
        yield fleet


def gateway_named(gateway: str) -> str:
    """Returns the gateway's URL.

    Raises:
        ConfigError: none is named.
    """
    if not gateway:
        raise ConfigError(f"No gateway is named; name it with --gateway URL, or in {_GATEWAY}.")
    return gateway


def api_key(key_file: str) -> str:
    """Returns the API key, which is not a command-line argument because other users could read it.

    Raises:
        ConfigError: there is none.
    """
    key = read_secret(key_file, "--key-file") or os.environ.get(_KEY, "")
    if not key:
        raise ConfigError(f"There is no API key; name its file with --key-file, or put it into {_KEY}.")
    return key


def keyring_of(keys: Path, passphrase_file: str, root_keys: list[Path] | None = None) -> Keyring:
    """Opens the signing keys that the options name."""
    from firstline.release.keyring import Keyring

    passphrase = read_secret(passphrase_file, "--passphrase-file") or os.environ.get(_PASSPHRASE, "")
    return Keyring(keys, passphrase, root_keys or ())
