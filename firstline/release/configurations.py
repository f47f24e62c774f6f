"""Configurations among the signed targets: upload, sign, and download as a device does."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

from tuf.api.metadata import TargetFile

from firstline.release.keyring import Keyring
from firstline.release.listing import File
from firstline.release.publishing import publish
from firstline.release.registry import Registry
from firstline_core.bundle.trust import Trust
from firstline_core.errors import ConfigError, ConflictError, IntegrityError, NotFoundError
from firstline_core.fleet.configuration import LIMIT_BYTES, configuration_path, parse_configuration


class PushedConfiguration(NamedTuple):
    """The result of a push; `is_new` if this push signed the configuration."""

    name: str
    version: int
    sha256: str
    is_new: bool


def push_configuration(keyring: Keyring, registry: Registry, file: Path, now_s: float) -> PushedConfiguration:
    """Sends a configuration and signs for it.

    Raises:
        ConfigError: the file cannot be read, or is not a configuration.
        ConflictError: the registry has this version with other content.
        FirstlineError: a key is missing, or the registry refuses.
    """
    try:
        with file.open("rb") as stream:
            content = stream.read(LIMIT_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}.") from error
    said = parse_configuration(content, str(file))
    sha256 = hashlib.sha256(content).hexdigest()
    path = configuration_path(said.name, said.version)
    target = TargetFile(len(content), {"sha256": sha256}, path)
    keyring.targets_signers(keyring.root().signed)  # before anything is sent
    local = File(file, sha256, len(content))
    if not registry.has(local):
        registry.send(local, lambda _: None)

    def change(current: dict[str, TargetFile]) -> dict[str, TargetFile] | None:
        known = current.get(path)
        if known is None:
            return {**current, path: target}
        if known.hashes.get("sha256") == sha256:
            return None
        raise ConflictError(
            f"The registry has the configuration {said.name} version {said.version} with other content. A version "
            "stands for one content for good: give the new one a higher version."
        )

    versions = publish(keyring, registry, now_s, change=change)
    return PushedConfiguration(said.name, said.version, sha256, versions is not None)


def remove_configuration(keyring: Keyring, registry: Registry, name: str, version: int, now_s: float) -> None:
    """Stops signing for a configuration; devices that run it keep it until another one is desired.

    Raises:
        NotFoundError: it is not signed for.
    """
    path = configuration_path(name, version)

    def change(current: dict[str, TargetFile]) -> dict[str, TargetFile] | None:
        return {key: target for key, target in current.items() if key != path} if path in current else None

    if publish(keyring, registry, now_s, change=change) is None:
        raise NotFoundError(f"The registry has no configuration {name} version {version}.")


def read_configuration(trust: Trust, registry: Registry, name: str, version: int) -> bytes:
    """A configuration's text, verified from the first root on.

    Raises:
        NotFoundError: it is not signed for.
        UpdateError: the metadata or the content does not verify.
    """
    file = trust.refresh().get(configuration_path(name, version))
    if file is None:
        raise NotFoundError(f"The signed targets list no configuration {name} version {version}.")
    content = b""
    with registry.part(file.sha256, 0) as (_, parts):
        for part in parts:
            content += part
            if len(content) > file.size_bytes:
                break
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise IntegrityError(f"{file.path} came with other bytes than were signed; ask who keeps the gateway.")
    return content
