"""Uploads a bundle to a registry.

Files that the registry already has are skipped, so an interrupted push can be resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from firstline.release.keyring import Keyring
from firstline.release.listing import listing, with_bundle, without
from firstline.release.publishing import publish
from firstline.release.registry import Registry
from firstline_core.bundle.store import Bundle
from firstline_core.errors import NotFoundError
from firstline_core.fleet.target import ExtraNeeds

ReportProgress = Callable[[int, int], None]
"""Called with the bytes sent so far, and the total."""


class Pushed(NamedTuple):
    """The result of a push: sent files and bytes, bytes that the registry had; `is_new` if the bundle was signed."""

    name: str
    version: int
    sent_files: int
    sent_bytes: int
    known_bytes: int
    is_new: bool


def push(
    keyring: Keyring,
    registry: Registry,
    bundle: Bundle,
    asked: Mapping[str, ExtraNeeds],
    now_s: float,
    *,
    with_full: bool = True,
    report: ReportProgress = lambda _done, _total: None,
) -> Pushed:
    """Sends a bundle's files and signs for them.

    Args:
        keyring: signs.
        registry: receives.
        bundle: whose files are whole.
        asked: requirements of variants, by id.
        now_s: wall time.
        with_full: the full model too.
        report: hears of the progress.

    Raises:
        ConflictError: the registry has this version with other content.
        FirstlineError: a key or a file is missing, or the registry refuses.
    """
    targets, files = listing(bundle, asked, with_full=with_full)
    keyring.targets_signers(keyring.root().signed)  # before megabytes are sent
    total, done, sent_files, sent_bytes = sum(file.size_bytes for file in files), 0, 0, 0

    def one_more(size_bytes: int) -> None:
        nonlocal done
        done += size_bytes
        report(done, total)

    for file in files:
        if registry.has(file):
            one_more(file.size_bytes)
        else:
            registry.send(file, one_more)
            sent_files, sent_bytes = sent_files + 1, sent_bytes + file.size_bytes
    versions = publish(keyring, registry, now_s, change=lambda current: with_bundle(current, targets))
    name, version = bundle.manifest.name, bundle.manifest.version
    return Pushed(name, version, sent_files, sent_bytes, total - sent_bytes, versions is not None)


def remove(keyring: Keyring, registry: Registry, name: str, version: int, now_s: float) -> None:
    """Signs for a bundle no more; the gateway forgets its files a day later.

    Raises:
        NotFoundError: it is not signed for.
        ConflictError: an alias points to it.
    """
    entry = registry.bundle(name, version)
    if publish(keyring, registry, now_s, change=lambda current: without(current, entry.name, entry.version)) is None:
        raise NotFoundError(f"The registry has no {name} version {version}.")
