"""Arguments and options that several commands share: the bundle, the gateway with its API key, the signing keys."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from firstline.cli.contexts import Context, context_in_use
from firstline.cli.output import warn
from firstline_core.errors import (
    NAME_RULE,
    ConfigError,
    ForbiddenError,
    LinkDownError,
    NotFoundError,
    RequestError,
    UnauthorizedError,
    UnknownModelError,
    similar_name,
)
from firstline_core.storage.files import did_you_mean_file
from firstline_core.storage.secrets import read_secret

if TYPE_CHECKING:
    from firstline.client.sync_client import Client
    from firstline.fleet.client import Fleet
    from firstline.fleet.registry import Registry
    from firstline.release.keyring import Keyring
    from firstline.workbench.data.dataset import Dataset
    from firstline_core.processing.steps import InputSpec
    from firstline_core.types import TensorSpec

GATEWAY = "FIRSTLINE_GATEWAY"
# The longest that a gateway may stay silent; files travel to and from its registry.
_TIMEOUT_S, _REGISTRY_TIMEOUT_S = 30.0, 60.0
_DIGITS = re.compile("[0-9]")
_KEY, _KEY_FILE, _CA = "FIRSTLINE_TOKEN", "FIRSTLINE_KEY_FILE", "FIRSTLINE_CA"

BundleArgument = Annotated[Path, typer.Argument(metavar="BUNDLE", help="Folder of the bundle.", show_default=False)]
ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="The bundle's name.")]
VersionArgument = Annotated[int, typer.Argument(metavar="VERSION", min=1, help="A number.")]
LimitOption = Annotated[int | None, typer.Option(min=1, help="Use this many rows, spread evenly over the data.")]
DATA_HELP = (
    "Images, recordings, videos, labelled boxes, masks or a table: a folder or a file, with or without labels; see "
    "docs/reference/data.md."
)
PortOption = Annotated[
    int, typer.Option(min=0, max=65535, help="Port of the tier that answers; 0 lets the system choose.")
]
ThreadsOption = Annotated[int, typer.Option(min=0, help="Threads for each model; 0 uses the runtime's default.")]


class _ApiKey(NamedTuple):
    """An API key, and where it is from; both are "" without one."""

    text: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """The gateway and the API key that a command uses: of the flags, the environment, or the context in use.

    Attributes:
        url: URL of the gateway.
        key_file: File with the API key; FIRSTLINE_TOKEN may contain the key itself.
        ca_file: CA certificate used to verify the gateway (PEM).
    """

    url: Annotated[str, typer.Option("--gateway", envvar=GATEWAY, show_envvar=False, metavar="URL")] = ""
    key_file: Annotated[str, typer.Option(envvar=_KEY_FILE, show_envvar=False, metavar="FILE")] = ""
    ca_file: Annotated[Path | None, typer.Option("--ca", envvar=_CA, show_envvar=False, metavar="FILE")] = None

    @property
    def _own_environment(self) -> bool:
        """Whether key and CA of the environment may go to the gateway: it is named there or by the flag alone."""
        named = os.environ.get(GATEWAY, "")
        return bool(self.url) and (not named or same_gateway(self.url, named))

    def _own(self, value: str, variable: str) -> str:
        """Returns an option's value; "" with a warning for one of the environment that is not for this gateway."""
        if not value or value != os.environ.get(variable, "") or self._own_environment:
            return value
        warn(f"{variable} is not used, because it goes only to the gateway that {GATEWAY} names.")
        return ""

    @property
    def _context(self) -> Context:
        """The context in use; its key and its CA go to no other gateway than its own."""
        found = context_in_use()
        return found if not self.url or same_gateway(self.url, found.gateway) else Context()

    @property
    def found_url(self) -> str:
        """The gateway's URL; "" if none is named."""
        return self.url or self._context.gateway

    def required_url(self) -> str:
        """Returns the gateway's URL.

        Raises:
            ConfigError: none is named.
        """
        if not (url := self.found_url):
            raise ConfigError(
                "No gateway is named; name it with --gateway URL, in FIRSTLINE_GATEWAY, or in a context: "
                "firstline context create NAME --gateway URL."
            )
        return url

    @property
    def found_ca(self) -> Path | None:
        """The CA certificate; None for those that this system trusts."""
        ca = self._own(str(self.ca_file or ""), _CA) or self._context.ca
        return Path(ca) if ca else None

    def _found_key(self) -> _ApiKey:
        """Returns the API key, which is not a command-line argument because other users could read it.

        A key of the environment goes only to the gateway that the environment names, or that the flag names if the
        environment names none: that of a context has the context's key.

        Raises:
            ConfigError: its file cannot be read, or no header can carry it.
        """
        from firstline.client.connection import check_token

        if file := self._own(self.key_file, _KEY_FILE):
            option = _KEY_FILE if file == os.environ.get(_KEY_FILE) else "--key-file"
            found = _ApiKey(read_secret(file, option, "the API key"), f"{option} {file}")
        elif self._own_environment and (text := os.environ.get(_KEY, "").strip()):
            found = _ApiKey(text, _KEY)
        elif file := self._context.key_file:
            found = _ApiKey(self._context.key(), f"The context's key file {file}")
        else:
            return _ApiKey()
        check_token(*found)
        return found

    def _required_key(self) -> _ApiKey:
        if not (key := self._found_key()).text:
            raise ConfigError(
                f"No API key is given; name its file with --key-file or in a context. {_KEY_FILE} and {_KEY} count "
                f"only with --gateway or {GATEWAY}."
            )
        return key

    def required_key(self) -> str:
        """Returns the API key.

        Raises:
            ConfigError: there is none.
        """
        return self._required_key().text

    @contextmanager
    def _naming_sources(self, key: _ApiKey) -> Iterator[None]:
        """Adds where the key or the authority is from to the error about one that does not fit the gateway."""
        try:
            yield
        except (UnauthorizedError, ForbiddenError) as error:
            if not key.text:
                raise type(error)(f"{self.found_url} needs {_token_wanted(error.message)}") from error
            raise type(error)(f"{key.source}: {self.found_url} answers: {error.message}") from error
        except UnknownModelError as error:
            raise UnknownModelError(f"{self.found_url} answers: {error.message}") from error
        except LinkDownError as error:
            if self.found_ca is None or not error.message.startswith("The certificate of"):
                raise
            raise LinkDownError(f"--ca {self.found_ca}: {error.message}") from error

    @contextmanager
    def _api(self, timeout_s: float) -> Iterator[Fleet]:
        from firstline.fleet.client import open_fleet

        url, key = self.required_url(), self._required_key()
        with self._naming_sources(key), open_fleet(url, key.text, self.found_ca, timeout_s) as fleet:
            yield fleet

    @contextmanager
    def fleet(self, device: str = "") -> Iterator[Fleet]:
        """Opens the gateway's fleet API.

        Args:
            device: that the command names; if it is unknown, the error names a similar one.

        Raises:
            ConfigError: no gateway is named, or there is no API key.
        """
        with self._api(_TIMEOUT_S) as fleet, _suggesting(device, lambda: (each.name for each in fleet.listed())):
            yield fleet

    @contextmanager
    def registry(self, model: str = "") -> Iterator[Registry]:
        """Opens the gateway's registry.

        Args:
            model: that the command names; if it is unknown, the error names a similar one.

        Raises:
            ConfigError: no gateway is named, or there is no API key.
        """
        with (
            self._api(_REGISTRY_TIMEOUT_S) as fleet,
            _suggesting(model, lambda: (each.name for each in fleet.registry.bundles())),
        ):
            yield fleet.registry

    @contextmanager
    def client(self) -> Iterator[Client]:
        """Opens the client of the inference API, without a key if none is named.

        Raises:
            ConfigError: no gateway is named.
        """
        from firstline.client.sync_client import Client

        url, key = self.required_url(), self._found_key()
        with self._naming_sources(key), Client(url, token=key.text, ca_file=self.found_ca) as client:
            yield client


def _token_wanted(answer: str) -> str:
    """Returns the end of a sentence about a server that needs a token, and got none."""
    if "api.token_file" in answer:  # an agent
        return (
            "a token; write one from the agent's api.token_file (the part after NAME:) into a file, and name that with "
            "--key-file."
        )
    return "an API key; name its file with --key-file (`firstline-gateway key create NAME` makes a key)."


def same_gateway(one: str, other: str) -> bool:
    """Returns whether two URLs name the same gateway; "" names none.

    Raises:
        ConfigError: one is not the URL of a server.
    """
    from firstline.client.connection import base_url

    plain = [str(base_url(url)).rstrip("/") for url in (one, other) if url]
    return len(plain) == 2 and plain[0] == plain[1]


@contextmanager
def _suggesting(name: str, known: Callable[[], Iterable[str]]) -> Iterator[None]:
    """Adds the most similar known name to the error about an unknown one."""
    try:
        yield
    except (NotFoundError, RequestError) as error:
        names = set(known()) if name else {name}
        close = similar_name(name, names) if name not in names else ""
        if close and _DIGITS.sub("", close) != _DIGITS.sub("", name):  # press-1 means no press-9
            raise type(error)(f"{error.message} Did you mean '{close}'?") from error
        raise


@dataclass(frozen=True, slots=True)
class DataReading:
    """How a data set is read.

    Attributes:
        label: Column of labels.csv or of a table with the label.
        every: Of videos, take one frame in N.
    """

    label: Annotated[str, typer.Option("--label-column", metavar="NAME")] = "label"
    every: Annotated[int, typer.Option(min=1, metavar="N")] = 30

    def open(self, path: Path, inputs: Iterable[InputSpec | TensorSpec], limit: int | None = None) -> Dataset:
        """Opens a data set, and warns of arrays that are not used; see `open_dataset`.

        Args:
            path: of the data.
            inputs: of the bundle or the models.
            limit: number of samples; None for all.
        """
        from firstline.workbench.data.dataset import open_dataset

        names = {spec.name for spec in inputs}
        found = open_dataset(path, limit, label=self.label, every=self.every, inputs=names)
        if found.table is not None and found.table.unused:
            unused = ", ".join(f"'{name}'" for name in found.table.unused)
            warn(f"{found.table.path} holds arrays that are not used, because they do not have the rows: {unused}.")
        return found


@dataclass(frozen=True, slots=True)
class KeysFolder:
    """The folder of the signing keys.

    Attributes:
        key_folder: Folder of the signing keys.
    """

    key_folder: Annotated[Path, typer.Option("--keys", metavar="DIR")] = Path("keys")

    def keyring(self) -> Keyring:
        """Opens the keys without a passphrase."""
        from firstline.release.keyring import Keyring

        return Keyring(self.key_folder)


@dataclass(frozen=True, slots=True)
class SigningKeys(KeysFolder):
    """The signing keys and their passphrase.

    Attributes:
        passphrase_file: File with the signing keys' passphrase, if there is one; default: FIRSTLINE_KEY_PASSPHRASE.
    """

    passphrase_file: Annotated[str, typer.Option(metavar="FILE")] = ""

    def keyring(self) -> Keyring:
        """Opens the keys with their passphrase."""
        return self._open(())

    def _open(self, elsewhere: Sequence[Path]) -> Keyring:
        from firstline.release.keyring import Keyring

        passphrase = read_secret(self.passphrase_file, "--passphrase-file", "the passphrase")
        return Keyring(self.key_folder, passphrase or os.environ.get("FIRSTLINE_KEY_PASSPHRASE", ""), elsewhere)


@dataclass(frozen=True, slots=True)
class RootKeys(SigningKeys):
    """The signing keys, with root keys in other places.

    Attributes:
        root_key: A root key in another place, e.g. on a USB stick; may be repeated.
    """

    root_key: Annotated[list[Path] | None, typer.Option(metavar="FILE")] = None

    def keyring(self) -> Keyring:
        """Opens the keys, also those in other places."""
        return self._open(self.root_key or ())


def is_name(text: str) -> bool:
    """Whether the text is a valid name of a bundle, a device or a machine."""
    import msgspec

    from firstline_core.types import Name

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
        raise ConfigError(f"{what} {text[:80]!a} cannot be used; take {NAME_RULE}.")


def require_bundle(path: Path) -> Path:
    """Returns the path of a bundle's folder: a wrong path is the caller's mistake, a broken bundle is not.

    Raises:
        ConfigError: there is no manifest.
    """
    from firstline_core.bundle.manifest import MANIFEST_NAME

    if path.is_file():
        raise ConfigError(
            f"{str(path)[:200]} is a file, not the folder of a bundle; make one of a model: firstline pair --edge "
            "MODEL --data DATA."
        )
    if not path.exists():
        raise ConfigError(f"{str(path)[:200]} is not a bundle: there is no such folder{did_you_mean_file(path)}")
    if not (path / MANIFEST_NAME).is_file():
        raise ConfigError(
            f"{str(path)[:200]} is not a bundle: it has no {MANIFEST_NAME}; make one: firstline bundle create."
        )
    return path
