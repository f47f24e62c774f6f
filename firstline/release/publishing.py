"""Publishes signed metadata to a registry, whose current state is verified before anything is signed on top of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tuf.api.metadata import Metadata, Root, TargetFile, Targets

from firstline.release import roles
from firstline.release.keyring import Keyring
from firstline.release.registry import Registry
from firstline_core.bundle.trust import Trust
from firstline_core.errors import ConflictError, MetadataRollbackError

# Of pushes at the same moment one is first; the others take up what it published.
_TRIES = 5

Change = Callable[[dict[str, TargetFile]], dict[str, TargetFile] | None]
"""From the targets that are current to those that are to be; None where nothing is to change."""


def verified(keyring: Keyring, registry: Registry, now_s: float) -> Metadata[Targets]:
    """The registry's targets, if it is to be believed: a compromised gateway must not make us sign metadata of others.

    Args:
        keyring: whose anchor it is verified by, and which remembers what was seen.
        registry: asked.
        now_s: the time to judge expiry by; 0 passes over it, for who is about to renew.

    Raises:
        UpdateError, LinkError: as `Trust.refresh`.
    """
    trust = Trust(keyring.trust, registry.metadata, anchor=keyring.anchor.read_bytes(), now_s=lambda: now_s)
    trust.refresh()
    return trust.targets


def publish(
    keyring: Keyring,
    registry: Registry,
    now_s: float,
    *,
    change: Change | None = None,
    renew: bool = False,
    recover: bool = False,
) -> dict[str, int] | None:
    """Publishes every root metadata and the targets, and signs them again if necessary.

    Args:
        keyring: has the keys.
        registry: becomes current.
        now_s: wall time.
        change: changes to the targets.
        renew: sign the targets again in any case, even if they have expired.
        recover: sign the last targets again if the registry is behind this keyring, e.g. after a restored backup.

    Returns:
        The version of each role's metadata now; None where nothing had to change.

    Raises:
        ConflictError: others kept publishing.
        FirstlineError: a key is missing, the registry is not to be believed, or refuses.
    """
    for _ in range(_TRIES - 1):
        try:
            return _publish(keyring, registry, now_s, change, renew, recover)
        except ConflictError as error:
            if "published since" not in error.message:
                raise
    return _publish(keyring, registry, now_s, change, renew, recover)


def _publish(  # noqa: PLR0917 (as `publish` has them)
    keyring: Keyring, registry: Registry, now_s: float, change: Change | None, renew: bool, recover: bool
) -> dict[str, int] | None:
    there = {role.role: role.version for role in registry.status().roles}
    fresh: list[bytes] = [
        path.read_bytes() for version, path in keyring.roots().items() if version > there.get(Root.type, 0)
    ]
    root: Root = keyring.root().signed
    current: Metadata[Any] = keyring.targets()
    version = current.signed.version
    if version > there.get(Targets.type, version):
        if not recover:
            raise MetadataRollbackError(
                f"The registry has targets of version {there[Targets.type]}, and version {version} was published from "
                "here: it went back, as after a restored backup. Publish anew: `firstline keys publish --gateway URL`."
            )
        renew, version = True, version + 1
    elif Targets.type in there:
        current = verified(keyring, registry, 0.0 if renew else now_s)
        version = current.signed.version + 1
    wanted = change(dict(current.signed.targets)) if change is not None else None
    if wanted is not None or renew or not roles.allows(root, current):
        if wanted is None:
            wanted = dict(current.signed.targets)
        current = roles.new_targets(wanted, version, now_s)
        roles.sign(current, keyring.targets_signers(root))
        fresh.append(current.to_bytes())
    elif Targets.type not in there:
        fresh.append(current.to_bytes())
    if not fresh:
        return None
    versions = registry.publish(fresh)
    keyring.keep_targets(current)
    return versions
