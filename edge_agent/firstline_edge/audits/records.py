"""Stored audit findings of a device about its certificates: one file with a line of JSON and a checksum.

The key of a record covers the certificate, its inputs and the threshold. If any of them changes, the key changes and
the earlier record no longer applies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from firstline_core.errors import ConfigError, IntegrityError
from firstline_core.routing import audit
from firstline_core.routing.audit import AuditState
from firstline_core.routing.certificate import Certificate
from firstline_core.routing.tightening import EVERYTHING
from firstline_core.storage.files import DAMAGED, make_folder, read_checked, set_aside, with_checksum, write_whole
from firstline_core.telemetry.logs import logger

log = logger(__name__)

FORMAT = 1
_UNKNOWN = "Whether there was an alarm is not known, so answers are not certified until a newly certified bundle comes."
_ALARM = ("alarmed", "cause", "alarmed_wall_s", "tightened", "escalates_all", "escalations_per_hour")
_RECORDS_KEPT = 64  # records of absent bundles: the alarm applies again when the folder returns


class Record(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The findings about one certificate in the field.

    Attributes:
        model, version: name and version of the bundle, for display only.
        proof: sha256 of the certificate itself.
        test: sequential test of the threshold in use; a tightened threshold starts a new test.
        alarmed: the audits of this device or of the fleet found the contract broken, or the findings are lost.
        cause: sentence that gives the alarm's cause.
        alarmed_wall_s: wall time of the alarm; 0 without one.
        tightened: raised threshold for accepting edge answers; None for the certificate's.
        escalates_all: no edge answer is accepted.
        escalations_per_hour: the gateway's quota; None without one.
        fleet_devices: the largest reported number of devices that audit the contract; 1 without a report.
        drawn, agreed, disagreed, lost: numbers of audits; the other drawn audits are in progress.
        scores: histogram of the latest scores, in the certificate's bins.
    """

    model: str
    version: str
    proof: str = ""
    test: AuditState
    alarmed: bool = False
    cause: str = ""
    alarmed_wall_s: float = 0.0
    tightened: float | None = None
    escalates_all: bool = False
    escalations_per_hour: float | None = None
    fleet_devices: int = 1
    drawn: int = 0
    agreed: int = 0
    disagreed: int = 0
    lost: int = 0
    scores: tuple[float, ...] = ()

    @property
    def threshold(self) -> float | None:
        """The raised threshold, infinite if no edge answer is accepted; None for the certificate's."""
        return EVERYTHING if self.escalates_all else self.tightened


class _Head(msgspec.Struct):
    format: int


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    records: dict[str, Record]


def key_of(model: str, version: str, certificate: Certificate, epsilon: float) -> str:
    """Returns the sha256 of everything that a record depends on.

    Args:
        model: name of the bundle.
        version: version of the bundle.
        certificate: the certificate in use.
        epsilon: the disagreement rate that the audits test.
    """
    identity = (
        *(model, version, certificate.edge_digest, certificate.full_digest, certificate.score_digest),
        *(certificate.threshold, epsilon),
    )
    return hashlib.sha256(msgspec.json.encode(identity)).hexdigest()


def begun(records: Mapping[str, Record], model: str, version: str, certificate: Certificate, epsilon: float) -> Record:
    """Returns a record with a new test; an alarm stays with the certificate in every version of the bundle.

    A version is a number that anybody can raise. Only another proof ends an alarm.

    Args:
        records: present records, the newest last.
        model: name of the bundle.
        version: version of the bundle.
        certificate: the certificate in use.
        epsilon: the disagreement rate that the audits test.
    """
    proof = hashlib.sha256(msgspec.json.encode(certificate)).hexdigest()
    record = Record(model=model, version=version, proof=proof, test=audit.begin(epsilon))
    alarmed = [old for old in records.values() if (old.model, old.proof) == (model, proof) and old.alarmed]
    for field in _ALARM if alarmed else ():
        setattr(record, field, getattr(alarmed[-1], field))
    return record


def encode(records: Mapping[str, Record]) -> bytes:
    """Returns the file's content: the latest records, the newest last."""
    latest = dict(list(records.items())[-_RECORDS_KEPT:])
    return with_checksum(msgspec.json.encode(_Document(FORMAT, latest)))


class RecordFile:
    """The file of records, written whole: after a power cut it is the old one or the new one.

    A file that cannot be read is set aside.

    Args:
        path: the file.

    Attributes:
        loss: why earlier records were lost, in sentences; "" if they were not.
        refusal: why the file cannot be written at the moment, in sentences; "" if it can.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.loss = self.refusal = ""

    @property
    def problem(self) -> str:
        """The problem with the file, in one or two sentences; "" if there is none."""
        return " ".join(filter(None, (self.loss, self.refusal)))

    def read(self) -> dict[str, Record]:
        """Returns the records; none if they are lost, which is logged."""
        try:
            return read(self._path)
        except IntegrityError as error:
            self.loss = f"{error.message} {_UNKNOWN}"
            log.error("audit records lost", error=self.loss)
            try:
                if self._path.exists():
                    set_aside(self._path)
            except OSError as refusal:
                log.error("file not set aside", path=str(self._path), error=str(refusal))
        except OSError as error:
            self.loss = f"{self._path} cannot be read: {error.strerror}. {_UNKNOWN}"
            log.error("audit records unreadable", error=self.loss)
        return {}

    def write(self, content: bytes) -> None:
        """Replaces the file; a disk error is logged once, and audits continue."""
        try:
            make_folder(self._path.parent)
            write_whole(self._path, content)
        except OSError as error:
            self.refused(str(error.strerror))
        else:
            self.refusal = ""

    def refused(self, why: str) -> None:
        """Notes that the system or the disk did not allow a write."""
        if not self.refusal:
            log.error("audit records not stored", path=str(self._path), error=why)
        self.refusal = f"{self._path} cannot be written: {why}. A restart would forget what audits found."


def read(path: Path) -> dict[str, Record]:
    """Returns the records, empty if there is no file; audits that were in progress when it was written count as lost.

    Raises:
        IntegrityError: the file is not what `write` wrote, or of a version that is not known here; or such a file was
            put aside, and nothing was written since.
        OSError: the disk refuses.
    """
    try:
        text = read_checked(path)
    except FileNotFoundError:
        aside = path.with_name(path.name + DAMAGED)
        if aside.exists():
            raise IntegrityError(f"{path} was set aside as {aside.name}, for it could not be read.") from None
        return {}
    try:
        if (found := msgspec.json.decode(text, type=_Head).format) != FORMAT:
            raise IntegrityError(f"{path} has format {found}; this version of Firstline reads {FORMAT}.")
        document = msgspec.json.decode(text, type=_Document)
        for record in document.records.values():
            audit.check(record.test)
            record.lost = record.drawn - record.agreed - record.disagreed
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ConfigError) as error:
        raise IntegrityError(f"{path} cannot be read: {error}") from error
    return document.records
