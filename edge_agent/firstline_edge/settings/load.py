"""Reads the agent's settings from one TOML file, `FIRSTLINE_EDGE_SECTION__KEY` variables and flags.

An agent also stores the text of the file with which it has started. A device that lost power while its file was being
written can then start with that text: it counts for the same file only, and flags and variables override it like the
file. Commands that check a configuration do not use it.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec
from msgspec.structs import replace

from firstline_core.errors import ConfigError, IntegrityError
from firstline_core.storage import settings as sources
from firstline_core.storage.files import read_limited
from firstline_core.storage.setting_places import FILE_LIMIT_BYTES, Sources
from firstline_core.storage.structs import read_struct, write_struct
from firstline_core.telemetry.logs import logger
from firstline_edge.settings.check import check
from firstline_edge.settings.identity import readable_identity
from firstline_edge.settings.settings import AgentSection, EdgeSettings, LinkSection

PREFIX = "FIRSTLINE_EDGE_"

log = logger(__name__)

_STORED_NAME = "last-good-configuration.json"
_STATE_DIR = re.compile(r"""^\s*state_dir\s*=\s*["']([^"'\n]+)["']""", re.MULTILINE)


class ConfigurationFile(msgspec.Struct, frozen=True):
    """A configuration file.

    Attributes:
        path: absolute.
        text: its content.
    """

    path: str
    text: str


def load(
    file: Path | None,
    *,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
    text: str | None = None,
) -> EdgeSettings:
    """Reads and checks the settings; relative paths in the file start at the file's folder.

    Args:
        file: None for defaults only.
        environ: None for this process's environment.
        overrides: from flags, by dotted key.
        text: content of the file, if already read.

    Raises:
        ConfigError: a source cannot be read or is invalid.
    """
    origins = Sources(file, text, os.environ if environ is None else environ, PREFIX, overrides or {})
    settings = sources.load(EdgeSettings, origins)
    if file is not None:
        settings = sources.with_absolute_paths(settings, _resolved(file).parent)
    with sources.naming_sources(EdgeSettings, origins):
        check(settings)
        return _with_identity(settings)


def naming_sources(
    file: Path | None, overrides: Mapping[str, object], used: ConfigurationFile | None, *, is_last_good: bool
) -> AbstractContextManager[None]:
    """Adds the source of a setting to an error of a start, which names the setting.

    Args:
        file: of the settings; None for defaults only.
        overrides: from flags, by dotted key.
        used: the file, or the stored copy, that the settings came from.
        is_last_good: whether it is the stored copy.
    """
    place = Path(f"the last good configuration of {file}") if is_last_good else file  # only named, as `text` is known
    text = None if used is None else used.text
    return sources.naming_sources(EdgeSettings, Sources(place, text, os.environ, PREFIX, overrides))


def _with_identity(settings: EdgeSettings) -> EdgeSettings:
    """Returns the settings with the name and, if there are none, the links of a device that has joined a gateway."""
    identity = readable_identity(settings.state_dir) if settings.agent.use_identity else None
    if identity is None:
        return settings
    configured = settings.agent.device_id
    if configured and configured != identity.device:
        raise ConfigError(
            f"agent.device_id is '{configured}', but this device joined {identity.gateway} as '{identity.device}'; "
            "leave agent.device_id out, or join under that name."
        )
    links = settings.links
    if not links:
        links = (LinkSection(kind="http", url=identity.gateway, proxy=identity.proxy),)
        if (broker := identity.broker) is not None:
            links += (LinkSection(kind="mqtt", host=broker.host, port=broker.port, topic_prefix=broker.prefix),)
    return replace(settings, agent=replace(settings.agent, device_id=identity.device), links=links)


def load_or_last_good(
    file: Path | None, overrides: Mapping[str, object]
) -> tuple[EdgeSettings, ConfigurationFile | None, str]:
    """Returns the settings, the file that they came from, and why it is not the present one; "" if it is.

    Raises:
        ConfigError: the file is broken and no stored text can be used, or the error is not in the file.
    """
    if file is None:
        return load(None, overrides=overrides), None, ""
    try:
        text = sources.read_configuration(file)
        present = ConfigurationFile(_name_of(file), text)
        return load(file, overrides=overrides, text=present.text), present, ""
    except ConfigError as error:
        for stored in _stored(file, overrides):
            try:
                settings = load(file, overrides=overrides, text=stored.text)
            except ConfigError:
                continue
            why = f"{error.message} The last configuration that this agent started with is used instead; correct it."
            return settings, stored, why
        raise


def store_last_good(state_dir: Path, present: ConfigurationFile) -> None:
    """Stores the file with which an agent has started; a disk error is logged."""
    path = state_dir / _STORED_NAME
    try:
        if _read(path) != present:
            write_struct(path, present)
    except OSError as error:
        log.warning("configuration copy not stored", path=str(path), error=str(error))


def _stored(file: Path, overrides: Mapping[str, object]) -> Iterator[ConfigurationFile]:
    """Yields the stored texts of this file, from every place where the state directory may be."""
    folders: list[object] = [overrides.get("agent.state_dir"), os.environ.get(f"{PREFIX}AGENT__STATE_DIR")]
    with contextlib.suppress(OSError):
        folders += _STATE_DIR.findall(read_limited(file, FILE_LIMIT_BYTES).decode(errors="replace"))
    folders += _own_state_directories(file)
    for folder in (*folders, AgentSection().state_dir):
        if isinstance(folder, str):
            # A broken file may contain an invalid path: with a zero byte, or the home of an unknown user.
            with contextlib.suppress(ValueError, RuntimeError):
                stored = _read(_resolved(file).parent / Path(folder).expanduser() / _STORED_NAME)
                if stored is not None and stored.path == _name_of(file):
                    yield stored


def _own_state_directories(file: Path) -> list[str]:
    """Returns this user's state directories in the file's folder, for a file that lost all of its content."""
    folders = []
    with contextlib.suppress(OSError):
        for path in sorted(_resolved(file).parent.glob(f"*/{_STORED_NAME}")):
            if path.lstat().st_uid == os.geteuid():
                folders.append(str(path.parent))
    return folders


def _read(path: Path) -> ConfigurationFile | None:
    try:
        return read_struct(path, ConfigurationFile)
    except (OSError, IntegrityError):
        return None


def _resolved(file: Path) -> Path:
    """Returns the absolute path; `Path.resolve` raises for a link to itself."""
    return Path(os.path.realpath(file))


def _name_of(file: Path) -> str:
    """Returns the file's path as text that can be stored, the same in every locale."""
    return os.fsencode(_resolved(file)).decode(errors="backslashreplace")
