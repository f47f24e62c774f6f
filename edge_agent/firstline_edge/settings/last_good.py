"""The last configuration that an agent started with, for when the file is broken at the next start.

A device that lost power while its configuration was being written must answer all the same. The copy lies in the
state directory and counts for the same file only; flags and environment are laid over it as over the file. Commands
that check a configuration do not use it.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from firstline_core.errors import ConfigError, IntegrityError
from firstline_core.storage.files import read_checked, with_checksum, write_whole
from firstline_core.storage.settings import read_text
from firstline_core.telemetry.logs import logger
from firstline_edge.settings.load import PREFIX, load
from firstline_edge.settings.settings import AgentSection, EdgeSettings

log = logger(__name__)

_NAME = "last-good-configuration.json"
_STATE_DIR = re.compile(r"""^\s*state_dir\s*=\s*["']([^"'\n]+)["']""", re.MULTILINE)


class Configuration(msgspec.Struct, frozen=True):
    """A file's text.

    Attributes:
        path: of the file, absolute.
        text: what it held.
    """

    path: str
    text: str


def load_or_last_good(
    file: Path | None, overrides: Mapping[str, object]
) -> tuple[EdgeSettings, Configuration | None, str]:
    """The settings, the file's text that they came from, and why it is not the present one: "" where it is.

    Raises:
        ConfigError: the file is broken and there is no copy to fall back on, or it is not the file that is wrong.
    """
    if file is None:
        return load(None, overrides=overrides), None, ""
    try:
        found = Configuration(_name_of(file), read_text(file))
        return load(file, overrides=overrides, text=found.text), found, ""
    except ConfigError as error:
        for kept in _kept(file, overrides):
            try:
                settings = load(file, overrides=overrides, text=kept.text)
            except ConfigError:
                continue
            why = f"{error.message} The last configuration that this agent started with is used instead; correct it."
            return settings, kept, why
        raise


def keep(state_dir: Path, found: Configuration) -> None:
    """Stores the configuration that an agent has started with; a disk error is logged."""
    path = state_dir / _NAME
    try:
        if _read(path) != found:
            write_whole(path, with_checksum(msgspec.json.encode(found)))
    except OSError as error:
        log.warning("cannot keep a copy of the configuration", path=str(path), error=str(error))


def _kept(file: Path, overrides: Mapping[str, object]) -> Iterator[Configuration]:
    """Copies of this file, from wherever the broken one and its surroundings say that the state is."""
    said: list[object] = [overrides.get("agent.state_dir"), os.environ.get(f"{PREFIX}AGENT__STATE_DIR")]
    with contextlib.suppress(OSError):
        said += _STATE_DIR.findall(file.read_bytes().decode(errors="replace"))
    said += _beside(file)
    for folder in (*said, AgentSection().state_dir):
        if isinstance(folder, str):
            # What a broken file says may be no path at all: a zero in it, or the home of nobody.
            with contextlib.suppress(ValueError, RuntimeError):
                found = _read(file.resolve().parent / Path(folder).expanduser() / _NAME)
                if found is not None and found.path == _name_of(file):
                    yield found


def _beside(file: Path) -> list[str]:
    """This user's state directories in the file's folder, for when there is not a word left in the file."""
    found = []
    with contextlib.suppress(OSError):
        for path in sorted(file.resolve().parent.glob(f"*/{_NAME}")):
            if path.lstat().st_uid == os.geteuid():
                found.append(str(path.parent))
    return found


def _read(path: Path) -> Configuration | None:
    try:
        return msgspec.json.decode(read_checked(path), type=Configuration)
    except (OSError, IntegrityError, msgspec.MsgspecError):
        return None


def _name_of(file: Path) -> str:
    """The file's path as text that can be written down, the same in every locale."""
    return os.fsencode(file.resolve()).decode(errors="backslashreplace")
