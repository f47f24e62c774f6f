"""Creates a bundle from model files: copies, hashes and checks them, and renames the bundle into place."""

from __future__ import annotations

import hashlib
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from firstline.workbench.golden import answered_golden, read_inputs
from firstline.workbench.model_checks import check_model, input_of
from firstline.workbench.ports import input_port, with_output
from firstline.workbench.precision import precision_of
from firstline.workbench.spec import BundleSpec, FeedSpec, ModelSpec, PolicySpec, check_spec
from firstline.workbench.step_syntax import StepOfFile, with_artefacts
from firstline_core.bundle.golden import inputs_of, read_golden
from firstline_core.bundle.manifest import MANIFEST_NAME, Manifest, Model, Policy, Score, encode_manifest
from firstline_core.bundle.store import Bundle, open_bundle
from firstline_core.errors import ConfigError, FirstlineError, about, error_key
from firstline_core.processing.steps import Graph, ModelInput, decoded_kind
from firstline_core.runtime.base import RowByRow, Runtime, RuntimeName
from firstline_core.runtime.select import RuntimeOptions, load_runtime
from firstline_core.storage.artefact import Artefact
from firstline_core.storage.files import naming, unwritable
from firstline_core.storage.setting_places import naming_key
from firstline_core.tasks.classification import Classification
from firstline_core.tasks.installed import package_of
from firstline_core.types import TensorSpec

_OF_ALL_MODELS = {"preprocess", "postprocess"}
"""A model's keys that a recipe may have for all models."""
Warn = Callable[[str], None]
# Chooses the policy on the finished files, before anyone can see them.
ChoosePolicy = Callable[[Bundle], Policy]


def create_bundle(
    spec: BundleSpec,
    out: Path,
    *,
    force: bool = False,
    choose_policy: ChoosePolicy | None = None,
    golden: Sequence[Path] = (),
    warn: Warn = lambda sentence: None,
    count_rows: Callable[[str, int], object] = lambda model, rows: None,
    options: RuntimeOptions = RuntimeOptions(),  # noqa: B008 (frozen)
) -> Bundle:
    """Writes the bundle to `out` atomically.

    The same files and the same spec give the same bytes. Every model is loaded and run on made-up rows, which shows
    that processing, model and labels fit together, and whether the model has to run with one row at a time.

    Args:
        spec: the description of the bundle.
        out: must not exist, unless `force`.
        force: replaces a bundle; any other file or folder at `out` is never replaced.
        choose_policy: chooses the policy, see `calibrate.py`; None for that of the spec.
        golden: files of inputs, whose answers every device must repeat; see `golden.read_inputs`.
        warn: receives a sentence about something that looks wrong but may be intended.
        count_rows: receives each model's id and the number of rows whose independence was checked.
        options: for the trial runs.

    Raises:
        ConfigError: a file, a step or the labels do not fit; names what to change.
        ModelLoadError: a model does not load here.
    """
    check_spec(spec)
    if spec.edge and spec.policy.threshold is None and choose_policy is None:
        raise ConfigError(
            "The bundle has no threshold: choose one on data with --calibrate DIR, or state it with --threshold (or "
            "`threshold` in the recipe's [policy]); with 1 almost every input goes to the full model."
        )
    refuse_overwriting(out, force)
    with staged_folder(out) as staged, _Files(staged) as files:
        manifest = _manifest(spec, files, options, warn)
        bundle = _write(staged, manifest)
        inputs = read_inputs(golden, manifest) if golden else None
        inputs_given = inputs_of(inputs, manifest) if inputs is not None else None
        checked = []
        for number, (model, source) in enumerate(zip(manifest.models, spec.models, strict=True)):
            with _naming(spec, number):
                found, rows = check_model(bundle, model, source.file, options=options, warn=warn, golden=inputs_given)
            checked.append(found)
            count_rows(model.id, rows)
        edge, full = checked[: len(spec.edge)], checked[len(spec.edge) :]
        manifest = msgspec.structs.replace(manifest, edge=tuple(edge), full=next(iter(full), None))
        bundle = _write(staged, manifest)
        if choose_policy is not None:
            manifest = msgspec.structs.replace(manifest, policy=choose_policy(bundle))
            bundle = _write(staged, manifest)
        if inputs is not None:
            _write(staged, msgspec.structs.replace(manifest, golden=answered_golden(bundle, inputs, options)))
    return open_bundle(out)


def runtime_of(file: Path) -> RuntimeName:
    """Returns the runtime of a model file by its identifier (TFLite), else by its extension.

    Raises:
        ConfigError: the runtime is unknown, or there is no such file.
    """
    with naming(f"The model {file}"), file.open("rb") as stream:
        start = stream.read(8)
    if not start:
        raise ConfigError(f"The model {file} is an empty file; export or copy it again.")
    if start[4:] == b"TFL3":
        return "tflite"
    if file.suffix.lower() == ".onnx":
        return "onnx"
    raise ConfigError(f"{file} is neither an ONNX (.onnx) nor a TFLite model; name one, or convert the model.")


@dataclass
class _Files:
    """Files copied so far; equal contents are stored once.

    Errors in the block name the user's files instead of their copies.
    """

    folder: Path
    copied: dict[str, Artefact] = field(default_factory=dict)
    sources: dict[str, Path] = field(default_factory=dict)

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if not isinstance(error, FirstlineError):
            return
        message = error.message
        for name, source in self.sources.items():
            message = message.replace(str(self.folder / name), str(source))
        if message != error.message:
            raise type(error)(message) from error

    def add(self, source: Path, name: str) -> Artefact:
        with naming(source):
            content = source.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        if digest not in self.copied:
            (self.folder / name).write_bytes(content)
            self.sources[name] = source
            self.copied[digest] = Artefact(file=name, sha256=digest, size_bytes=len(content))
        return self.copied[digest]

    def add_graph(self, source: Path) -> Artefact:
        return self.add(source, f"graph-{_digest(source)[:12]}.onnx")

    def add_step(self, step: StepOfFile) -> Artefact:
        """Copies the file of a step, such as a tokenizer; its name in the bundle follows from its content."""
        if isinstance(step.step, Graph):
            return self.add_graph(step.file)
        return self.add(step.file, f"file-{_digest(step.file)[:12]}{step.file.suffix.lower()}")


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""


def _manifest(spec: BundleSpec, files: _Files, options: RuntimeOptions, warn: Warn) -> Manifest:
    described: list[tuple[ModelSpec, RuntimeName]] = []
    for number, model in enumerate(spec.models):
        with _naming(spec, number):
            runtime = runtime_of(model.file)
            described.append((replace(model, precision=model.precision or precision_of(model.file, runtime)), runtime))
    models: list[Model] = []
    inputs = {each.name: each for each in spec.inputs}
    shared = spec.inputs[0].name if len(spec.inputs) == 1 else ""
    for number, ((model, runtime), model_id) in enumerate(zip(described, _ids(spec, described), strict=True)):
        with _naming(spec, number):
            artefact = files.add(model.file, f"{model_id}.{runtime}")
            raw = load_runtime(files.folder / artefact.file, runtime, options)
            with closing(RowByRow(raw, model.without_rows)) as loaded:
                fed = _fed(model, f"{model.file.name}: Model '{model_id}'", loaded, files, shared)
                declared = Model(
                    id=model_id,
                    artefact=artefact,
                    runtime=runtime,
                    precision=model.precision,
                    inputs=tuple(fed),
                    postprocess=with_artefacts(model.postprocess, files.add_step),
                    output=model.output,
                    measured=dict(model.measured),
                    batch=1 if model.without_rows else None,
                    without_rows=model.without_rows,
                )
                if isinstance(spec.task, Classification):
                    declared = with_output(declared, loaded, spec.labels, model.file, warn)
            models.append(declared)
            for each, port in fed.items():
                inputs.setdefault(each.name, input_of(each.name, port, each.preprocess))
            if not spec.inputs and len(inputs) == 1:
                (shared,) = inputs  # all models with one input take the same
    try:
        return Manifest(
            name=spec.name,
            version=spec.version,
            task=spec.task,
            inputs=tuple(inputs.values()),
            edge=tuple(models[: len(spec.edge)]),
            full=models[-1] if spec.full is not None else None,
            policy=_policy(spec.policy, files),
            task_package=package_of(spec.task.kind),
        )
    except ValueError as error:
        raise ConfigError(f"The bundle is not valid: {error}.") from error


@contextmanager
def _naming(spec: BundleSpec, number: int) -> Iterator[None]:
    """Names the recipe, and its key, in the error about a model that it declares."""
    try:
        yield
    except FirstlineError as error:
        if spec.recipe is None:
            raise
        key, part = spec.keys[number], error_key(error)
        with naming_key(spec.recipe, *([f"{key}.{part}"] if part else []), *({part} & _OF_ALL_MODELS), key):
            raise


def _ids(spec: BundleSpec, described: Sequence[tuple[ModelSpec, RuntimeName]]) -> list[str]:
    """Returns the requested ids, else "full" and "edge", or "edge-RUNTIME-PRECISION" if there are several variants."""
    ids: list[str] = []
    for position, (model, runtime) in enumerate(described):
        if position >= len(spec.edge):
            chosen = model.id or "full"
        elif len(spec.edge) == 1:
            chosen = model.id or "edge"
        else:
            chosen = model.id or f"edge-{runtime}-{model.precision}"
        if chosen in ids:
            if model.id:
                with _naming(spec, position), about("id"):
                    raise ConfigError(f"Two models have the id '{chosen}'; give one of them another id.")
            chosen = next(f"{chosen}-{n}" for n in range(2, len(described) + 2) if f"{chosen}-{n}" not in ids)
        ids.append(chosen)
    return ids


def _fed(model: ModelSpec, what: str, runtime: Runtime, files: _Files, shared: str) -> dict[ModelInput, TensorSpec]:
    """Returns the declarations of a model's inputs, and its own inputs.

    Args:
        model: as described.
        what: the model, for messages.
        runtime: its loaded file.
        files: get the graphs.
        shared: name of the bundle's input that all models with one input take; "" to name it after the model's.

    Raises:
        ConfigError: the model has other inputs.
    """
    if not model.inputs and len(runtime.inputs) == 1:
        port = input_port(runtime, model.input, what)
        name = shared or decoded_kind(model.preprocess) or port.name
        return {ModelInput(name, model.input, with_artefacts(model.preprocess, files.add_step)): port}
    ports = {port.name: port for port in runtime.inputs}
    if model.preprocess or model.input:
        raise ConfigError(
            f"{what} has the inputs {', '.join(ports)}: write the steps of each in the recipe, in the "
            "model's table `inputs`, and no `preprocess` or `input`."
        )
    feeds = {name: model.inputs.get(name, FeedSpec()) for name in ports} | dict(model.inputs)
    return {
        ModelInput(feed.input or tensor, tensor, with_artefacts(feed.preprocess, files.add_step)): input_port(
            runtime, tensor, what
        )
        for tensor, feed in feeds.items()
    }


def _policy(spec: PolicySpec, files: _Files) -> Policy:
    threshold = 1.0 if spec.threshold is None else spec.threshold  # without one it is chosen, or there is no edge model
    if isinstance(spec.score, Path):
        return Policy(Score("graph", spec.temperature, files.add_graph(spec.score)), threshold)
    return Policy(Score(spec.score, spec.temperature), threshold)


def _write(folder: Path, manifest: Manifest) -> Bundle:
    (folder / MANIFEST_NAME).write_bytes(encode_manifest(manifest))
    return open_bundle(folder)


def write_version(
    bundle: Bundle, manifest: Manifest, out: Path, *, force: bool = False, answer_with: RuntimeOptions | None = None
) -> Bundle:
    """Writes the bundle's files with another manifest, atomically; files that are absent stay absent.

    Args:
        bundle: whose files are copied.
        manifest: of the new bundle.
        out: must not exist, unless `force`; may then be the bundle itself.
        force: replaces a bundle; any other file or folder at `out` is never replaced.
        answer_with: computes the golden answers again, with models that run so; None keeps them.

    Raises:
        ConfigError: `out` exists or cannot be written.
    """
    refuse_overwriting(out, force)
    with staged_folder(out) as staged:
        for artefact in manifest.artefacts:
            if (source := bundle.file(artefact)).is_file():
                target = staged / artefact.file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
        made = _write(staged, manifest)
        if answer_with is not None and (golden := manifest.golden) is not None:
            again = answered_golden(made, read_golden(made, golden.artefact), answer_with, golden.tolerance)
            _write(staged, msgspec.structs.replace(manifest, golden=again))
    return open_bundle(out)


def refuse_overwriting(out: Path, force: bool) -> None:
    """Raises ConfigError if `out` must not be replaced: it is a link, no bundle, or a bundle without `force`."""
    if out.is_symlink():
        raise ConfigError(f"{out} is a link; name the folder itself with --out.")
    if not out.exists():
        return
    if not (out / MANIFEST_NAME).is_file():
        raise ConfigError(f"{out} exists and is not a bundle; name another folder with --out.")
    if not force:
        raise ConfigError(f"The bundle {out} exists; name another folder with --out, or replace it with --force.")


def refuse_existing(out: Path) -> None:
    """Raises ConfigError if anything exists at `out`."""
    if out.exists() or out.is_symlink():
        raise ConfigError(f"{out} exists; name another folder with --out.")


def require_writable(out: Path) -> None:
    """Raises ConfigError if no bundle can be created at `out`; leaves no file there."""
    with naming(f"The bundle {out}", "written"):
        nearest = next(folder for folder in out.absolute().parents if folder.exists())
        with TemporaryDirectory(prefix=f".{out.name}.", dir=nearest):
            pass


@contextmanager
def staged_folder(out: Path) -> Iterator[Path]:
    """Yields a temporary folder that becomes `out` at the end of the block; after an error it is deleted.

    Raises:
        ConfigError: it cannot be written.
    """
    staged = out.parent / f".{out.name}.{secrets.token_hex(4)}"
    try:
        staged.mkdir(parents=True)
        yield staged
        _put(staged, out)
    except OSError as error:
        raise ConfigError(f"The bundle {out} {unwritable(error)}") from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _put(staged: Path, out: Path) -> None:
    """Moves the folder to its place; an existing bundle is deleted after the new one is there."""
    if not out.exists():
        staged.rename(out)
        return
    aside = out.parent / f"{staged.name}.old"
    out.rename(aside)
    try:
        staged.rename(out)
    except BaseException:  # such as an interrupt by the user
        if not out.exists():
            aside.rename(out)
        raise
    shutil.rmtree(aside)
