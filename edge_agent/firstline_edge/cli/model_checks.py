"""Doctor's look at the models: every variant is really loaded and run."""

from __future__ import annotations

from pathlib import Path

from firstline_core.bundle.loading import load_model, load_scorer
from firstline_core.bundle.manifest import Manifest, Model, certificate_problem, valid_certificate
from firstline_core.bundle.store import Bundle, open_bundle
from firstline_core.errors import ConfigError, FirstlineError
from firstline_core.runtime.select import RuntimeOptions, check_options
from firstline_edge.cli.findings import Finding, State, from_error
from firstline_edge.models.loading import bundle_paths, quickest_ms
from firstline_edge.settings.settings import EdgeSettings

_RUNS = 20
_INSTALL = {
    "onnx": "pip install 'firstline[edge]'; on a Jetson instead 'firstline[edge-core]' and NVIDIA's onnxruntime-gpu",
    "tflite": "pip install 'firstline[litert]'",
}
_PROVIDERS = (
    "correct models.providers, or install the onnxruntime build that has it; on a Jetson NVIDIA's onnxruntime-gpu, "
    "which pip install 'firstline[edge]' would replace: keep to 'firstline[edge-core]' there"
)


def model_findings(settings: EdgeSettings) -> list[Finding]:
    """One finding for each edge variant of each bundle."""
    directories = [Path(directory) for directory in settings.models.directories]
    if not directories:
        advice = "name a bundle's folder in models.directories, or every request goes to the cloud"
        return [Finding("models", State.SLOW, "none configured", advice)]
    options = RuntimeOptions(providers=settings.models.providers, threads=settings.models.threads)
    try:
        check_options(options, "models.providers")
    except ConfigError as error:  # the agent does not start, whatever the models
        return [from_error("execution providers", error.message, _PROVIDERS)]
    findings = [
        from_error("models", f"{directory} holds no bundle", "copy a bundle there: a folder with manifest.json")
        for directory in directories
        if not bundle_paths([directory])
    ]
    for path in bundle_paths(directories):
        try:
            bundle = open_bundle(path)
        except FirstlineError as error:
            advice = f"copy the bundle again, whole: rsync -a --delete BUNDLE/ {path}/"
            findings.append(from_error(f"bundle {path.name}", error.message, advice))
            continue
        findings += _bundle_findings(bundle, options, settings.policy.default_timeout_ms)
    return findings


def _bundle_findings(bundle: Bundle, options: RuntimeOptions, timeout_ms: int) -> list[Finding]:
    manifest = bundle.manifest
    name = f"model {manifest.name} {manifest.version}"
    try:
        load_scorer(bundle, options)
    except FirstlineError as error:
        return [from_error(name, error.message, _INSTALL["onnx"])]
    if not manifest.edge:
        return [Finding(name, State.SLOW, "has no edge variant; every request goes to the cloud")]
    findings: list[Finding] = []
    used = ""
    for model in manifest.edge:
        subject = f"{name} {model.id}"
        try:
            p50_ms, provider = _pace(bundle, model, options)
        except FirstlineError as error:
            findings.append(from_error(subject, error.message, _INSTALL[model.runtime]))
            continue
        used = used or model.id
        pace = f"{p50_ms:.3g} ms a row (p50)" if p50_ms is not None else "loads; not measured, its sizes are free"
        role = f"the one in use; {_proved(manifest, model)}" if used == model.id else "a spare"
        slow = used == model.id and p50_ms is not None and p50_ms > timeout_ms / 2
        findings.append(
            Finding(
                subject,
                State.SLOW if slow else State.OK,
                f"{pace} on {provider}, {role}",
                "use a smaller edge model, or raise policy.default_timeout_ms" if slow else "",
            )
        )
    if used:  # a variant that does not load is no loss where another one does
        findings = [
            Finding(f.subject, State.SLOW, f.detail, f"{f.advice}; until then {used} is used")
            if f.state is State.MISSING
            else f
            for f in findings
        ]
    return findings


def _proved(manifest: Manifest, model: Model) -> str:
    certificate = valid_certificate(manifest, model)
    if certificate is None:
        return f"not certified: {certificate_problem(manifest, model)}"
    return f"certified: {certificate.promise}"


def _pace(bundle: Bundle, model: Model, options: RuntimeOptions) -> tuple[float | None, str]:
    """Milliseconds of one row (None where no row is typical), and what runs it."""
    loaded = load_model(bundle, model, options)
    try:
        measured = quickest_ms(bundle.manifest, loaded, loaded.predict, _RUNS)
        return measured and measured[0], loaded.runtime.provider
    finally:
        loaded.close()
