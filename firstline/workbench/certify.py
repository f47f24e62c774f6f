"""Certifies an edge variant of a bundle on data, and writes the bundle that carries the certificate."""

from __future__ import annotations

import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

import msgspec

from firstline.workbench.evidence import Evidence
from firstline.workbench.placing import put_in_place, refuse_overwriting
from firstline_core.bundle.certificate import Certificate, Contract
from firstline_core.bundle.manifest import MANIFEST_NAME, Model, encode_manifest
from firstline_core.bundle.store import Bundle, open_bundle
from firstline_core.errors import ConfigError
from firstline_core.routing.certificate import Certificate as Proof
from firstline_core.routing.certificate import certify


@dataclass(frozen=True, slots=True)
class Certification:
    """What the data proves of one variant.

    Args:
        variant: as it was tested.
        proof: the statistics, certified or not.
        certificate: what the variant may carry; None where nothing is certified.
    """

    variant: Model
    proof: Proof
    certificate: Certificate | None


def certify_bundle(
    bundle: Bundle,
    evidence: Evidence,
    *,
    epsilon: float,
    delta: float,
    contract: Contract = "disagreement",
    seed: int = 0,
    select_fraction: float = 0.0,
) -> Certification:
    """Tests the bundle's own score as it stands.

    Args:
        bundle: that the evidence is of.
        evidence: of images drawn at random from what will be asked, none of them used to choose model, score or
            temperature.
        epsilon: share of the kept answers that may break the contract.
        delta: probability that the promise is wrong.
        contract: what counts as a loss.
        seed: of the split.
        select_fraction: share of the data that only chooses where testing starts.

    Raises:
        ConfigError: arguments out of range.
    """
    manifest, losses = bundle.manifest, evidence.losses(contract)
    proof = certify(evidence.scores, losses, epsilon, delta, select_fraction=select_fraction, seed=seed)
    certificate = None
    if proof.threshold is not None and proof.risk_upper is not None:
        certificate = Certificate(
            contract=contract,
            epsilon=epsilon,
            delta=delta,
            threshold=proof.threshold,
            n=proof.n,
            kept=proof.kept,
            risk_upper=proof.risk_upper,
            edge_digest=evidence.variant.digest,
            full_digest=manifest.full_digest,
            score_digest=manifest.policy.score.digest,
        )
    return Certification(evidence.variant, proof, certificate)


def write_certified(bundle: Bundle, found: Certification, out: Path, *, force: bool = False) -> Bundle:
    """Writes the bundle with the variant's new certificate, as the next version.

    Other variants keep theirs. Files that are absent stay absent.

    Args:
        bundle: that was certified.
        found: with a certificate.
        out: must not exist, unless `force`; may then be the bundle itself.
        force: replaces a bundle; anything else that lies there is never touched.

    Raises:
        ConfigError: `out` may not, or cannot, be written.
    """
    manifest = bundle.manifest
    refuse_overwriting(out, force)
    certified = msgspec.structs.replace(
        manifest,
        version=manifest.version + 1,
        edge=tuple(
            msgspec.structs.replace(model, certificate=found.certificate) if model.id == found.variant.id else model
            for model in manifest.edge
        ),
    )
    staged = out.parent / f".{out.name}.{secrets.token_hex(4)}"
    try:
        staged.mkdir(parents=True)
        for artefact in manifest.artefacts:
            if (source := bundle.file(artefact)).is_file():
                target = staged / artefact.file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
        (staged / MANIFEST_NAME).write_bytes(encode_manifest(certified))
        open_bundle(staged)
        put_in_place(staged, out)
    except OSError as error:
        raise ConfigError(f"The bundle {out} cannot be written: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return open_bundle(out)
