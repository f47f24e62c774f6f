"""Arguments and options that several commands share: the bundle, the gateway with its API key, the signing keys."""

from __future__ import annotations

import os
import os.path
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from firstline.cli.output import warn
from firstline.fleet.client import Fleet, open_fleet
from firstline.workbench.data.dataset import EVERY, Dataset, open_dataset
from firstline_core.bundle.manifest import MANIFEST_NAME
from firstline_core.errors import ConfigError
from firstline_core.processing.steps import InputSpec
from firstline_core.storage.secrets import read_secret
from firstline_core.tasks.arrays import LABEL
from firstline_core.types import Name, TensorSpec

if TYPE_CHECKING:  # a command that uses a gateway's fleet API alone needs no python-tuf
    from firstline.release.keyring import Keyring
    from firstline.release.registry import Registry

_GATEWAY, _KEY, _PASSPHRASE = "FIRSTLINE_GATEWAY", "FIRSTLINE_TOKEN", "FIRSTLINE_KEY_PASSPHRASE"

BundleArgument = Annotated[Path, typer.Argument(metavar="BUNDLE", help="Folder of the bundle.", show_default=False)]
LimitOption = Annotated[int | None, typer.Option(min=1, help="Use this many rows, spread evenly over the data.")]
DATA_HELP = (
    "Images, recordings, videos, labelled boxes, masks or a table: a folder or a file, with or without labels; see "
    "docs/reference/data.md."
)
ThreadsOption = Annotated[int, typer.Option(min=0, help="Threads for each model; 0 uses the runtime's default.")]
CaOption = Annotated[
    Path | None, typer.Option("--ca", metavar="FILE", help="CA certificate used to verify the gateway (PEM).")
]


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """The gateway and the API key that a command uses."""

    url: Annotated[
        str,
        typer.Option(
            "--gateway",
            envvar=_GATEWAY,
            show_envvar=False,
            metavar="URL",
            help=f"URL of the gateway; default: {_GATEWAY}.",
        ),
    ] = ""
    key_file: Annotated[
        str, typer.Option(metavar="FILE", help=f"File with an API key with the scope fleet; default: {_KEY}.")
    ] = ""
    ca_file: CaOption = None

    def required_url(self) -> str:
        """Returns the gateway's URL.

        Raises:
            ConfigError: none is named.
        """
        if not self.url:
            raise ConfigError(f"No gateway is named; name it with --gateway URL, or in {_GATEWAY}.")
        return self.url

    def api_key(self) -> str:
        """Returns the API key, which is not a command-line argument because other users could read it.

        Raises:
            ConfigError: there is none.
        """
        key = read_secret(self.key_file, "--key-file") or os.environ.get(_KEY, "")
        if not key:
            raise ConfigError(f"There is no API key; name its file with --key-file, or put it into {_KEY}.")
        return key

    @contextmanager
    def fleet(self) -> Iterator[Fleet]:
        """Opens the gateway's fleet API.

        Raises:
            ConfigError: no gateway is named, or there is no API key.
        """
        with open_fleet(self.required_url(), self.api_key(), self.ca_file) as fleet:
            yield fleet

    @contextmanager
    def registry(self) -> Iterator[Registry]:
        """Opens the gateway's registry.

        Raises:
            ConfigError: no gateway is named, or there is no API key.
        """
        from firstline.release.registry import open_registry

        with open_registry(self.required_url(), self.api_key(), self.ca_file) as registry:
            yield registry


@dataclass(frozen=True, slots=True)
class DataReading:
    """How a data set is read."""

    label: Annotated[
        str, typer.Option("--label-column", metavar="NAME", help="Column of labels.csv or of a table with the label.")
    ] = LABEL
    every: Annotated[int, typer.Option(min=1, metavar="N", help="Of videos, take one frame in N.")] = EVERY

    def open(self, path: Path, inputs: Iterable[InputSpec | TensorSpec], limit: int | None = None) -> Dataset:
        """Opens a data set, and warns of arrays that are not used; see `open_dataset`.

        Args:
            path: of the data.
            inputs: of the bundle or the models.
            limit: number of samples; None for all.
        """
        names = {spec.name for spec in inputs}
        found = open_dataset(path, limit, label=self.label, every=self.every, inputs=names)
        if found.table is not None and found.table.unused:
            unused = ", ".join(f"'{name}'" for name in found.table.unused)
            warn(f"{found.table.path} holds arrays that are not used, because they do not have the rows: {unused}.")
        return found


@dataclass(frozen=True, slots=True)
class KeysFolder:
    """The folder of the signing keys."""

    key_folder: Annotated[Path, typer.Option("--keys", metavar="DIR", help="Folder of the signing keys.")] = Path(
        "keys"
    )

    def keyring(self) -> Keyring:
        """Opens the keys without a passphrase."""
        from firstline.release.keyring import Keyring

        return Keyring(self.key_folder)


@dataclass(frozen=True, slots=True)
class SigningKeys(KeysFolder):
    """The signing keys and their passphrase."""

    passphrase_file: Annotated[
        str,
        typer.Option(
            metavar="FILE", help=f"File with the signing keys' passphrase, if there is one; default: {_PASSPHRASE}."
        ),
    ] = ""

    def keyring(self) -> Keyring:
        """Opens the keys with their passphrase."""
        return self._open(())

    def _open(self, elsewhere: Sequence[Path]) -> Keyring:
        from firstline.release.keyring import Keyring

        passphrase = read_secret(self.passphrase_file, "--passphrase-file") or os.environ.get(_PASSPHRASE, "")
        return Keyring(self.key_folder, passphrase, elsewhere)


@dataclass(frozen=True, slots=True)
class RootKeys(SigningKeys):
    """The signing keys, with root keys in other places."""

    root_key: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A root key in another place, e.g. on a USB stick; may be repeated."),
    ] = None

    def keyring(self) -> Keyring:
        """Opens the keys, also those in other places."""
        return self._open(self.root_key or ())


def is_there(path: Path) -> bool:
    """Whether something lies there that can be seen. `Path.exists` raises where no such name is possible."""
    return os.path.exists(path)  # noqa: PTH110


def is_name(text: str) -> bool:
    """Whether the text is a valid name of a bundle, a device or a machine."""
    try:
        msgspec.convert(text, Name)
    except msgspec.ValidationError:
        return False
    return True


def check_name(text: str, what: str) -> None:
    """Checks a name; `what` says in the error where it is from.

    Raises:
        ConfigError: it is not valid.
    """
    if not is_name(text):
        raise ConfigError(
            f"{what} {text[:80]!a} cannot be used; take 1 to 64 letters, digits, '.', '_', '-'; no sign first."
        )


def require_bundle(path: Path) -> Path:
    """Returns the path of a bundle's folder: a wrong path is the caller's mistake, a broken bundle is not.

    Raises:
        ConfigError: there is no manifest.
    """
    if os.path.isfile(path):  # noqa: PTH113 (as `is_there`)
        raise ConfigError(
            f"{str(path)[:200]} is a file, and no bundle; make one of a model: firstline pair --edge MODEL --data DATA."
        )
    if not os.path.isfile(path / MANIFEST_NAME):  # noqa: PTH113 (as `is_there`)
        raise ConfigError(
            f"{str(path)[:200]} is not a bundle: it has no {MANIFEST_NAME} (make one: firstline bundle create)."
        )
    return path
