"""From two model files and data to a bundle: recognise, decide, compare, create. `certifying.py` goes on."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from firstline.workbench.bundle import create_bundle
from firstline.workbench.data.dataset import AUDIO, Dataset
from firstline.workbench.decodings import BUDGET_S, Trials
from firstline.workbench.infer import upright_image
from firstline.workbench.model_file import ModelFile, read_model_file
from firstline.workbench.pairing.agreement import check_agreement, propose_score
from firstline.workbench.pairing.labels import Labelled, label, label_files
from firstline.workbench.pairing.recipe import Described, recipe_text
from firstline.workbench.pairing.settling import Judges, Settled
from firstline.workbench.recognition import Reading, recognise
from firstline.workbench.selection import split_groups
from firstline.workbench.spec import read_recipe
from firstline.workbench.trial import trial_outputs
from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError, RequestError
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.tasks import AnyTask
from firstline_core.tasks.classification import Classification
from firstline_core.tasks.detection import Detection
from firstline_core.tasks.segmentation import Segmentation
from firstline_core.types import Array, Arrays

EDGE, FULL = "edge", "full"
BUNDLE = "bundle"
"""Folder of the bundle below the output folder."""

_MOST_DECIDING, _FEWEST_DECIDING, _DECIDING_SHARE = 384, 48, 0.2
_SEED = 0
_LEAST_SURE = 0.5
_LOW_SCORE = 0.05
_NAME = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class PairSpec:
    """The parts of a pair, and where it goes.

    Attributes:
        files: model files by role, "edge" and "full"; one of them may be absent.
        out: folder for the recipe, the bundle and pictures.
        name: of the bundle; "" derives it from the models' files.
        labels: given by the user; () to find them.
        chosen: numbers on contact sheets, by role.
        force: replaces a bundle in the output folder.
        budget_s: seconds that the data may take to decide one choice.
    """

    files: Mapping[str, Path]
    out: Path
    name: str = ""
    labels: tuple[str, ...] = ()
    chosen: Mapping[str, Sequence[int]] = field(default_factory=dict)
    force: bool = False
    budget_s: float = BUDGET_S

    def places(self, data: Path) -> list[Path]:
        """Returns the folders where label files may be: those of the models and above, and the data's."""
        folders = [folder for file in self.files.values() for folder in file.absolute().parents[:2]]
        return list(dict.fromkeys([*folders, data]))

    @property
    def bundle_name(self) -> str:
        if self.name:
            return self.name
        stems = [file.stem for file in self.files.values()]
        return (_NAME.sub("-", "-".join(dict.fromkeys(stems))).strip("-.") or "pair")[:64]


@dataclass(frozen=True, slots=True)
class ReadPair:
    """Models whose families and steps are known.

    Attributes:
        task: of all of them.
        labels_source: where the labels are from, in words.
        models: by role, with notes about what was assumed.
        agreement: of both models, as a sentence; "" for one model.
    """

    task: AnyTask
    labels_source: str
    models: Mapping[str, Described]
    agreement: str


def split(dataset: Dataset) -> tuple[Dataset, Dataset]:
    """Returns the samples that decide how the models are read, and the others, which certify and are reported.

    A certificate needs rows that decided nothing. Samples of one group, such as a clip, stay together; those without a
    group are independent. A data set that cannot be divided decides and is reported as a whole.
    """
    count = min(_MOST_DECIDING, max(_FEWEST_DECIDING, round(_DECIDING_SHARE * len(dataset))))
    if 2 * count > len(dataset):
        count = len(dataset) // 2
    if not count:
        return dataset, dataset
    if dataset.groups:
        positions, others = split_groups(dataset.groups, count / len(dataset), _SEED)
        deciding, rest = (tuple(dataset.samples[position] for position in part) for part in (positions, others))
    else:
        deciding = tuple(dataset.some(count).samples)
        chosen = set(deciding)
        rest = tuple(sample for sample in dataset.samples if sample not in chosen)
    if not deciding or not rest:
        return dataset, dataset
    return replace(dataset, samples=deciding), replace(dataset, samples=rest)


def read_pair(
    spec: PairSpec, dataset: Dataset, options: RuntimeOptions, show: Callable[[str], None] = lambda sentence: None
) -> ReadPair:
    """Recognises the models, lets the data decide what their files do not tell, and compares them.

    Args:
        spec: the files.
        dataset: that decides, see `split`.
        options: how the models run.
        show: receives each step.

    Raises:
        OpenQuestionError: a person has to choose from a contact sheet.
        ConfigError: the data are recordings, a model is of no known family, or the models do not fit each other or the
            data.
        FirstlineError: a model does not load or run.
    """
    _refuse_recordings(dataset)
    images = list(_images(dataset)) if dataset.media is not None else []
    files = {role: read_model_file(file, options) for role, file in spec.files.items()}
    raw = {role: _raw(spec.files[role], file, images[:1]) for role, file in files.items()}
    found = {role: recognise(file, raw[role]) for role, file in files.items()}
    nearby = label_files(spec.places(dataset.path))
    readings = _of_one_task(files, found, {len(spec.labels), *map(len, nearby.values())})
    labelled = label(readings, spec.labels, nearby)
    task = task_of(labelled)
    for role, reading in labelled.readings.items():
        show(f"{role}: {reading.family} ({reading.sure:.0%} sure): {'; '.join(reading.assumptions)}.")
    if any(reading.size is None for reading in labelled.readings.values()):
        return ReadPair(task, labelled.source, _of_tables(spec, labelled), "")
    trials = {role: Trials(spec.files[role], task, images, options, spec.budget_s) for role in files}
    count = min(trials[role].affordable(labelled.readings[role], 1) for role in files)
    for each in trials.values():
        each.use(count)
    all_labels = dataset.truth(task)
    truth = None if all_labels is None else {name: array[:count] for name, array in all_labels.items()}
    settled = Judges(truth, spec.chosen, spec.out).settle_all(trials, labelled.readings)
    for role, one in settled.items():
        for decision in one.decisions:
            show(f"{role}: {decision.why}.")
    agreement = ""
    if len(settled) > 1:
        agreement = check_agreement(task, settled[EDGE].outputs, settled[FULL].outputs, raw[EDGE])
        show(f"Edge and full model on {count} images: {agreement}.")
    described = {role: _described(spec.files[role], one, labelled.assumptions[role]) for role, one in settled.items()}
    if isinstance(task, Detection):
        described = _with_scores(task, trials, described, truth, show)
    return ReadPair(task, labelled.source, described, agreement)


def create_pair(
    spec: PairSpec, pair: ReadPair, options: RuntimeOptions, warn: Callable[[str], None] = lambda sentence: None
) -> Bundle:
    """Writes the recipe with its labels, and creates the bundle from them.

    Args:
        spec: the output folder.
        pair: its models.
        options: how the models run.
        warn: receives warnings of `create_bundle`.

    Raises:
        ConfigError: the output folder cannot be written, or holds something else.
        FirstlineError: the models fail on a trial run.
    """
    task = pair.task
    text = recipe_text(spec.bundle_name, task, pair.labels_source, pair.models, _first_score(task, pair.models))
    recipe = spec.out / "recipe.toml"
    try:
        spec.out.mkdir(parents=True, exist_ok=True)
        (spec.out / "labels.txt").write_text("\n".join(task.labels) + "\n")
        recipe.write_text(text)
    except OSError as error:
        raise ConfigError(f"{spec.out} cannot be written: {error.strerror}.") from error
    return create_bundle(read_recipe(recipe), spec.out / BUNDLE, force=spec.force, warn=warn, options=options)


def task_of(labelled: Labelled) -> AnyTask:
    """Returns the task of a pair."""
    last = list(labelled.readings.values())[-1]
    kind = last.task
    if kind == "segmentation" and last.size is not None:
        return Segmentation(labels=labelled.labels, width=last.size[0], height=last.size[1])
    return Detection(labels=labelled.labels) if kind == "detection" else Classification(labels=labelled.labels)


def _first_score(task: AnyTask, models: Mapping[str, Described]) -> str:
    """Returns the score that the policy begins with."""
    if isinstance(task, Detection):
        return "product"
    edge = models.get(EDGE)
    if isinstance(task, Segmentation) and edge is not None and not edge.reading.decoder:
        return "few_classes"  # a map of classes says nothing else about its confidence
    return task.score_kinds[0]


def _images(dataset: Dataset) -> Iterator[bytes]:
    """Yields the encoded images of a data set, each of which can be decoded.

    Raises:
        ConfigError: one cannot; names it.
    """
    for sample, content in zip(dataset.samples, dataset.contents(), strict=True):
        try:
            upright_image(content, dataset.place_of(sample))
        except RequestError as error:
            raise ConfigError(error.message) from error
        yield content


def _refuse_recordings(dataset: Dataset) -> None:
    recording = next((one for one in dataset.samples if Path(one.file).suffix.lower() in AUDIO), None)
    if dataset.media is not None and recording is not None:
        raise ConfigError(
            f"{dataset.place_of(recording)} is a recording, and `firstline pair` does not recognise models of audio "
            "yet. Describe them in a recipe for `firstline bundle create`, as in docs/audio.md."
        )


def _raw(file: Path, described: ModelFile, images: Sequence[bytes]) -> dict[str, Array]:
    image = upright_image(images[0], "The first image of the data") if images else None
    return dict(trial_outputs(file, described, image))


def _of_tables(spec: PairSpec, labelled: Labelled) -> dict[str, Described]:
    """Returns models whose inputs are columns of a table, about which nothing is open.

    Raises:
        ConfigError: one of them takes images.
    """
    if any(reading.size is not None for reading in labelled.readings.values()):
        raise ConfigError("One model takes images and the other one columns of a table; a pair needs the same data.")
    notes = {
        role: [*reading.assumptions, *filter(None, [labelled.assumptions[role]])]
        for role, reading in labelled.readings.items()
    }
    return {role: Described(spec.files[role], reading, notes[role]) for role, reading in labelled.readings.items()}


def _of_one_task(
    files: Mapping[str, ModelFile], found: Mapping[str, list[Reading]], label_counts: Collection[int]
) -> dict[str, Reading]:
    """Returns the surest readings of both models that are of one task.

    Args:
        files: by role.
        found: readings by role.
        label_counts: sizes of the known lists of labels: a classifier of that many classes is likely.

    Raises:
        ConfigError: a model is of no known family, nothing shows what it is, or the tasks differ.
    """
    for role, readings in found.items():
        if not readings:
            raise ConfigError(_unknown(role, files[role]))
    tasks = set.intersection(*({reading.task for reading in readings} for readings in found.values()))
    if not tasks:
        kinds = ", ".join(f"the {role} model is a {readings[0].family}" for role, readings in found.items())
        raise ConfigError(f"Both models need the same task: {kinds}.")
    chosen = {role: next(reading for reading in readings if reading.task in tasks) for role, readings in found.items()}
    for role, reading in chosen.items():
        if reading.sure < _LEAST_SURE and not {reading.classes, reading.classes - 1} & set(label_counts):
            raise ConfigError(
                f"The {role} model {files[role].name} may be a {reading.family}, but that is a guess: "
                f"{'; '.join(reading.assumptions)}. Write a recipe for `firstline bundle create` if it is one."
            )
    return chosen


def _unknown(role: str, file: ModelFile) -> str:
    inputs, outputs = (
        ", ".join(f"'{spec.name}' {spec.datatype} {list(spec.shape)}" for spec in specs[:4])
        for specs in (file.inputs, file.outputs)
    )
    return (
        f"The {role} model {file.name} is of no family that `firstline pair` knows (inputs {inputs}; outputs {outputs}"
        "). Describe it in a recipe "
        "for `firstline bundle create`, or export it with its boxes decoded and its suppression inside."
    )


def _described(file: Path, settled: Settled, labels_note: str) -> Described:
    notes = [*settled.reading.assumptions, *([labels_note] if labels_note else [])]
    return Described(file, settled.reading, [*notes, *(decision.why for decision in settled.decisions)])


def _with_scores(
    task: Detection,
    trials: Mapping[str, Trials],
    described: Mapping[str, Described],
    truth: Arrays | None,
    show: Callable[[str], None],
) -> dict[str, Described]:
    """Returns the detectors with the operating scores of the best F1: the full model's against labels, then the edge's.

    Without labels the full model keeps the usual score of its family.
    """
    chosen: dict[str, Described] = {}
    reference, against = truth, "the labels"
    for role in (FULL, EDGE):
        if role not in described:
            continue
        one = described[role]
        reading = one.reading
        if reference is not None:
            every = trials[role].outputs(replace(reading, score=_LOW_SCORE))
            proposed = propose_score(task, every, reference, reading.score, against)
            reading = replace(reading, score=proposed.score)
            show(f"{role}: {proposed.why}")
            one = Described(one.file, reading, [*one.notes, proposed.why])
        chosen[role] = one
        if role == FULL:
            reference, against = trials[FULL].outputs(reading), "the full model"
    return {role: chosen[role] for role in (EDGE, FULL) if role in chosen}
