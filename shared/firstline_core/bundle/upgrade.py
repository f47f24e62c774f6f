"""Manifests of older formats, said in the newest one. A field that a format did not know must not stand in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from firstline_core.bundle.manifest import Manifest, Model

FORMAT = 5
"""1 knew no certificates; 2 no learned functions, no energy, and no histogram, audits or groups in a certificate; 3 no
golden answers; 4 nothing of how a model was made."""
OLDEST_FORMAT = 1


def upgraded(manifest: Manifest, found: int) -> Manifest:
    """The manifest as it was read from format `found`, in the newest format.

    Raises:
        ValueError: it says something that its format did not know.
    """
    if found == FORMAT:
        return manifest
    if any(model.provenance is not None for model in manifest.models):
        raise ValueError(f"format {found} knows no provenance")
    if found == 4:
        return msgspec.structs.replace(manifest, format=FORMAT)
    if manifest.golden is not None:
        raise ValueError(f"format {found} knows no golden answers")
    if found == 3:
        return msgspec.structs.replace(manifest, format=FORMAT)
    if found < 2 and any(model.certificate is not None for model in manifest.models):
        raise ValueError(f"format {found} knows no certificates")
    score = manifest.policy.score
    if score.kind in ("energy", "learned"):
        raise ValueError(f"format {found} knows no score of kind '{score.kind}'")
    if manifest.policy.value is not None:
        raise ValueError(f"format {found} knows no policy.value")
    return msgspec.structs.replace(manifest, format=FORMAT, edge=tuple(_from_2(model) for model in manifest.edge))


def _from_2(model: Model) -> Model:
    certificate = model.certificate
    if certificate is None:
        return model
    newer = (certificate.audit_epsilon, certificate.histogram, certificate.by or None)
    if certificate.contract == "stream" or newer != (None, None, None):
        raise ValueError(f"the certificate of '{model.id}' says what format 2 does not know")
    epsilon = certificate.epsilon if certificate.contract == "disagreement" else None
    return msgspec.structs.replace(model, certificate=msgspec.structs.replace(certificate, audit_epsilon=epsilon))
