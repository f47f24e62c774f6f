"""A TUF repository in memory, which a test leads astray: it implements the port that devices fetch metadata by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from securesystemslib.signer import CryptoSigner
from tuf.api.metadata import Metadata, MetaFile, Root, Signed, Snapshot, TargetFile, Targets, Timestamp

from firstline_core.errors import NotFoundError

START = datetime(2027, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
ROLES = (Root.type, Targets.type, Snapshot.type, Timestamp.type)


class SignedRepository:
    """Keys, metadata and what a server shows of it.

    Attributes:
        files: what is served, by name; a test puts what it likes there.
        asked: the names that were fetched, in order.
        parts: how a file's bytes come.
    """

    def __init__(self, now: datetime = START) -> None:
        self.signers: dict[str, list[CryptoSigner]] = {
            role: [CryptoSigner.generate_ed25519() for _ in range(3 if role == Root.type else 1)] for role in ROLES
        }
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.parts: Callable[[str, bytes], Iterator[bytes]] = lambda _name, content: iter((content,))
        self.root = Root(expires=now + 365 * DAY, consistent_snapshot=True)
        for role, signers in self.signers.items():
            for signer in signers:
                self.root.add_key(signer.public_key, role)
        self.root.roles[Root.type].threshold = 2
        self.targets = Targets(expires=now + 90 * DAY)
        self.snapshot = Snapshot(expires=now + DAY)
        self.timestamp = Timestamp(expires=now + DAY)
        self.publish_root()
        self.publish()

    @property
    def anchor(self) -> bytes:
        """The first root metadata, which devices are given."""
        return self.files["1.root.json"]

    def fetch(self, name: str) -> Iterator[bytes]:
        """See `MetadataSource`."""
        self.asked.append(name)
        if name not in self.files:
            raise NotFoundError(f"There is no {name}")
        yield from self.parts(name, self.files[name])

    def add(self, path: str, content: bytes, **custom: object) -> None:
        """Lists a file among the targets to be published."""
        found = TargetFile.from_data(path, content, ["sha256"])
        found.unrecognized_fields["custom"] = custom
        self.targets.targets[path] = found

    def publish_root(self, *, by: list[CryptoSigner] | None = None) -> None:
        signers = self.signers[Root.type] if by is None else by
        self.files[f"{self.root.version}.root.json"] = self.signed(self.root, signers)

    def publish(self, *, targets: bool = True) -> None:
        """Signs targets, a snapshot of them and a timestamp of that, each as the next version but for the first."""
        if "timestamp.json" in self.files:
            self.targets.version += targets
            self.snapshot.version += 1
            self.timestamp.version += 1
        content = self.signed(self.targets)
        self.files[f"{self.targets.version}.targets.json"] = content
        self.snapshot.meta["targets.json"] = MetaFile.from_data(self.targets.version, content, ["sha256"])
        self.snapshot.meta["targets.json"].length = None
        self.publish_snapshot()

    def publish_snapshot(self) -> None:
        content = self.signed(self.snapshot)
        self.files[f"{self.snapshot.version}.snapshot.json"] = content
        self.timestamp.snapshot_meta = MetaFile.from_data(self.snapshot.version, content, ["sha256"])
        self.timestamp.snapshot_meta.length = None
        self.publish_timestamp()

    def publish_timestamp(self) -> None:
        self.files["timestamp.json"] = self.signed(self.timestamp)

    def signed(self, what: Signed, signers: list[CryptoSigner] | None = None) -> bytes:
        found: Metadata[Any] = Metadata(what)
        for signer in self.signers[what.type] if signers is None else signers:
            found.sign(signer, append=True)
        return found.to_bytes()

    def replace_key(self, role: str, old: CryptoSigner | None = None) -> CryptoSigner:
        """Puts a new key in an old one's place (the first, where none is named), in the root to be published."""
        replaced = old or self.signers[role][0]
        new = CryptoSigner.generate_ed25519()
        self.root.revoke_key(replaced.public_key.keyid, role)
        self.root.add_key(new.public_key, role)
        self.signers[role] = [signer for signer in self.signers[role] if signer is not replaced] + [new]
        return new
