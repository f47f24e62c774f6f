"""The device's credentials in a running agent: one TLS context for every connection to gateway and broker."""

from __future__ import annotations

import ssl
from email.utils import parsedate_to_datetime

from firstline_core.clock import Clock
from firstline_core.errors import ConfigError
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.wording import time_text
from firstline_edge.identity.files import JOINED_AGAIN, NOT_STORED, IdentityFiles, Revision
from firstline_edge.identity.time_floor import TimeFloor
from firstline_edge.identity.tls import DeviceContext, device_context
from firstline_edge.settings.identity import IdentityDocument
from firstline_edge.settings.settings import EdgeSettings

log = logger(__name__)


class Credentials:
    """The certificate that an agent presents, and the authorities that it trusts.

    A damaged file costs the links and never the agent: they are refused then, and `problem` says why.

    Args:
        files: store the credentials.
        identity: as read from the files.
        revision: of the files before they were read.
        clock: of the device.

    Attributes:
        identity: of the certificate that new connections present.
        revision: of the files that were loaded; certificates of the same second have the same times.
        context: one for the whole process: a renewed certificate is loaded into it, connections keep the old one.
        problem: one sentence; "" if there is none.
    """

    def __init__(self, files: IdentityFiles, identity: IdentityDocument, revision: Revision, clock: Clock) -> None:
        self.files = files
        self.revision = revision
        self.identity = identity
        self.floor = TimeFloor(files.time, clock, least_s=identity.not_before_s, most_s=identity.authority_ends_s)
        self.context: DeviceContext = device_context(self._fault_of)
        self.problem = ""
        self._server_ends_s = 0.0  # when the certificate of the latest server ends
        self.load()

    def use_certificate(self, identity: IdentityDocument, revision: Revision) -> None:
        """Makes new connections present the certificate in the files of this revision."""
        self.identity, self.revision = identity, revision
        self.floor.extend(identity.not_before_s, identity.authority_ends_s)
        self.load()

    def load(self) -> None:
        """Loads the files for new connections."""
        try:
            self.context.load_verify_locations(self.files.authorities)
            self.context.load_cert_chain(self.files.device)
        except (OSError, ssl.SSLError) as error:  # SSLError is an OSError, named for the reader
            if not self.problem:
                log.error("device certificate unusable", folder=str(self.files.folder), error=str(error))
            self.problem = (
                f"The certificate in {self.files.folder} cannot be used ({error}); join again with "
                "`edge-agent join URL --token-file FILE --force`, and restart the agent."
            )
        else:
            self.problem = ""

    def observe_time(self, now_s: float) -> None:
        """Takes up the time (wall, seconds) that came over a connection made with `context`."""
        self.floor.observe(now_s, self._server_ends_s)

    def observe_date(self, date: str) -> None:
        """Takes up the time in an answer's `Date` header."""
        try:
            self.observe_time(parsedate_to_datetime(date).timestamp())
        except (ValueError, OverflowError):
            log.debug("gateway date invalid", date=date[:40])

    def _fault_of(self, begins_s: float, ends_s: float) -> str:
        # A certificate of a trusted authority is not issued before it begins: a clock that shows less is behind.
        self.floor.observe(begins_s, ends_s)
        now_s = self.floor.now_s()
        if now_s <= ends_s:
            self._server_ends_s = ends_s
            return ""
        clock = "this device's clock" if self.floor.trusts_clock else "what the gateway said last"
        return f"the server's certificate ended at {time_text(ends_s)}, and by {clock} it is {time_text(now_s)}"


class DeviceIdentity:
    """The identity of one device, which may have none.

    Args:
        settings: where the identity is stored, and whether it is used.
        clock: of the device.

    Attributes:
        folder: stores the identity.
        credentials: None on a device that has not joined, and if the identity is damaged.
    """

    def __init__(self, settings: EdgeSettings, clock: Clock) -> None:
        files = IdentityFiles(settings.state_dir)
        self.folder = files.folder
        self.credentials: Credentials | None = None
        self._clock = clock
        self._damage = ""
        if not settings.agent.use_identity:
            return
        try:
            revision, identity = files.revision(), files.read()
        except ConfigError as error:
            self._damage = error.message
            return
        if identity is not None:
            self.credentials = Credentials(files, identity, revision, clock)

    @property
    def problems(self) -> list[str]:
        """The problems, in sentences."""
        problems = [self._damage]
        if self.credentials is not None:
            problems.append(self.credentials.problem)
            if self.credentials.files.revision() not in (NOT_STORED, self.credentials.revision):
                problems.append(JOINED_AGAIN)
            if not self.credentials.floor.trusts_clock:
                problems.append(
                    f"The clock says {time_text(self._clock.wall_s())}, which cannot be; certificates are judged by "
                    f"what the gateway said last, {time_text(self.credentials.floor.floor_s)}. Set it: sudo "
                    "timedatectl set-ntp true"
                )
        return [problem for problem in problems if problem]

    def describe(self) -> dict[str, object] | None:
        """Returns the identity for `status`; None for a device that has not joined."""
        if self.credentials is None:
            return None
        identity = self.credentials.identity
        return {
            "device": identity.device,
            "gateway": identity.gateway,
            "not_after": time_text(identity.not_after_s),
            "authority": identity.authority,
        }
