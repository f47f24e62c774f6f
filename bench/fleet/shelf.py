"""A registry without a server: what is signed, and its bytes; metadata is renewed as gateways do it."""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta

from msgspec import to_builtins

from bench.support.signed_repository import DAY, SignedRepository
from firstline_core.bundle.manifest import MANIFEST_NAME
from firstline_core.bundle.store import Bundle
from firstline_core.fleet.target import target_fields, target_path

_RENEW = timedelta(hours=12)


class Shelf:
    """Of one registry.

    Args:
        now: of its first publication.

    Attributes:
        repository: metadata, as The Update Framework has it, with keys of its own.
        blobs: bytes by their sha256.
    """

    def __init__(self, now: datetime) -> None:
        self.repository = SignedRepository(now)
        self.blobs: dict[str, bytes] = {}
        self._manifests: dict[int, str] = {}

    def add(self, bundle: Bundle) -> None:
        """Signs for a bundle."""
        manifest = bundle.manifest
        for inside, custom in target_fields(manifest).items():
            content = (bundle.path / inside).read_bytes()
            self.blobs[_sha256(content)] = content
            path = target_path(manifest.name, manifest.version, inside)
            self.repository.add(path, content, **to_builtins(custom))
            if inside == MANIFEST_NAME:
                self._manifests[manifest.version] = _sha256(content)
        self.repository.publish()

    def manifest_sha256(self, version: int) -> str:
        """Of the version that is signed; "" where there is none."""
        return self._manifests.get(version, "")

    def damage(self, bundle: Bundle) -> None:
        """One bit of its edge model is another one from now on; what is signed stays."""
        sha256 = bundle.manifest.edge[0].artefact.sha256
        content = bytearray(self.blobs[sha256])
        content[len(content) // 2] ^= 1
        self.blobs[sha256] = bytes(content)

    def renew(self, now: datetime) -> None:
        """Puts off the end of what is signed online, where that is near."""
        found = self.repository
        if found.timestamp.expires - now < _RENEW:
            found.snapshot.expires = found.timestamp.expires = now + DAY
            found.publish(targets=False)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
