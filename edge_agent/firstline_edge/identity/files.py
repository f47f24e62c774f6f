"""The identity on the disk: `identity/` in the state directory, mode 0700, every file 0600 and replaced as a whole.

ca.pem          the authorities that this device trusts, the gateway's and the broker's
device.pem      its key and its certificate in one file, so that the two can only change together
identity.json   its name, the addresses of gateway and broker, and the certificate's times; written last
joining.pem     the key of an unfinished enrolment: a gateway gives the same key the same certificate again
time            the newest time that a gateway vouched for
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Literal

import msgspec

from firstline_core.errors import CapacityError, ConfigError
from firstline_core.storage.files import locked_folder, make_folder, system_reason, with_checksum, write_whole
from firstline_edge.settings.identity import IdentityDocument, identity_path, read_identity, readable_identity

_LIMIT_BYTES = 1 << 20


Revision = tuple[int, int] | None
"""Identifies one version of the stored identity: inode and time of change of its file; None without an identity."""


class IdentityFiles:
    """Reads and writes the identity.

    Args:
        state_dir: the agent's.
    """

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.folder = identity_path(state_dir).parent
        self.authorities = self.folder / "ca.pem"
        self.device = self.folder / "device.pem"
        self.time = self.folder / "time"
        self._identity = identity_path(state_dir)
        self._joining = self.folder / "joining.pem"

    def read(self) -> IdentityDocument | None:
        """Returns the identity; None for a device that has not joined.

        Raises:
            ConfigError: the file cannot be used.
        """
        return read_identity(self.state_dir)

    def revision(self) -> Revision:
        """Returns the revision of the stored identity."""
        try:
            return _revision_of(self._identity.stat())
        except OSError:
            return None

    def save(
        self,
        identity: IdentityDocument,
        authorities_pem: str,
        key_pem: str,
        certificate_pem: str,
        replaces: Revision | Literal["any"] = "any",
    ) -> Revision:
        """Stores a new certificate; a power cut leaves the old one or the new one.

        Args:
            identity: to be stored with the certificate.
            authorities_pem: as the gateway gave them.
            key_pem: of the certificate.
            certificate_pem: as the gateway gave it.
            replaces: the revision that may be replaced; an unreadable identity is always replaced.

        Returns:
            The revision of the stored identity.

        Raises:
            CapacityError: the disk refuses.
            ConfigError: another revision is stored.
        """
        try:
            make_folder(self.folder)
            with locked_folder(self.folder):  # the agent may renew while `join` writes, and the files belong together
                if replaces not in ("any", self.revision()) and readable_identity(self.state_dir) is not None:
                    raise ConfigError("The device has joined again meanwhile, and that identity is not overwritten.")
                write_whole(self.authorities, authorities_pem.encode())
                write_whole(self.device, (key_pem + certificate_pem).encode())
                status = write_whole(self._identity, with_checksum(msgspec.json.encode(identity)))
                self._joining.unlink(missing_ok=True)
                self._give_to_owner()
        except OSError as error:
            raise self._refused(error) from error
        return _revision_of(status)

    def joining_key(self) -> str | None:
        """Returns the key of an unfinished enrolment; None if there is none."""
        try:
            with self._joining.open("rb") as stream:
                return stream.read(_LIMIT_BYTES).decode(errors="replace")
        except OSError:
            return None

    def save_joining_key(self, key_pem: str) -> None:
        """Stores the key of an enrolment before the gateway receives its request.

        Raises:
            CapacityError: the disk refuses.
        """
        try:
            make_folder(self.folder)
            write_whole(self._joining, key_pem.encode())
        except OSError as error:
            raise self._refused(error) from error

    def _give_to_owner(self) -> None:
        """Gives files that root wrote to the owner of the state directory, as whom the agent runs.

        That user could have put a link to a file of root there, so links are not followed.
        """
        if os.geteuid() != 0:
            return
        owner = self.folder.parent.stat()
        for path in (self.folder, self.authorities, self.device, self._identity, self.time):
            # Root in a container may lack the right, and is the agent's user then; or there is no such file yet.
            with contextlib.suppress(OSError):
                os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)

    def _refused(self, error: OSError) -> CapacityError:
        return CapacityError(
            f"{self.folder} cannot be written: {system_reason(error)}; join as the agent's user, and free space there."
        )


def _revision_of(status: os.stat_result) -> Revision:
    return status.st_ino, status.st_mtime_ns
