"""Checks of `doctor` on the models: every variant is loaded and run, and the audits of its certificate are read."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from firstline_core.bundle.loading import load_model, load_scorer
from firstline_core.bundle.manifest import Manifest, Model, certificate_problem, valid_certificate
from firstline_core.bundle.store import Bundle, open_bundle, same_version
from firstline_core.errors import ConfigError, FirstlineError, IntegrityError
from firstline_core.routing.policy import Policy
from firstline_core.runtime.select import RUNTIMES, RuntimeOptions, check_options
from firstline_core.storage.files import system_reason
from firstline_core.telemetry.wording import counted, rounded
from firstline_core.types import ModelKey
from firstline_edge.audits import records
from firstline_edge.audits.records import CertificateRecord, record_key
from firstline_edge.cascade.cascade import policy_from
from firstline_edge.cli.findings import Finding, Severity, hint, hint_if, ok, problem, warning
from firstline_edge.fleet.updates.model_store import current_bundles
from firstline_edge.models.loading import missing_bundle, quickest_ms
from firstline_edge.models.profiles import Profiles
from firstline_edge.settings.settings import EdgeSettings
from firstline_edge.state import StatePaths

_RUNS = 20
_PROVIDERS = (
    "correct models.providers, or install the onnxruntime build that has it; on a Jetson NVIDIA's onnxruntime-gpu, "
    "which pip install 'firstline[edge]' would replace: keep to 'firstline[edge-core]' there"
)


def bundles_in_use(settings: EdgeSettings) -> tuple[list[Bundle], list[Finding]]:
    """Returns the bundles that the agent can open, and why it cannot use others."""
    try:
        paths = current_bundles(settings)
    except (FirstlineError, OSError) as error:
        return [], [problem("models", f"the fleet's updates cannot be read: {error}")]
    found: dict[ModelKey, Bundle] = {}
    unusable: list[Finding] = []
    for path in paths:
        try:
            bundle = open_bundle(path)
        except FirstlineError as error:
            advice = f"copy the bundle again, whole: rsync -a --delete BUNDLE/ {shlex.quote(str(path))}/"
            unusable.append(problem(f"bundle {path.name}", error.message, advice))
            continue
        key = ModelKey(bundle.manifest.name, bundle.manifest.version)
        if key in found:
            unusable.append(problem(f"bundle {path.name}", same_version(path, found[key].path, key)))
        else:
            found[key] = bundle
    return list(found.values()), unusable


def model_findings(settings: EdgeSettings, bundles: Iterable[Bundle]) -> Iterator[Finding]:
    """Yields one finding for each edge variant of each bundle, and one for each folder that contains no bundle."""
    directories = settings.models.folders
    if not directories:
        advice = "name a bundle's folder in models.directories, or every request goes to the cloud"
        yield warning("models", "none configured", advice)
        return
    options = RuntimeOptions(providers=settings.models.providers, threads=settings.models.threads)
    try:
        check_options(options, "models.providers")
    except ConfigError as error:  # the agent does not start, whatever the models
        yield problem("execution providers", error.message, _PROVIDERS)
        return
    for directory in directories:
        if why := missing_bundle(directory):
            yield problem("models", f"{directory}: {why}")
    for bundle in bundles:
        yield from _bundle_findings(bundle, options, settings)


def _bundle_findings(bundle: Bundle, options: RuntimeOptions, settings: EdgeSettings) -> list[Finding]:
    manifest, policy, timeout_ms = bundle.manifest, policy_from(settings.policy), settings.policy.default_timeout_ms
    name = f"model {manifest.name} {manifest.version}"
    try:
        load_scorer(bundle, options)
    except FirstlineError as error:
        return [problem(name, error.message, RUNTIMES["onnx"].install)]
    if not manifest.edge:
        return [hint(name, "has no edge variant; every request goes to the cloud")]
    findings: list[Finding] = []
    used = ""
    for model in manifest.edge:
        subject = f"{name} {model.id}"
        try:
            p50_ms, provider = _measure(bundle, model, options)
        except FirstlineError as error:
            findings.append(problem(subject, error.message, RUNTIMES[model.runtime].install))
            continue
        used = used or model.id
        pace = f"{rounded(p50_ms)} ms a row (p50)" if p50_ms is not None else "loads; not measured, its sizes are free"
        role = f"the one in use; {_certification(manifest, model, policy)}" if used == model.id else "a spare"
        is_slow = used == model.id and p50_ms is not None and p50_ms > timeout_ms / 2
        advice = "use a smaller edge model, or raise policy.default_timeout_ms"
        findings.append(hint_if(is_slow, subject, f"{pace} on {provider}, {role}", advice))
    if not used:
        return findings
    return [  # a variant that does not load is not missed if another one does
        warning(f.subject, f.detail, f"{f.advice}; until then {used} is used") if f.severity is Severity.ERROR else f
        for f in findings
    ] + list(_idle_settings(name, bundle, settings))


def _idle_settings(name: str, bundle: Bundle, settings: EdgeSettings) -> Iterator[Finding]:
    """Yields a hint for each setting that changes nothing for this bundle."""
    if settings.adaptation.enabled and len(bundle.manifest.edge) == 1:
        advice = "add smaller variants with firstline compress, or set adaptation.enabled = false"
        yield hint(name, "adaptation.enabled changes nothing: the bundle has one edge variant", advice)
    if settings.models.as_planned:
        profiles = Profiles(settings.state_dir, Path(settings.hardware.root))
        if profiles.of(bundle) is None:
            why = " ".join(profiles.problems.values()) or "there is no profile of this device"
            advice = f"edge-agent profile create {bundle.manifest.name}"
            yield hint(name, f"models.as_planned changes nothing: {why}", advice)


def _certification(manifest: Manifest, model: Model, policy: Policy) -> str:
    certificate = valid_certificate(manifest, model)
    if certificate is None:
        return f"not certified: {certificate_problem(manifest, model)}"
    if unusable := policy.uncertified(certificate.contract):
        return f"not certified: {unusable}"
    return f"certified: {certificate.promise}"


def _measure(bundle: Bundle, model: Model, options: RuntimeOptions) -> tuple[float | None, str]:
    """Returns milliseconds of one row (None if no row is typical), and the provider."""
    loaded = load_model(bundle, model, options)
    try:
        measured = quickest_ms(loaded, loaded.predict, _RUNS)
        return measured and measured[0], loaded.runtime.provider
    finally:
        loaded.close()


def contract_findings(settings: EdgeSettings, bundles: Iterable[Bundle]) -> Iterator[Finding]:
    """Yields the findings of the audits about the certificates of these bundles."""
    path = StatePaths(settings.state_dir).certificates_path
    try:
        stored = records.read(path)
    except OSError as error:
        yield warning("audits", f"{path} cannot be read: {system_reason(error)}", "run this as the agent's user")
        return
    except IntegrityError as error:
        yield warning("audits", error.message, "certify the models again: nothing is certified until then")
        return
    for manifest in (bundle.manifest for bundle in bundles):
        for variant in manifest.edge:
            record = _record_of(manifest, variant, stored)
            if record is not None:
                yield _contract_finding(f"contract {manifest.name} {manifest.version} {variant.id}", record)


def _record_of(manifest: Manifest, variant: Model, stored: Mapping[str, CertificateRecord]) -> CertificateRecord | None:
    certificate = valid_certificate(manifest, variant)
    if certificate is None or not certificate.audit_bounds:
        return None
    return stored.get(record_key(manifest.name, str(manifest.version), certificate))


def _contract_finding(subject: str, record: CertificateRecord) -> Finding:
    audits = f"{counted(record.agreed + record.disagreed, 'audit')}, {record.disagreed} disagreed"
    if not record.state.is_void:
        return ok(subject, audits)
    advice = "certify again, with the output of `edge-agent audit list`, and copy the new bundle here"
    return warning(subject, f"{audits}; its certificate is void: {record.state.cause}", advice)
