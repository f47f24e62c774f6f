"""The signed target files of a bundle. No I/O except reading the bundle."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import file_digest
from pathlib import Path
from typing import NamedTuple

import msgspec
from tuf.api.metadata import TargetFile

from firstline_core.bundle.manifest import MANIFEST_NAME
from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError, ConflictError, IntegrityError
from firstline_core.fleet.target import FULL, ExtraNeeds, Use, bundle_of_target, target_fields, target_path


class File(NamedTuple):
    """A file of a bundle on this machine."""

    path: Path
    sha256: str
    size_bytes: int


def listing(
    bundle: Bundle, asked: Mapping[str, ExtraNeeds], *, with_full: bool = True
) -> tuple[dict[str, TargetFile], list[File]]:
    """Returns the signed targets of a bundle by target path, and its files.

    Args:
        bundle: whose files were checked when it was opened.
        asked: requirements of variants beyond those in the manifest, by id.
        with_full: also the full model, for gateways.

    Raises:
        IntegrityError: a file is not there.
        ConfigError: a variant is named that the bundle has not.
    """
    manifest = bundle.manifest
    unknown = set(asked) - {model.id for model in manifest.edge}
    if unknown:
        known = ", ".join(model.id for model in manifest.edge)
        raise ConfigError(f"{manifest.name} has no edge variant {', '.join(sorted(unknown))}; it has {known}.")
    sizes = {artefact.file: (artefact.sha256, artefact.size_bytes) for artefact in manifest.artefacts}
    sizes[MANIFEST_NAME] = _measured(bundle.path / MANIFEST_NAME)
    targets, files = {}, []
    for file, custom in target_fields(manifest, asked).items():
        if isinstance(custom, Use) and custom.models == (FULL,) and not with_full:
            continue
        if not (bundle.path / file).is_file():
            raise IntegrityError(f"{bundle.path / file} is missing; a bundle is pushed whole (or --without-full).")
        sha256, size_bytes = sizes[file]
        path = target_path(manifest.name, manifest.version, file)
        fields = {"custom": msgspec.json.decode(msgspec.json.encode(custom))}
        targets[path] = TargetFile(size_bytes, {"sha256": sha256}, path, fields)
        files.append(File(bundle.path / file, sha256, size_bytes))
    return targets, list({file.sha256: file for file in files}.values())


def with_bundle(current: Mapping[str, TargetFile], new: Mapping[str, TargetFile]) -> dict[str, TargetFile] | None:
    """The targets with a bundle more; None where they list it already.

    Raises:
        ConflictError: they list this version with other content, which devices may run.
    """
    named = {bundle_of_target(path) for path in new}
    present = {path: target for path, target in current.items() if bundle_of_target(path) in named}
    if not present:
        return {**current, **new}
    if {path: target.to_dict() for path, target in present.items()} == {
        path: target.to_dict() for path, target in new.items()
    }:
        return None
    name, version = next(iter(named)) or ("", 0)
    raise ConflictError(
        f"The registry has {name} version {version} with other content. A version stands for one bundle for good: give "
        "the new one a higher version."
    )


def without(current: Mapping[str, TargetFile], name: str, version: int) -> dict[str, TargetFile]:
    """The targets without a bundle."""
    return {path: target for path, target in current.items() if bundle_of_target(path) != (name, version)}


def _measured(path: Path) -> tuple[str, int]:
    try:
        with path.open("rb") as stream:
            return file_digest(stream, "sha256").hexdigest(), stream.tell()
    except OSError as error:
        raise IntegrityError(f"{path} cannot be read: {error.strerror}.") from error
