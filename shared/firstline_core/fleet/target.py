"""Signed targets: the bundle of a file, the models that need it, and their requirements on a device. Pure functions.

A bundle is a group of targets (The Update Framework's term for signed files): `NAME/VERSION/manifest.json` and
`NAME/VERSION/FILE` for each artefact. Their custom fields contain what a device must know before it fetches anything.
Unknown fields are ignored, so that an older device can read a newer release.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, NamedTuple, TypeVar

import msgspec
from msgspec import Meta, Struct

from firstline_core.bundle.manifest import MANIFEST_NAME, Manifest, Model, valid_certificate
from firstline_core.errors import IncompatibleTargetError, IntegrityError, NotFoundError
from firstline_core.storage.artefact import RelativePath, SignedFile
from firstline_core.storage.structs import fault_of
from firstline_core.types import NAME_PATTERN, ModelKey, Name, Sha256

FORMAT = 1
FULL = "full"
"""Marks a file that the full model needs; only gateways fetch it."""

_T = TypeVar("_T")
# 18 digits fit an integer in every database and language.
_PATH = re.compile(NAME_PATTERN.removesuffix(r"\Z") + r"/[1-9][0-9]{0,17}/.")


class Needs(Struct, frozen=True):
    """The requirements of a variant on a device.

    Attributes:
        runtime: that loads the variant.
        size_bytes: of all its files, on disk.
        architectures: as `platform.machine()` returns them; empty for any.
        memory_mb: minimum memory (MiB); 0 if unspecified.
    """

    runtime: str
    size_bytes: Annotated[int, Meta(ge=0)]
    architectures: tuple[str, ...] = ()
    memory_mb: Annotated[int, Meta(ge=0)] = 0


class CertificateSummary(Struct, frozen=True):
    """The main figures of a variant's certificate; the manifest has all of them.

    Numbers are strings, because metadata is signed as canonical JSON, which has no fractions.
    """

    promise: str
    epsilon: str
    delta: str
    threshold: str


class Variant(Struct, frozen=True):
    """An edge variant of a bundle; `digest` is `Model.digest`; `certificate` summarises a valid certificate."""

    id: Name
    precision: str
    digest: Sha256
    needs: Needs
    certificate: CertificateSummary | None = None


class Release(Struct, frozen=True):
    """The custom field of a manifest's target: a summary of the bundle.

    Attributes:
        variants: in the manifest's order of preference.
        full_digest: of the full model; "" for a bundle without one.
    """

    bundle: Name
    version: Annotated[int, Meta(ge=1)]
    variants: tuple[Variant, ...]
    full_digest: str = ""
    format: int = FORMAT


class FileUse(Struct, frozen=True):
    """The custom field of a file's target: the ids of the variants that need it, and `FULL`."""

    models: tuple[str, ...]
    format: int = FORMAT


class ListedBundle(NamedTuple):
    """A bundle in signed metadata; `files` are its artefacts by path within the bundle."""

    release: Release
    manifest: SignedFile
    files: Mapping[str, tuple[SignedFile, FileUse]]


class Hardware(NamedTuple):
    """The capabilities of a device; `memory_mb` and `free_bytes` are None if unknown.

    Attributes:
        several: the device keeps several variants of a bundle and switches between them (`[adaptation]`).
    """

    runtimes: frozenset[str]
    architecture: str
    memory_mb: int | None = None
    free_bytes: int | None = None
    several: bool = False


class ExtraNeeds(NamedTuple):
    """Requirements of a variant that the release engineer adds to those of the manifest."""

    architectures: tuple[str, ...] = ()
    memory_mb: int = 0


def target_path(name: str, version: int, file: str) -> str:
    """Returns the target path of a file of a bundle."""
    return f"{name}/{version}/{file}"


def bundle_of_target(path: str) -> ModelKey | None:
    """Returns the bundle and version of a target; None if it belongs to no bundle."""
    if _PATH.match(path) is None:
        return None
    name, version, _ = path.split("/", 2)
    return ModelKey(name, int(version))


def target_fields(
    manifest: Manifest, extra_needs: Mapping[str, ExtraNeeds] | None = None
) -> dict[str, Release | FileUse]:
    """Returns the custom fields of a bundle's targets, by the path within the bundle.

    Args:
        manifest: of the bundle.
        extra_needs: additional requirements by variant id.

    Raises:
        IntegrityError: an artefact has the path of the manifest.
    """
    users: dict[str, list[str]] = {artefact.file: [] for artefact in manifest.artefacts}
    if MANIFEST_NAME in users:
        raise IntegrityError(f"The bundle names {MANIFEST_NAME} as an artefact; rename that file.")
    variants = []
    for model in manifest.edge:
        needed = _needed(manifest, model)
        for file in needed:
            users[file].append(model.id)
        certificate = valid_certificate(manifest, model)
        summary = None
        if certificate is not None:
            numbers = certificate.epsilon, certificate.delta, certificate.threshold
            summary = CertificateSummary(certificate.promise, *map(repr, numbers))
        more = (extra_needs or {}).get(model.id, ExtraNeeds())
        needs = Needs(model.runtime, sum(needed.values()), more.architectures, more.memory_mb)
        variants.append(Variant(model.id, model.precision, model.digest, needs, summary))
    for artefact in manifest.full.artefacts if manifest.full is not None else ():
        users[artefact.file].append(FULL)
    release = Release(manifest.name, manifest.version, tuple(variants), manifest.full_digest)
    return {MANIFEST_NAME: release} | {file: FileUse(tuple(dict.fromkeys(ids))) for file, ids in users.items()}


def _needed(manifest: Manifest, model: Model) -> dict[str, int]:
    """Returns the files of a variant with their sizes, including the score's graph and the golden answers."""
    return {artefact.file: artefact.size_bytes for artefact in (*model.artefacts, *manifest.common_artefacts)}


def listed_bundles(paths: Iterable[str]) -> list[ModelKey]:
    """Returns the bundles and versions among targets, sorted."""
    bundles = (bundle_of_target(path) for path in paths if path.endswith("/" + MANIFEST_NAME))
    return sorted({bundle for bundle in bundles if bundle is not None})


def find_bundle(files: Mapping[str, SignedFile], name: str, version: int) -> ListedBundle:
    """Returns a bundle from the signed files.

    Raises:
        NotFoundError: the bundle is not listed.
        IntegrityError: the signed fields are invalid; the bundle must be signed again.
    """
    folder = target_path(name, version, "")
    manifest = files.get(folder + MANIFEST_NAME)
    if manifest is None:
        names = {each.name for each in listed_bundles(files)}
        lacks = f"version {version} of {name}" if name in names else f"model {name!a}"
        raise NotFoundError(
            f"The gateway has no {lacks}; `firstline model list` lists what it has, and `firstline model push BUNDLE` "
            "adds to it."
        )
    release = _custom(manifest, Release)
    if (release.bundle, release.version) != (name, version):
        raise IntegrityError(f"{manifest.path} is signed as {release.bundle} version {release.version}; sign it again.")
    artefacts: dict[str, tuple[SignedFile, FileUse]] = {}
    for path, file in files.items():
        if path.startswith(folder) and file is not manifest:
            artefacts[_relative(path, folder)] = file, _custom(file, FileUse)
    return ListedBundle(release, manifest, artefacts)


def choose_variants(release: Release, device: Hardware) -> tuple[Variant, ...]:
    """Returns the variants that a device fetches: the first that it can run, even if the disk has no room for it.

    A device that keeps several variants also fetches the others that fit.

    Raises:
        IncompatibleTargetError: the device can run none; the message lists the requirements of each.
    """
    lacking = {variant.id: unmet_needs(variant.needs, device) for variant in release.variants}
    suitable = tuple(variant for variant in release.variants if not lacking[variant.id])
    if not suitable:
        reasons = "; ".join(f"{id_} {what}" for id_, what in lacking.items())
        raise IncompatibleTargetError(
            f"{release.bundle} version {release.version} has nothing for this device: "
            f"{reasons or 'it has no edge variant'}."
        )
    if not device.several:
        return suitable[:1]
    left_bytes = math.inf if device.free_bytes is None else device.free_bytes - suitable[0].needs.size_bytes
    taken = [suitable[0]]
    for variant in suitable[1:]:
        if variant.needs.size_bytes <= left_bytes:
            left_bytes -= variant.needs.size_bytes
            taken.append(variant)
    return tuple(taken)


def unmet_needs(needs: Needs, device: Hardware) -> str:
    """Returns the unmet requirements of a variant as text; "" if all known ones are met."""
    if needs.runtime not in device.runtimes:
        return f"needs the runtime {needs.runtime}, and here is {', '.join(sorted(device.runtimes)) or 'none'}"
    if needs.architectures and device.architecture not in needs.architectures:
        return f"is for {', '.join(needs.architectures)}, and this is {device.architecture}"
    if device.memory_mb is not None and needs.memory_mb > device.memory_mb:
        return f"needs {needs.memory_mb} MiB of memory, and here are {device.memory_mb}"
    return ""


def files_for(bundle: ListedBundle, *models: str) -> tuple[SignedFile, ...]:
    """Returns the files of variants (by id) or of the full model (`FULL`): the manifest, then their own files."""
    return (bundle.manifest, *(file for file, use in bundle.files.values() if not set(models).isdisjoint(use.models)))


def _relative(path: str, folder: str) -> str:
    try:
        return msgspec.convert(path.removeprefix(folder), RelativePath)
    except msgspec.ValidationError as error:
        raise IntegrityError(
            f"The signed target {path!a} is not a path within a bundle; sign the bundle again."
        ) from error


def _custom(file: SignedFile, kind: type[_T]) -> _T:
    try:
        msgspec.convert(file.sha256, Sha256)  # the path is used on disk and in URLs
        return msgspec.convert(file.custom, kind)
    except msgspec.ValidationError as error:
        raise IntegrityError(
            f"The signed fields of {file.path} are not valid: {fault_of(error)}; sign the bundle again."
        ) from error
