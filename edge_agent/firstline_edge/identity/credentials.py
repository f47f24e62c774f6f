"""The device's credentials at work: one TLS context that every connection to gateway and broker is made with."""

from __future__ import annotations

import ssl
from email.utils import parsedate_to_datetime

from firstline_core.clock import Clock
from firstline_core.telemetry.logs import logger
from firstline_edge.identity.files import IdentityFiles, Written
from firstline_edge.identity.time_floor import TimeFloor
from firstline_edge.identity.tls import DeviceContext, device_context, shown
from firstline_edge.settings.identity import Identity

log = logger(__name__)


class Credentials:
    """The certificate that an agent shows, and the authorities that it trusts.

    A file that is damaged costs the links and never the agent: they are refused then, and `problem` says why.

    Args:
        files: where they lie.
        identity: as read from there.
        written: what `files.written` said before it was read.
        clock: the device's.

    Attributes:
        identity: of the certificate that new connections show.
        written: which writing of the files that was, `IdentityFiles.written`: certificates of one second say the same.
        context: one for the whole process: a renewed certificate is loaded into it, connections go on with the old.
        problem: in a sentence; "" if there is none.
    """

    def __init__(self, files: IdentityFiles, identity: Identity, written: Written, clock: Clock) -> None:
        self.files = files
        self.written = written
        self.identity = identity
        self.floor = TimeFloor(files.time, clock, least_s=identity.not_before_s, most_s=identity.authority_ends_s)
        self.context: DeviceContext = device_context(self._fault_of)
        self.problem = ""
        self._vouched_until_s = 0.0  # when the certificate ends that the latest server showed
        self.load()

    def renewed(self, identity: Identity, written: Written) -> None:
        """Has new connections show the certificate that the files hold now, as of that writing of them."""
        self.identity, self.written = identity, written
        self.floor.extend(identity.not_before_s, identity.authority_ends_s)
        self.load()

    def load(self) -> bool:
        """Has new connections show what the files hold; whether they can."""
        try:
            self.context.load_verify_locations(self.files.authorities)
            self.context.load_cert_chain(self.files.device)
        except (OSError, ssl.SSLError) as error:  # the one is the other's base, but reads better so
            if not self.problem:
                log.error("the device's certificate cannot be used", folder=str(self.files.folder), error=str(error))
            self.problem = (
                f"The certificate in {self.files.folder} cannot be used ({error}); join again with "
                "`edge-agent join URL --token-file FILE --force`."
            )
            return False
        self.problem = ""
        return True

    def heard(self, now_s: float) -> None:
        """Takes up the time (wall, seconds) that came over a connection made with `context`."""
        self.floor.heard(now_s, self._vouched_until_s)

    def heard_date(self, date: str) -> None:
        """The same, of an answer's `Date` header."""
        try:
            self.heard(parsedate_to_datetime(date).timestamp())
        except (ValueError, OverflowError):
            log.debug("the gateway sent a date that is none", date=date[:40])

    def _fault_of(self, begins_s: float, ends_s: float) -> str:
        # That a certificate of our authority begins says that it is later: a clock that says otherwise is behind.
        self.floor.heard(begins_s, ends_s)
        now_s = self.floor.now_s()
        if now_s <= ends_s:
            self._vouched_until_s = ends_s
            return ""
        whose = "this device's clock" if self.floor.believes_clock else "what the gateway said last"
        return f"the server's certificate ended at {shown(ends_s)}, and by {whose} it is {shown(now_s)}"
