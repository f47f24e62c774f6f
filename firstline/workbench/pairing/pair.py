"""From two model files and data to a bundle: recognise, decide, compare, create. `certifying.py` follows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from firstline.workbench.bundle import create_bundle
from firstline.workbench.data.dataset import Dataset
from firstline.workbench.decodings import Trials, first_score
from firstline.workbench.event_promises import EventBound, parse_promises
from firstline.workbench.model_file import ModelFile, read_model_file, with_output_rows
from firstline.workbench.pairing.agreement import check_agreement
from firstline.workbench.pairing.labels import Labelled, label, label_files
from firstline.workbench.pairing.operating import operate
from firstline.workbench.pairing.recipe import recipe_text
from firstline.workbench.pairing.settling import Settler
from firstline.workbench.pairing.specification import BUNDLE, EDGE, FULL, PairSpec
from firstline.workbench.pairing.surroundings import look_around, readable_image, why_unknown
from firstline.workbench.quality import require_fitting_labels
from firstline.workbench.recognition import recognise
from firstline.workbench.recognition.reading import Reading
from firstline.workbench.selection import split_clusters
from firstline.workbench.spec import read_recipe
from firstline.workbench.trial import trial_outputs
from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError, ModelLoadError
from firstline_core.processing.steps import InputSpec
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.storage.files import naming
from firstline_core.tasks import AnyTask
from firstline_core.tasks.anomaly import Anomaly
from firstline_core.tasks.classification import Classification
from firstline_core.tasks.detection import Detection
from firstline_core.tasks.regression import Regression
from firstline_core.tasks.segmentation import Segmentation
from firstline_core.telemetry.wording import counted
from firstline_core.types import Array

_MOST_DECIDING, _FEWEST_DECIDING, _DECIDING_SHARE = 384, 48, 0.2
_SEED = 0
_LEAST_CLUSTERS, _MOST_CLUSTERS = 3, 0.34  # number that decide, and their share
_LEAST_SURE = 0.5
_RECIPE = "recipe.toml"
_OWN_FILE = re.compile(r"\..*|bundle|labels\.txt|windows\.npz|contact-.*\.png|disagreements")


@dataclass(frozen=True, slots=True)
class ReadPair:
    """Models whose families and steps are known.

    Attributes:
        task: of all of them.
        labels_source: where the labels are from, in words.
        models: by role, with sentences about what was assumed and decided.
        agreement: of both models, as a sentence; "" for one model.
        promises: of the user, by event; "" is about all answers.
    """

    task: AnyTask
    labels_source: str
    models: Mapping[str, Reading]
    agreement: str
    promises: Mapping[str, EventBound]


def split(dataset: Dataset) -> tuple[Dataset, Dataset]:
    """Returns the samples that decide how the models are read, and the others, which certify and are reported.

    A certificate needs rows that decided nothing. Samples of one cluster, such as a clip, stay together; those without
    a cluster are independent. A data set that cannot be divided decides and is reported as a whole.
    """
    count = min(_MOST_DECIDING, max(_FEWEST_DECIDING, round(_DECIDING_SHARE * len(dataset))))
    if 2 * count > len(dataset):
        count = len(dataset) // 2
    if not count:
        return dataset, dataset
    rng = np.random.default_rng(_SEED)  # evenly spread rows may all be of one class
    chosen: NDArray[np.intp] = rng.permutation(len(dataset))[:count]
    others = np.setdiff1d(np.arange(len(dataset)), chosen)
    if dataset.clusters:
        least = _LEAST_CLUSTERS / len(set(dataset.clusters))
        chosen, others = split_clusters(dataset.clusters, max(count / len(dataset), min(least, _MOST_CLUSTERS)), _SEED)
        chosen = rng.permutation(chosen)[:_MOST_DECIDING]
    deciding, rest = (tuple(dataset.samples[at] for at in np.sort(part)) for part in (chosen, others))
    if not deciding or not rest:
        return dataset, dataset
    return replace(dataset, samples=deciding), replace(dataset, samples=rest)


def read_files(spec: PairSpec, options: RuntimeOptions) -> dict[str, ModelFile]:
    """Returns the descriptions of the models, by role.

    Raises:
        ConfigError: a file is of no known runtime, cannot be read, or does not load.
    """
    try:
        return {role: read_model_file(file, options) for role, file in spec.files.items()}
    except ModelLoadError as error:
        raise ConfigError(error.message) from error


def larger_edge(spec: PairSpec) -> bool:
    """Returns whether the edge model's file is larger than the full model's."""
    sizes = {role: file.stat().st_size for role, file in spec.files.items()}
    return len(sizes) > 1 and sizes[EDGE] > sizes[FULL]


def label_lists(spec: PairSpec, files: Mapping[str, ModelFile], data: Path) -> list[tuple[str, ...]]:
    """Returns the known lists of labels: the user's, the models' own, and those of files near them."""
    lists = [spec.labels, *(file.labels for file in files.values()), *label_files(spec.places(data)).values()]
    return [labels for labels in lists if labels]


def read_pair(
    spec: PairSpec,
    files: Mapping[str, ModelFile],
    dataset: Dataset,
    options: RuntimeOptions,
    show: Callable[[str], None] = lambda sentence: None,
) -> ReadPair:
    """Recognises the models, lets the data decide what their files do not tell, and compares them.

    Args:
        spec: files, labels and choices of the user.
        files: from `read_files`.
        dataset: that decides, see `split`.
        options: how the models run.
        show: receives each step.

    Raises:
        ConfigError: a person has to choose, a model is of no known family, the models do not fit each other or the
            data, a promise is not valid, or a choice answers no question.
        FirstlineError: a model does not load or run.
    """
    nearby = label_files(spec.places(dataset.path))
    near = look_around(spec, dataset, files, {len(spec.labels), *map(len, nearby.values())})
    tried = {role: with_output_rows(file, _raw(spec.files[role], file, dataset)) for role, file in files.items()}
    files, raw = ({role: found[0] for role, found in tried.items()}, {role: found[1] for role, found in tried.items()})
    found = {role: recognise(file, raw[role], near[role]) for role, file in files.items()}
    if unknown := next((role for role, possible in found.items() if not possible), None):
        raise ConfigError(why_unknown(unknown, files[unknown], near[unknown], raw[unknown]))
    recognised = _of_one_task(files, found)
    labelled = label(recognised, spec.labels, nearby)
    task = task_of(labelled)
    promises = parse_promises(spec.promises, task, all_answers=True)
    readings = labelled.readings
    for role, reading in recognised.items():
        show(f"{role}: {reading.family} ({reading.sure:.0%} sure): {'; '.join(reading.assumptions)}.")
    inputs = _inputs(readings.values())
    all_labels = dataset.truth(task, inputs)
    # The first rows decide as long as they settle a choice; data are often sorted by class or cluster.
    order = np.random.default_rng(_SEED).permutation(len(dataset))
    if all_labels is not None:
        order = order[np.argsort(~task.labelled(all_labels)[order], kind="stable")]  # labelled rows first
    every = [row for _, row in dataset.rows(inputs)]
    rows = [every[at] for at in order]
    with ExitStack() as resources:
        trials = {
            role: resources.enter_context(closing(Trials(spec.files[role], task, rows, options, spec.budget_s)))
            for role in files
        }
        count = min(trials[role].affordable(readings[role], 1) for role in files)
        for each in trials.values():
            each.use(count)
        truth = None if all_labels is None else {name: array[order[:count]] for name, array in all_labels.items()}
        settled = Settler(truth, spec.chosen, spec.out).settle_all(trials, readings)
        for role, reading in settled.items():
            for why in reading.assumptions[len(readings[role].assumptions) :]:
                show(f"{role}: {why}.")
        operated = operate(task, trials, settled, truth, spec.tolerance)
        for sentence in operated.decided:
            show(sentence)
        if truth is not None:
            role, reading = list(operated.models.items())[-1]
            require_fitting_labels(operated.task, trials[role].outputs(reading), truth)
        agreement = ""
        if len(settled) > 1:
            agreed = {role: trials[role].outputs(one) for role, one in operated.models.items()}
            agreement = check_agreement(operated.task, agreed[EDGE], agreed[FULL], raw[EDGE])
            show(f"Edge and full model on {counted(count, 'row')}: {agreement}.")
        return ReadPair(operated.task, labelled.source, operated.models, agreement, promises)


def refuse_other_folder(out: Path) -> None:
    """Raises ConfigError if the output folder has files, and none of an earlier run."""
    if out.is_dir() and not (out / _RECIPE).exists():
        others = [file.name for file in sorted(out.iterdir()) if not _OWN_FILE.fullmatch(file.name)]
        if others:
            raise ConfigError(f"{out} has other files, such as {others[0]}; name another folder with --out.")


@contextmanager
def draft_of(
    spec: PairSpec, pair: ReadPair, options: RuntimeOptions, warn: Callable[[str], None] = lambda sentence: None
) -> Iterator[Bundle]:
    """Writes the recipe with its labels, and yields the bundle that it makes, which is deleted at the end of the block.

    The bundle in the output folder is written at last: an image of the certifying part may be damaged.

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
    score = first_score(task, next(iter(pair.models.values())))
    models = {role: (spec.files[role], reading) for role, reading in pair.models.items()}
    text = recipe_text(spec.bundle_name, task, pair.labels_source, models, score)
    recipe = spec.out / _RECIPE
    with naming(spec.out, "written"):
        spec.out.mkdir(parents=True, exist_ok=True)
        if task.labels:
            (spec.out / "labels.txt").write_text("\n".join(task.labels) + "\n", encoding="utf-8")
        recipe.write_text(text, encoding="utf-8", errors="surrogateescape")
        folder = TemporaryDirectory(prefix=f".{BUNDLE}.", dir=spec.out)
    with folder as place:
        yield create_bundle(replace(read_recipe(recipe), recipe=None), Path(place) / BUNDLE, warn=warn, options=options)


def task_of(labelled: Labelled) -> AnyTask:
    """Returns the task of a pair; the tolerance of a regression is not known yet."""
    last = list(labelled.readings.values())[-1]
    match last.task:
        case "segmentation" if last.size is not None:
            return Segmentation(labels=labelled.labels, width=last.size[0], height=last.size[1])
        case "detection":
            return Detection(labels=labelled.labels)
        case "regression":
            return Regression(names=last.names, absolute=1)
        case "anomaly":
            return Anomaly()
        case "classification":
            return Classification(labels=labelled.labels)
    raise AssertionError(f"there is no pair of models for {last.task}")


def _inputs(readings: Iterable[Reading]) -> tuple[InputSpec, ...]:
    """Returns the bundle's inputs, as wide as any value of the open properties needs."""
    feeds: dict[str, InputSpec] = {}
    for reading in readings:
        open_ones = [one for one in reading.choices if one.field == "standardized"]
        for alternative in (reading, *(reading.with_value(one, "standardize") for one in open_ones)):
            feeds |= {feed.spec.name: feed.spec for feed in alternative.feeds}
    return tuple(feeds.values())


def _raw(file: Path, described: ModelFile, dataset: Dataset) -> dict[str, Array]:
    image = None
    if dataset.kind == "image":
        (content,) = replace(dataset, samples=dataset.samples[:1]).contents()
        image = readable_image(content, dataset.place_of(dataset.samples[0]))
    return dict(trial_outputs(file, described, image))


def _of_one_task(files: Mapping[str, ModelFile], found: Mapping[str, list[Reading]]) -> dict[str, Reading]:
    """Returns the surest readings of both models that are of one task.

    Args:
        files: by role.
        found: at least one reading by role, the surest first.

    Raises:
        ConfigError: nothing shows what a model is, or the tasks differ.
    """
    tasks = set.intersection(*({reading.task for reading in readings} for readings in found.values()))
    if not tasks:
        kinds = ", ".join(f"{role} {readings[0].family}" for role, readings in found.items())
        raise ConfigError(f"Both models need the same task; they are: {kinds}.")
    best = {
        task: {role: next(one for one in readings if one.task == task) for role, readings in found.items()}
        for task in tasks
    }
    _, chosen = max(best.items(), key=lambda item: (min(one.sure for one in item[1].values()), item[0]))
    for role, reading in chosen.items():
        if reading.sure < _LEAST_SURE:
            raise ConfigError(
                f"The {role} model {files[role].name} may be of the family '{reading.family}', but that is a guess: "
                f"{'; '.join(reading.assumptions)}. If it is one, name its classes with --labels, or "
                "write a recipe for `firstline bundle create`."
            )
    return chosen
