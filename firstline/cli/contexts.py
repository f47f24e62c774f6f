"""Contexts: names for gateways, each with the files of its API key and its CA certificate, in a file of the user."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
from msgspec import Struct

from firstline_core.errors import ConfigError, did_you_mean
from firstline_core.storage.files import make_folder, naming, read_limited, write_whole
from firstline_core.storage.secrets import read_secret
from firstline_core.storage.structs import fault_of

SELECTS = "FIRSTLINE_CONTEXT"
_LIMIT_BYTES = 1024 * 1024


class Context(Struct, frozen=True):
    """One gateway; it names the file of the key, and contains no secret.

    Attributes:
        gateway: URL.
        key_file: path of the API key; "" for none.
        ca: path of the CA certificate used to verify the gateway; "" for those that this system trusts.
    """

    gateway: str = ""
    key_file: str = ""
    ca: str = ""

    def key(self) -> str:
        """Returns the API key; "" for none.

        Raises:
            ConfigError: its file cannot be read.
        """
        name = _name_in_use(read_contexts())
        try:
            return read_secret(self.key_file, f"{contexts_file()}, context {name[:80]!a}", "the API key")
        except ConfigError as error:
            raise ConfigError(
                f"{error.message} To name another file: `firstline context create {name} --gateway {self.gateway} "
                "--key-file FILE`."
            ) from error


class Contexts(Struct):
    """The content of the file.

    Attributes:
        current: name of the context in use; "" for none.
        contexts: by name.
    """

    current: str = ""
    contexts: dict[str, Context] = {}

    def get(self, name: str) -> Context:
        """Returns a context.

        Raises:
            ConfigError: there is no such context.
        """
        if name not in self.contexts:
            end = did_you_mean(name, self.contexts)
            if end == ".":
                end = f"; create it with `firstline context create {name[:80]} --gateway URL`."
            raise ConfigError(f"There is no context {name[:80]!a} in {contexts_file()}{end}")
        return self.contexts[name]


def contexts_file() -> Path:
    """Returns the file, in the folder of the user's configuration (XDG)."""
    folder = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    if not folder.is_absolute():
        try:
            folder = Path.home() / ".config"
        except RuntimeError:  # a container may run as a user without an account
            folder = Path("/.config")
    return folder / "firstline" / "contexts.json"


def read_contexts() -> Contexts:
    """Returns all contexts; none if there is no file.

    Raises:
        ConfigError: the file cannot be read.
    """
    file = contexts_file()
    try:
        return msgspec.json.decode(read_limited(file, _LIMIT_BYTES), type=Contexts)
    except FileNotFoundError:
        return Contexts()
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file} cannot be read: {fault_of(error)}; correct or delete it.") from error


def write_contexts(contexts: Contexts) -> None:
    """Replaces the file; only this user can read it.

    Raises:
        ConfigError: the file cannot be written.
    """
    file = contexts_file()
    with naming(file, "written"):
        make_folder(file.parent)
        write_whole(file, msgspec.json.format(msgspec.json.encode(contexts)))


def context_in_use() -> Context:
    """Returns the context that `FIRSTLINE_CONTEXT` names, otherwise the current one; without both an empty one.

    Raises:
        ConfigError: the file cannot be read, or there is no such context.
    """
    contexts = read_contexts()
    name = _name_in_use(contexts)
    return contexts.get(name) if name else Context()


def _name_in_use(contexts: Contexts) -> str:
    return os.environ.get(SELECTS, "") or contexts.current
