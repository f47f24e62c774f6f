"""The labels of the bundle, and how each model's own classes become them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from firstline.workbench.recognition.reading import COCO, Choice, Reading
from firstline.workbench.spec import read_labels
from firstline_core.errors import ConfigError

_NAMES = ("*label*.txt", "*classes*.txt", "*.names")
_BACKGROUND = "background"
_IMAGENET = 1000  # labels, before which TensorFlow's models have a background class
_LEAST_SHARE = 0.5  # of a model's own labels that the bundle has too


class Labelled(NamedTuple):
    """The labels of a bundle.

    Attributes:
        labels: in the order of the task.
        source: where they are from, in words.
        readings: with steps that turn each model's own classes into them.
    """

    labels: tuple[str, ...]
    source: str
    readings: dict[str, Reading]


def label_files(folders: Sequence[Path]) -> dict[Path, tuple[str, ...]]:
    """Returns the label files in some folders, with their labels."""
    found: dict[Path, tuple[str, ...]] = {}
    for folder in folders:
        for file in sorted(file for name in _NAMES for file in folder.glob(name)):
            try:
                labels = read_labels(file)
            except ConfigError:
                continue
            if labels:
                found[file] = labels
    return found


def label(readings: Mapping[str, Reading], given: tuple[str, ...], nearby: Mapping[Path, tuple[str, ...]]) -> Labelled:
    """Chooses the labels, and adapts the readings.

    Args:
        readings: by role, "edge" or "full"; all of one task.
        given: by the user; () if there are none.
        nearby: label files next to the models and the data, which are used if their number fits.

    Raises:
        ConfigError: a model has other classes.
    """
    task = next(iter(readings.values())).task
    if task in ("regression", "anomaly"):
        return Labelled((), "", dict(readings))
    labels, source = _chosen(readings, given, nearby, task)
    lists = (given, *(reading.labels for reading in readings.values()), *nearby.values())
    first = any(names[1:] == labels and names[0].lower() == _BACKGROUND for names in lists)
    classifier = partial(_classifier, background_is_first=first or len(labels) == _IMAGENET)
    fits: dict[str, Callable[[str, Reading, tuple[str, ...]], Reading]]
    fits = {"detection": _detector, "classification": classifier, "segmentation": _segmentation}
    return Labelled(labels, source, {role: fits[task](role, reading, labels) for role, reading in readings.items()})


def _chosen(
    readings: Mapping[str, Reading], given: tuple[str, ...], nearby: Mapping[Path, tuple[str, ...]], task: str
) -> tuple[tuple[str, ...], str]:
    by_preference = [readings[role] for role in ("full", "edge") if role in readings]
    if given:
        return _without_background(given, task, by_preference), "the labels file"
    own = [reading for reading in by_preference if reading.labels]
    # Labels of another number than the model's classes are of something else.
    fitting = [reading for reading in own if not reading.classes or len(reading.labels) == reading.classes]
    if fitting and (task != "detection" or not _unused(fitting[0].labels)):
        return _without_background(fitting[0].labels, task, by_preference), f"the metadata of the {fitting[0].family}"
    counts = {reading.classes for reading in by_preference if reading.classes}
    for file, labels in nearby.items():
        plain = _without_background(labels, task, by_preference)
        if len(plain) in counts and not _unused(plain):
            return plain, str(file)
    for file, labels in nearby.items():
        if task == "classification" and len(labels) + 1 in counts:
            return labels, str(file)
    if task == "detection" and (not counts or counts & {80, 90, 91}):
        return COCO, "COCO's 80 classes, which such detectors usually have"
    if not counts and len(set(nearby.values())) == 1:
        return next(iter(nearby.values())), str(next(iter(nearby)))
    if not counts:
        raise ConfigError("The number of classes is not known; give the labels with --labels FILE.")
    return tuple(str(number) for number in range(min(counts))), "the numbers of the classes, as no names were found"


def _unused(labels: Sequence[str]) -> bool:
    """Whether some rows are placeholders, as in lists of COCO's category ids."""
    return any(set(label) <= set("?-") or label.lower() in ("n/a", "unused") for label in labels)


def _without_background(labels: tuple[str, ...], task: str, readings: Sequence[Reading]) -> tuple[str, ...]:
    """Returns the labels of a classifier without the class that no image is."""
    outputs = {reading.classes for reading in readings}
    dropped = task == "classification" and labels[:1] and labels[0].lower() == _BACKGROUND and len(labels) in outputs
    return labels[1:] if dropped else labels


def _classifier(role: str, reading: Reading, labels: tuple[str, ...], *, background_is_first: bool) -> Reading:
    """Returns a classifier's reading with the steps from its outputs to the labels.

    Args:
        role: of the model.
        reading: of the model.
        labels: of the bundle, without a background class.
        background_is_first: whether an output more than labels is known to be the first; else the data decide.
    """
    if reading.classes == len(labels):
        return reading
    if reading.classes == len(labels) + 1:
        cuts = "label_offset:1", f"columns:{'/'.join(map(str, range(len(labels))))}"
        first, last = (",".join(step for step in (reading.decoder, cut) if step) for cut in cuts)
        if background_is_first:
            return reading.noted("its first output is a background class, which is dropped", decoder=first)
        either = Choice("decoder", (first, last), known=False)
        why = "its first or its last output is a background class, which is dropped"
        return reading.noted(why, decoder=first, choices=(either, *reading.choices))
    raise _wrong_number(role, f"{reading.classes} outputs", labels, "one per line")


def _segmentation(role: str, reading: Reading, labels: tuple[str, ...]) -> Reading:
    """Returns a segmentation's reading: its classes are the labels."""
    if reading.classes in (0, len(labels)):
        return reading
    raise _wrong_number(role, f"{reading.classes} classes", labels, "the background included, one per line")


def _detector(role: str, reading: Reading, labels: tuple[str, ...]) -> Reading:
    """Returns a detector's reading with the step from its classes to the labels."""
    if reading.labels == labels:
        return reading
    if reading.labels:
        positions = {name: position for position, name in enumerate(labels)}
        found = [positions.get(name, -1) for name in reading.labels]
        numbers = [number for number in found if number >= 0]
        used = [name for name in reading.labels if not _unused([name])]
        if len(numbers) < _LEAST_SHARE * min(len(used), len(labels)):
            raise ConfigError(
                f"The {role} model's own labels are {', '.join(used[:5])}, ..., and the bundle's "
                f"{', '.join(labels[:5])}, ...; both models need the same classes, or names given with --labels FILE."
            )
        why = f"its {len(used)} classes become the bundle's labels by their names"
        left = tuple(choice for choice in reading.choices if choice.field != "class_map")
        return reading.noted(why, class_map="/".join(map(str, found)), choices=left)
    if reading.classes == len(labels):
        return replace(reading, class_map="")
    of_coco = len(labels) == len(COCO)  # whatever their spelling
    if not reading.classes:
        return reading if of_coco else _numbered(reading, len(labels))
    if reading.class_map and of_coco:
        return reading
    if reading.classes in (90, 91) and labels == COCO:
        return reading.noted(f"its {reading.classes} classes are COCO's ids", class_map=f"coco{reading.classes}")
    raise _wrong_number(role, f"{reading.classes} classes", labels, "one per line")


def _wrong_number(role: str, found: str, labels: Sequence[str], form: str) -> ConfigError:
    """Returns the error about a model with another number of classes than labels; `form` is that of the file."""
    return ConfigError(
        f"The {role} model has {found} and there are {len(labels)} labels; give the labels of the model, {form}, with "
        "--labels FILE."
    )


def _numbered(reading: Reading, count: int) -> Reading:
    """Returns a detector's reading with consecutive numbers of its classes, in place of COCO's category ids."""
    left = tuple(one for one in reading.choices if one.field != "class_map")
    of_coco = next((one.values for one in reading.choices if one.field == "class_map"), None)
    if of_coco is None:
        return reading
    from_one = "/".join(map(str, range(-1, count)))
    values = tuple(dict.fromkeys(from_one if value == "coco91" else "" for value in of_coco))
    return replace(reading, class_map=values[0], choices=(*left, Choice("class_map", values, known=True)))
