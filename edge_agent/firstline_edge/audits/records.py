"""Stored audit findings of a device about its certificates: one file with a line of JSON and a checksum.

The key of a record covers the certificate, its inputs and the threshold. If any of them changes, the key changes and
the earlier record no longer applies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from firstline_core.errors import ConfigError, IntegrityError
from firstline_core.routing import audit
from firstline_core.routing.audit import AuditState
from firstline_core.routing.certificate import ALL_ROWS, Certificate
from firstline_core.storage.files import DAMAGED, unreadable
from firstline_core.storage.structs import read_struct
from firstline_edge.state import StateFile

_UNKNOWN = "Whether there was an alarm is not known, so answers are not certified until a newly certified bundle comes."
_ABSENT_KEPT = 64  # records of absent bundles: the alarm applies again when the folder returns


class EventRecord(msgspec.Struct, forbid_unknown_fields=True):
    """The audits of one event, or of all rows.

    Attributes:
        test: sequential test of the threshold in use; a tightened threshold starts a new test.
        counted: number of audits in which the event can occur.
        occurred: number of audits in which it occurred; of all rows, in which the models disagreed.
    """

    test: AuditState
    counted: int = 0
    occurred: int = 0


class CertificateState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state of a certificate in the field; `certificate_states.py` lists the states, and the moves between them.

    Attributes:
        name: of the state.
        cause: why the certificate is void, as a sentence; "" while it is valid.
        event: whose promise was the first to be found broken; `ALL_ROWS` for that about all rows, and without an alarm.
        void_since_wall_s: wall time of the alarm, or of the loss of the records; 0 while it is valid.
        tightened: the threshold that an alarm raised, for accepting edge answers; None for the certificate's.
        escalates_all: no edge answer is accepted.
    """

    name: Literal["valid", "unknown", "broken_on_device", "broken_in_fleet"] = "valid"
    cause: str = ""
    event: str = ALL_ROWS
    void_since_wall_s: float = 0.0
    tightened: float | None = None
    escalates_all: bool = False

    @property
    def is_void(self) -> bool:
        """Whether the certificate covers no answer: after an alarm, or because lost records may have held one."""
        return self.name != "valid"

    @property
    def broken(self) -> bool:
        """Whether audits found a broken promise."""
        return self.name.startswith("broken")


VALID = CertificateState()


class CertificateRecord(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The findings about one certificate in the field.

    Attributes:
        model, version: name and version of the bundle, for display only.
        proof: sha256 of the certificate itself.
        events: by the keys of `Certificate.audit_bounds`.
        state: of the certificate.
        escalations_per_hour: the gateway's quota; None without one.
        fleet_devices: the largest reported number of devices that audit the contract; 1 without a report.
        drawn, agreed, disagreed, unanswered: numbers of audits; the other drawn audits are in progress.
        scores: histogram of the latest scores, in the certificate's bins.
    """

    model: str
    version: str
    proof: str = ""
    events: dict[str, EventRecord]
    state: CertificateState = VALID
    escalations_per_hour: float | None = None
    fleet_devices: int = 1
    drawn: int = 0
    agreed: int = 0
    disagreed: int = 0
    unanswered: int = 0
    scores: tuple[float, ...] = ()

    @property
    def e_value(self) -> float:
        """The largest evidence against any of the promises."""
        return max(audit.e_value(each.test) for each in self.events.values())


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    format: Literal[1]
    records: dict[str, CertificateRecord]


def record_key(model: str, version: str, certificate: Certificate) -> str:
    """Returns the sha256 of everything that a record depends on.

    Args:
        model: name of the bundle.
        version: version of the bundle.
        certificate: the certificate in use.
    """
    digests = (certificate.edge_digest, certificate.full_digest, certificate.score_digest)
    identity = (model, version, *digests, certificate.threshold, sorted(certificate.audit_bounds.items()))
    return hashlib.sha256(msgspec.json.encode(identity)).hexdigest()


def new_record(
    records: Mapping[str, CertificateRecord], model: str, version: str, certificate: Certificate
) -> CertificateRecord:
    """Returns a record with new tests; an alarm stays with the certificate in every version of the bundle.

    Any bundle can have a higher version, so a version proves nothing. Only another proof ends an alarm.

    Args:
        records: present records, the newest last.
        model: name of the bundle.
        version: version of the bundle.
        certificate: the certificate in use, which audits can test.
    """
    proof = hashlib.sha256(msgspec.json.encode(certificate)).hexdigest()
    events = {name: EventRecord(audit.begin(bound)) for name, bound in certificate.audit_bounds.items()}
    record = CertificateRecord(model=model, version=version, proof=proof, events=events)
    for old in records.values():
        if (old.model, old.proof) == (model, proof) and old.state.is_void:
            record.state, record.escalations_per_hour = old.state, old.escalations_per_hour
    return record


def encode(records: Mapping[str, CertificateRecord], present: Collection[str]) -> bytes:
    """Returns the text of the file: the records of present bundles and the latest others, the newest last.

    Args:
        records: by key, the newest last.
        present: keys of the records whose bundles are loaded.
    """
    dropped = {*[key for key in records if key not in present][:-_ABSENT_KEPT]}
    return msgspec.json.encode(_Document(1, {key: one for key, one in records.items() if key not in dropped}))


class RecordFile(StateFile):
    """The file of the records.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "audit records", "A restart would forget the findings of audits.")

    def read(self) -> dict[str, CertificateRecord]:
        """Returns the records; none if they are lost, which is logged."""
        try:
            return read(self.path)
        except IntegrityError as error:
            self.lost(f"{error.message} {_UNKNOWN}")
        except OSError as error:  # as good as lost: the next write would replace the file
            self.lost(f"{self.path} {unreadable(error)} {_UNKNOWN}")
        return {}

    def lost_after(self, file: Path) -> bool:
        """Returns whether another file was on this device before records were set aside.

        The system sets the compared times, unlike those of a modification, which a copy may keep.
        """
        try:
            return file.stat().st_ctime <= _aside(self.path).stat().st_ctime
        except OSError:
            return False


def read(path: Path) -> dict[str, CertificateRecord]:
    """Returns the records, empty if there is no file; audits in progress when it was written count as unanswered.

    Raises:
        IntegrityError: the file is not what `write` wrote, or of a version that is not known here; or such a file was
            put aside, and nothing was written since.
        OSError: the disk refuses.
    """
    try:
        document = read_struct(path, _Document)
    except FileNotFoundError:
        if (aside := _aside(path)).exists():
            raise IntegrityError(f"{path} was set aside as {aside.name}, for it could not be read.") from None
        return {}
    for record in document.records.values():
        try:
            for each in record.events.values():
                audit.check(each.test)
        except ConfigError as error:
            raise IntegrityError(f"{path} cannot be read: {error}") from error
        if not record.events:
            raise IntegrityError(f"{path} cannot be read: a record has no test.")
        record.unanswered = record.drawn - record.agreed - record.disagreed
    return document.records


def _aside(path: Path) -> Path:
    return path.with_name(path.name + DAMAGED)
