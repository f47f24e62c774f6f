"""Doctor's look at what the audits found."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from firstline_core.bundle.manifest import MANIFEST_NAME, Manifest, Model, parse_manifest, valid_certificate
from firstline_core.errors import FirstlineError, IntegrityError
from firstline_core.telemetry.wording import counted
from firstline_edge.audits import records
from firstline_edge.audits.records import Record, key_of
from firstline_edge.cli.findings import Finding, State
from firstline_edge.models.loading import bundle_paths
from firstline_edge.settings.settings import EdgeSettings
from firstline_edge.state import standing_path


def contract_findings(settings: EdgeSettings) -> list[Finding]:
    """Returns the findings of the audits about the certificates in use; empty if there are none."""
    path = standing_path(settings.state_dir)
    try:
        known = records.read(path)
    except (IntegrityError, OSError) as error:
        return [Finding("audits", State.SLOW, f"{error}", "certify the models anew: nothing is certified until then")]
    findings = []
    for held in bundle_paths([Path(directory) for directory in settings.models.directories]):
        try:
            manifest = parse_manifest((held / MANIFEST_NAME).read_bytes(), str(held))
        except (FirstlineError, OSError):
            continue  # told with the models
        for variant in manifest.edge:
            record = _record_of(manifest, variant, known)
            if record is not None:
                findings.append(_contract_finding(f"contract {manifest.name} {manifest.version} {variant.id}", record))
    return findings


def _record_of(manifest: Manifest, variant: Model, known: Mapping[str, Record]) -> Record | None:
    certificate = valid_certificate(manifest, variant)
    if certificate is None or certificate.audit_epsilon is None:
        return None
    return known.get(key_of(manifest.name, str(manifest.version), certificate, certificate.audit_epsilon))


def _contract_finding(subject: str, record: Record) -> Finding:
    found = f"{counted(record.agreed + record.disagreed, 'audit')}, {record.disagreed} disagreed"
    if not record.alarmed:
        return Finding(subject, State.OK, found)
    advice = "certify anew, also on `edge-agent audits`, and copy the new bundle here"
    return Finding(subject, State.SLOW, f"{found}; an alarm voids its certificate: {record.cause}", advice)
