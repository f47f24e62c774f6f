"""Publishes bundles and configurations: uploads the missing files, and signs on top of the registry's verified state.

Files that the registry already has are skipped, so an interrupted push can be resumed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from hashlib import file_digest
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from tuf.api.metadata import Metadata, Root, TargetFile, Targets

from firstline.fleet.registry import LocalFile, Registry
from firstline.release import roles
from firstline.release.keyring import Keyring
from firstline_core.bundle.manifest import MANIFEST_NAME
from firstline_core.bundle.store import Bundle
from firstline_core.bundle.trust import Trust
from firstline_core.errors import (
    ConfigError,
    ConflictError,
    IntegrityError,
    MetadataRollbackError,
    NotFoundError,
    SignatureError,
)
from firstline_core.fleet.configuration import LIMIT_BYTES, configuration_path, parse_configuration
from firstline_core.fleet.target import ExtraNeeds, bundle_of_target, target_fields, target_path
from firstline_core.storage.files import naming, read_limited

# If several machines push at the same moment, one is first; the others sign again on top of what it has published.
_TRIES = 5

TargetFiles = dict[str, TargetFile]
Change = Callable[[TargetFiles], TargetFiles | None]
"""Returns the new targets for the current ones; None if nothing changes."""

ReportProgress = Callable[[int, int], None]
"""Called with the bytes sent so far, and the total."""


class PushedBundle(NamedTuple):
    """The result of a push: sent files and bytes, bytes that the registry had; `is_new` if the bundle was signed."""

    name: str
    version: int
    sent_files: int
    sent_bytes: int
    known_bytes: int
    is_new: bool


class PushedConfiguration(NamedTuple):
    """The result of a push; `is_new` if this push signed the configuration."""

    name: str
    version: int
    sha256: str
    is_new: bool


def push_bundle(
    keyring: Keyring,
    registry: Registry,
    bundle: Bundle,
    extra_needs: Mapping[str, ExtraNeeds],
    now_s: float,
    *,
    report: ReportProgress = lambda _done, _total: None,
) -> PushedBundle:
    """Uploads a bundle's files and signs for them.

    Args:
        keyring: signs.
        registry: receives.
        bundle: whose files were checked when it was opened.
        extra_needs: requirements of variants beyond those in the manifest, by id.
        now_s: wall time.
        report: called with the progress.

    Raises:
        ConflictError: the registry has this version with other content.
        FirstlineError: a key or a file is missing, or the registry refuses.
    """
    targets, files = _bundle_targets(bundle, extra_needs)
    keyring.targets_signers(keyring.root().signed)  # before megabytes are sent
    sent_files, sent_bytes = _upload(registry, files, report)
    name, version = bundle.manifest.name, bundle.manifest.version
    change = _adding(targets, lambda path: bundle_of_target(path) == (name, version), f"{name} version {version}")
    versions = publish(keyring, registry, now_s, change=change)
    known_bytes = sum(file.size_bytes for file in files) - sent_bytes
    return PushedBundle(name, version, sent_files, sent_bytes, known_bytes, versions is not None)


def remove_bundle(keyring: Keyring, registry: Registry, name: str, version: int, now_s: float) -> None:
    """Stops signing for a bundle; the gateway deletes its files a day later.

    Raises:
        NotFoundError: it is not signed.
        ConflictError: an alias points to it.
    """
    registry.bundle(name, version)
    change = _removing(lambda path: bundle_of_target(path) == (name, version))
    if publish(keyring, registry, now_s, change=change) is None:
        raise NotFoundError(f"The registry has no {name} version {version}; `firstline model list` shows them.")


def push_configuration(keyring: Keyring, registry: Registry, file: Path, now_s: float) -> PushedConfiguration:
    """Uploads a configuration and signs for it.

    Raises:
        ConfigError: the file cannot be read, or is not a configuration.
        ConflictError: the registry has this version with other content.
        FirstlineError: a key is missing, or the registry refuses.
    """
    with naming(file):
        content = read_limited(file, LIMIT_BYTES)
    configuration = parse_configuration(content, str(file))
    sha256 = hashlib.sha256(content).hexdigest()
    path = configuration_path(configuration.name, configuration.version)
    keyring.targets_signers(keyring.root().signed)  # before anything is sent
    _upload(registry, [LocalFile(file, sha256, len(content))])
    target = TargetFile(len(content), {"sha256": sha256}, path)
    what = f"the configuration {configuration.name} version {configuration.version}"
    versions = publish(keyring, registry, now_s, change=_adding({path: target}, lambda each: each == path, what))
    return PushedConfiguration(configuration.name, configuration.version, sha256, versions is not None)


def remove_configuration(keyring: Keyring, registry: Registry, name: str, version: int, now_s: float) -> None:
    """Stops signing for a configuration; devices that run it keep it until another one is desired.

    Raises:
        NotFoundError: it is not signed.
    """
    path = configuration_path(name, version)
    if publish(keyring, registry, now_s, change=_removing(lambda each: each == path)) is None:
        raise NotFoundError(
            f"The registry has no configuration {name} version {version}; `firstline config list` shows them."
        )


def publish(
    keyring: Keyring,
    registry: Registry,
    now_s: float,
    *,
    change: Change = lambda _targets: None,
    renew: bool = False,
    recover: bool = False,
) -> dict[str, int] | None:
    """Publishes every root metadata and the targets, and signs them again if necessary.

    Args:
        keyring: has the keys.
        registry: becomes current.
        now_s: wall time.
        change: changes to the targets.
        renew: always sign the targets again, even if they have expired.
        recover: sign the last targets again if the registry is behind this keyring, e.g. after a restored backup.

    Returns:
        The version of each role's metadata now; None where nothing had to change.

    Raises:
        ConflictError: other machines keep publishing.
        FirstlineError: a key is missing, the registry is not to be believed, or refuses.
    """
    for _ in range(_TRIES - 1):
        try:
            return _publish(keyring, registry, now_s, change, renew=renew, recover=recover)
        except ConflictError as error:
            if "published since" not in error.message:
                raise
    return _publish(keyring, registry, now_s, change, renew=renew, recover=recover)


def _publish(
    keyring: Keyring, registry: Registry, now_s: float, change: Change, *, renew: bool, recover: bool
) -> dict[str, int] | None:
    published = {role.role: role.version for role in registry.status().roles}
    fresh: list[bytes] = [
        path.read_bytes() for version, path in keyring.roots().items() if version > published.get(Root.type, 0)
    ]
    root: Root = keyring.root().signed
    current: Metadata[Any] = keyring.targets()
    version = current.signed.version
    if version > published.get(Targets.type, version):
        # The registry went back: only this machine has the last targets.
        if not recover:
            raise MetadataRollbackError(
                f"The registry has targets of version {published[Targets.type]}, and version {version} was published "
                "from here: it went back, as after a restored backup. Publish again: `firstline keys publish "
                "--gateway URL`."
            )
        renew, version = True, version + 1
    elif Targets.type in published:
        # A compromised gateway must not make this machine sign the metadata of others. Renewing ignores expiry.
        judged_s = 0.0 if renew else now_s
        trust = Trust(keyring.trust, registry.metadata, anchor=keyring.anchor.read_bytes(), now_s=lambda: judged_s)
        try:
            current = trust.verified_targets()
        except SignatureError as error:
            raise SignatureError(
                f"{error.message} If {keyring.folder} does not hold the keys that published this registry's first "
                "root, name the folder that does with --keys."
            ) from error
        version = current.signed.version + 1
    targets = change(dict(current.signed.targets))
    signs_again = targets is not None or renew or not roles.allows(root, current)
    if signs_again:
        current = roles.new_targets(dict(current.signed.targets) if targets is None else targets, version, now_s)
        roles.sign(current, keyring.targets_signers(root))
    if signs_again or Targets.type not in published:
        fresh.append(current.to_bytes())
    if not fresh:
        return None
    versions = registry.publish(fresh)
    keyring.keep_targets(current)
    return versions


def _adding(new: Mapping[str, TargetFile], belongs: Callable[[str], bool], what: str) -> Change:
    """Returns the change that adds a bundle or a configuration, whose targets' paths `belongs` recognises."""

    def change(current: TargetFiles) -> TargetFiles | None:
        present = {path: target for path, target in current.items() if belongs(path)}
        if not present:
            return {**current, **new}
        if _content(present) == _content(new):
            return None
        raise ConflictError(
            f"The registry has {what} with other content. The content of a version never changes: give the new "
            "content a higher version."
        )

    return change


def _removing(belongs: Callable[[str], bool]) -> Change:
    def change(current: TargetFiles) -> TargetFiles | None:
        left = {path: target for path, target in current.items() if not belongs(path)}
        return left if len(left) < len(current) else None

    return change


def _content(targets: Mapping[str, TargetFile]) -> dict[str, object]:
    return {path: target.to_dict() for path, target in targets.items()}


def _upload(
    registry: Registry, files: Sequence[LocalFile], report: ReportProgress = lambda _done, _total: None
) -> tuple[int, int]:
    """Uploads the files that the registry does not have; returns how many files and bytes were sent."""
    total, done, sent_files, sent_bytes = sum(file.size_bytes for file in files), 0, 0, 0

    def advance(size_bytes: int) -> None:
        nonlocal done
        done += size_bytes
        report(done, total)

    for file in files:
        if registry.has(file):
            advance(file.size_bytes)
        else:
            registry.send(file, advance)
            sent_files, sent_bytes = sent_files + 1, sent_bytes + file.size_bytes
    return sent_files, sent_bytes


def _bundle_targets(bundle: Bundle, extra_needs: Mapping[str, ExtraNeeds]) -> tuple[TargetFiles, list[LocalFile]]:
    """Returns the signed targets of a bundle by target path, and its files.

    Raises:
        IntegrityError: a file is missing.
        ConfigError: the bundle does not have a variant that has extra requirements.
    """
    manifest = bundle.manifest
    unknown = set(extra_needs) - {model.id for model in manifest.edge}
    if unknown:
        variants = ", ".join(model.id for model in manifest.edge)
        raise ConfigError(f"{manifest.name} has no edge variant {', '.join(sorted(unknown))}; it has {variants}.")
    sizes = {artefact.file: (artefact.sha256, artefact.size_bytes) for artefact in manifest.artefacts}
    sizes[MANIFEST_NAME] = _digest_and_size(bundle.path / MANIFEST_NAME)
    targets, files = {}, []
    for file, custom in target_fields(manifest, extra_needs).items():
        if not (bundle.path / file).is_file():
            raise IntegrityError(f"{bundle.path / file} is missing; a bundle is pushed whole.")
        sha256, size_bytes = sizes[file]
        path = target_path(manifest.name, manifest.version, file)
        fields = {"custom": msgspec.json.decode(msgspec.json.encode(custom))}  # as it is read back
        targets[path] = TargetFile(size_bytes, {"sha256": sha256}, path, fields)
        files.append(LocalFile(bundle.path / file, sha256, size_bytes))
    return targets, list({file.sha256: file for file in files}.values())


def _digest_and_size(path: Path) -> tuple[str, int]:
    with naming(path, refusal=IntegrityError), path.open("rb") as stream:
        return file_digest(stream, "sha256").hexdigest(), stream.tell()
