"""A folder of signing keys, with the root and targets metadata that they signed.

    root-3f9a2c1b.key       three keys; two of them sign a new root: keep them apart and offline
    targets-77d01e5a.key    signs for bundles
    metadata/1.root.json    every root metadata; devices start with the first
    metadata/targets.json   the targets that were signed last
    metadata/draft.json     a root metadata that lacks signatures
    trust/                  verified metadata of the registry, which prevents a rollback

A private key that was moved away signs again if its file is named in a command or put back.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from securesystemslib.signer import CryptoSigner
from tuf.api.metadata import Metadata, Root, Targets

from firstline.release import roles
from firstline_core.errors import ConfigError, UpdateError
from firstline_core.fleet.registry import OnlineKey
from firstline_core.storage.files import did_you_mean_file, make_folder, naming, write_whole

_ROOTS = "*.root.json"
_ROOT = re.compile(r"([1-9][0-9]{0,8})\.root\.json")
_KEY = re.compile(r"(root|targets)-([0-9a-f]{8})\.key")
SUFFIX = ".key"
SHORT = 8
"""Length of a short key id, in characters."""

_LIMIT_BYTES = 16_384
_PUBLIC_TO_OTHERS = 0o077


class Keyring:
    """The keys and metadata in one folder.

    Args:
        folder: folder of the keys.
        passphrase: passphrase of the encrypted keys.
        elsewhere: key files outside the folder.

    Raises:
        ConfigError: one of those does not exist, or does not have the name of a key.
    """

    def __init__(self, folder: Path, passphrase: str = "", elsewhere: Sequence[Path] = ()) -> None:
        self.folder = folder
        self.metadata = folder / "metadata"
        self.trust = folder / "trust"
        self._passphrase = passphrase
        self._elsewhere = elsewhere
        for file in elsewhere:
            if not file.exists():
                raise ConfigError(f"{file} does not exist{did_you_mean_file(file)}")
            if _KEY.fullmatch(file.name) is None or not file.is_file():
                raise ConfigError(f"{file} is not a key, such as root-3f9a2c1b.key; name the file as `keys init` did.")

    @property
    def draft(self) -> Path:
        """The root metadata that lacks signatures."""
        return self.metadata / "draft.json"

    @property
    def anchor(self) -> Path:
        """The first root metadata: given to devices, and the start of every verification."""
        return self.metadata / "1.root.json"

    def anchor_content(self) -> bytes:
        """Returns the first root metadata as bytes.

        Raises:
            ConfigError: the file is missing.
        """
        return self._read(self.anchor)

    def init(self, online: OnlineKey, now_s: float) -> list[Path]:
        """Creates the keys, and signs the first root and empty targets.

        Raises:
            ConfigError: there are keys already, or the folder cannot be written.
        """
        if any(self.metadata.glob(_ROOTS)):
            raise ConfigError(f"{self.folder} has keys already; `firstline keys get` shows them.")
        online_key = roles.public_key(online)
        with naming(self.folder, "written"):
            make_folder(self.folder)
            make_folder(self.metadata)
        keys = [write_key(self.folder, Root.type, self._passphrase) for _ in range(roles.ROOT_KEYS)]
        targets, targets_file = write_key(self.folder, Targets.type, self._passphrase)
        root = roles.new_root([signer.public_key for signer, _ in keys], targets.public_key, online_key, now_s)
        roles.sign(root, [signer for signer, _ in keys])
        first = roles.new_targets({}, 1, now_s)
        roles.sign(first, [targets])
        self.keep_targets(first)
        self._write(self.anchor.name, root.to_bytes())  # last: from then on there are keys
        return [*(file for _, file in keys), targets_file]

    def roots(self) -> dict[int, Path]:
        """Returns the paths of the fully signed root metadata by version."""
        versions = {}
        for path in self.metadata.glob(_ROOTS):
            match = _ROOT.fullmatch(path.name)
            if match is not None:
                versions[int(match[1])] = path
        if not versions:
            raise ConfigError(
                f"There are no keys in {self.folder}. Name the folder of the fleet's keys with --keys; if this fleet "
                "has no keys yet, `firstline keys init` makes them."
            )
        return dict(sorted(versions.items()))

    def root(self) -> Metadata[Root]:
        """Returns the newest fully signed root metadata."""
        version, path = list(self.roots().items())[-1]
        metadata: Metadata[Root] = roles.read_metadata(self._read(path), Root, str(path))
        if metadata.signed.version != version:
            raise ConfigError(f"{path} has version {metadata.signed.version}; restore the file's name.")
        return metadata

    def targets(self) -> Metadata[Targets]:
        """Returns the targets metadata that this machine signed last."""
        path = self.metadata / "targets.json"
        metadata: Metadata[Targets] = roles.read_metadata(self._read(path), Targets, str(path))
        return metadata

    def keep_targets(self, targets: Metadata[Targets]) -> None:
        """Stores newly signed targets metadata."""
        self._write("targets.json", targets.to_bytes())

    def files(self) -> dict[str, Path]:
        """Returns the available private key files, in the folder or named, by short key id."""
        paths = [*self.folder.glob(f"*{SUFFIX}"), *self._elsewhere]
        return {match[2]: path for path in paths if (match := _KEY.fullmatch(path.name)) is not None}

    def signers(self, keyids: Sequence[str]) -> list[CryptoSigner]:
        """Returns those of the given keys whose files are available.

        Raises:
            ConfigError: one cannot be read, or is not what its name says.
        """
        files, signers = self.files(), []
        for keyid in keyids:
            file = files.get(short(keyid))
            if file is not None:
                signer = read_key(file, self._passphrase)
                if signer.public_key.keyid != keyid:
                    raise ConfigError(f"{file} holds another key than its name says; restore the file's name.")
                signers.append(signer)
        return signers

    def targets_signers(self, root: Root) -> list[CryptoSigner]:
        """Returns the available keys that sign bundles.

        Raises:
            ConfigError: none is here.
        """
        keyids = root.roles[Targets.type].keyids
        signers = self.signers(keyids)
        if not signers:
            files = ", ".join(f"targets-{short(keyid)}{SUFFIX}" for keyid in keyids)
            raise ConfigError(f"None of the keys that may sign for bundles is in {self.folder}: {files}.")
        return signers

    def replace_key(self, role: str, old: str, now_s: float, *, never: str = "") -> Path:
        """Replaces a root or targets key by a new one, in a draft of the next root.

        Args:
            role: "root" or "targets".
            old: id of the replaced key.
            now_s: wall time.
            never: id of a key that must not sign.

        Returns:
            The new key's file.
        """
        root = self._next_root(now_s)
        signer, file = write_key(self.folder, role, self._passphrase)
        roles.replace_key(root.signed, role, old, signer.public_key)
        self.sign(root, never=never)
        return file

    def name_online(self, online: OnlineKey, now_s: float) -> None:
        """Replaces the online key in the next root.

        Raises:
            ConfigError: the root names this key already: the gateway does not know the root.
        """
        before = self.root()
        if any(online.keyid in before.signed.roles[role].keyids for role in roles.ONLINE):
            raise ConfigError(
                "The gateway offers the online key that the root names already, because it does not have this root; "
                "`firstline keys publish` brings it there."
            )
        root = self._next_root(now_s)
        new = roles.public_key(online)
        for role in roles.ONLINE:
            for keyid in list(root.signed.roles[role].keyids):
                root.signed.revoke_key(keyid, role)
            root.signed.add_key(new, role)
        self.sign(root)

    def renew_root(self, now_s: float) -> None:
        """Prolongs the root: the next root differs only in its expiry."""
        self.sign(self._next_root(now_s))

    def sign(self, root: Metadata[Root], *, never: str = "") -> dict[str, int]:
        """Signs a next root with every available root key; stores it as root if fully signed, else as draft.

        Returns:
            How many signatures it lacks: see `roles.missing`.
        """
        before = self.root()
        roles.check_keys(root.signed)
        keyids = dict.fromkeys([*before.signed.roles[Root.type].keyids, *root.signed.roles[Root.type].keyids])
        roles.sign(root, self.signers([keyid for keyid in keyids if keyid != never]))
        lacking = roles.missing(root, before)
        if lacking:
            self._write(self.draft.name, root.to_bytes())
        else:
            self._write(f"{root.signed.version}.root.json", root.to_bytes())
            self.draft.unlink(missing_ok=True)
        return lacking

    def open_draft(self) -> Metadata[Root]:
        """Returns the root metadata that lacks signatures.

        Raises:
            ConfigError: there is none.
        """
        if not self.draft.exists():
            raise ConfigError(f"There is no draft in {self.metadata}; nothing lacks a signature.")
        draft: Metadata[Root] = roles.read_metadata(self._read(self.draft), Root, str(self.draft))
        return draft

    def lacking(self) -> dict[str, int]:
        """Returns the number of signatures that the draft lacks, by role; empty without a draft."""
        return roles.missing(self.open_draft(), self.root()) if self.draft.exists() else {}

    def _next_root(self, now_s: float) -> Metadata[Root]:
        """Returns the next root metadata, unsigned.

        Raises:
            ConfigError: the draft of another one lacks signatures.
        """
        if self.draft.exists():
            raise ConfigError(
                f"{self.draft} lacks signatures; give it those (`firstline keys sign`), or remove it, before the next."
            )
        return roles.next_root(self.root(), now_s)

    def _read(self, path: Path) -> bytes:
        with naming(f"The keys' folder {self.folder} cannot be used: {path}"):
            return path.read_bytes()

    def _write(self, name: str, content: bytes) -> None:
        with naming(self.metadata / name, "written", UpdateError):
            write_whole(self.metadata / name, content)


def short(keyid: str) -> str:
    """Returns the short key id that commands and file names use."""
    return keyid[:SHORT]


def write_key(folder: Path, role: str, passphrase: str = "") -> tuple[CryptoSigner, Path]:
    """Creates a key in a file that is named after the role and the key's id.

    Raises:
        ConfigError: it cannot be written.
    """
    key = Ed25519PrivateKey.generate()
    signer = CryptoSigner(key)
    encryption: KeySerializationEncryption = NoEncryption()
    if passphrase:
        encryption = BestAvailableEncryption(passphrase.encode(errors="surrogateescape"))
    file = folder / f"{role}-{short(signer.public_key.keyid)}{SUFFIX}"
    with naming(file, "written"):
        write_whole(file, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
    return signer, file


def read_key(file: Path, passphrase: str = "") -> CryptoSigner:
    """Reads a key from its file.

    Raises:
        ConfigError: the file cannot be read, other users can read it, it is not an Ed25519 key, or the passphrase is
            wrong.
    """
    with naming(file), file.open("rb") as stream:
        mode = os.fstat(stream.fileno()).st_mode
        content = stream.read(_LIMIT_BYTES)
    if mode & _PUBLIC_TO_OTHERS:
        raise ConfigError(
            f"{file} can be read by others than its owner; `chmod 600 {shlex.quote(str(file))}`, and ask who has "
            "read it."
        )
    encrypted = b"BEGIN ENCRYPTED PRIVATE KEY" in content
    if encrypted and not passphrase:
        raise ConfigError(
            f"{file} is encrypted; name a file with its passphrase (--passphrase-file), or put it into "
            "FIRSTLINE_KEY_PASSPHRASE."
        )
    try:
        key = load_pem_private_key(content, passphrase.encode(errors="surrogateescape") if encrypted else None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        why = "is the passphrase right?" if encrypted else f"{error}."
        raise ConfigError(f"{file} cannot be used as a private key: {why}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{file} holds another kind of key; `firstline keys` makes Ed25519 keys.")
    return CryptoSigner(key)
