"""What `firstline compress` makes of the digits' edge model, of a ResNet-56, and of a ResNet-8 in TFLite.

The ResNet-56 is quantised, cut, and teaches a ResNet-20.

Beside it what Microsoft's Olive makes of the same models (`olive.py`), in the same run: the same images, latency in
turns, one judge. A student is taught by PyTorch, which is not in every environment: each model's run is a process of
the interpreter that has it, this one's own or `.venv-train`'s.

    PYTHONPATH=tests:bench .venv-train/bin/python -m hardware.compress MODEL --out FILE [--checkpoints DIR] [--quick]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from figures import Figure
from msgspec import Struct
from pools import CIFAR10, DATA, DIGITS, Pair

from firstline.workbench.bundle import create_bundle
from firstline.workbench.compress import judge
from firstline.workbench.compress.compression import Compression, Promise, compress, promise_of, source_of
from firstline.workbench.compress.distilling import can_train
from firstline.workbench.compress.student import DEPTH, STARTED_RATE, Lesson
from firstline.workbench.dataset import open_dataset
from firstline.workbench.recipe import read_recipe
from firstline_core.bundle.store import Bundle, open_bundle
from firstline_core.routing import binomial
from hardware import olive
from hardware.parts import Asked, NotRunError

TAUGHT = replace(CIFAR10, name="cifar10-cascade resnet20")
"""The student starts as a published ResNet-20, which this bundle has too."""
TFLITE = replace(CIFAR10, name="cifar10-cascade resnet8 in TFLite")
"""The small model itself, in fp32."""
SUBJECTS = (DIGITS, CIFAR10, TAUGHT, TFLITE)
_FULL = (CIFAR10, TAUGHT)
"""Those whose full model is compressed."""
BESIDE_OLIVE = (DIGITS, CIFAR10)
LESSONS = {
    CIFAR10.name: Lesson(depth=DEPTH, epochs=14),
    TAUGHT.name: Lesson(start="resnet20", epochs=6, rate=STARTED_RATE),
}
MAX_LOSS = 0.02
DELTA = 0.05
_FASTER, _SMALLER = 4, 8
_CHECKOUT = Path(__file__).parents[2]
_MODELS = _CHECKOUT / "models"


class Technique(Struct, frozen=True):
    """One candidate. `figures` is None where it could not be made."""

    technique: str
    figures: judge.Figures | None
    accepted: bool
    reasons: tuple[str, ...]
    parameters: dict[str, str]


class Record(Struct, frozen=True):
    """One bundle.

    Attributes:
        rows: images of each part: make, judge, certify.
        techniques: ours, and Olive's by names that begin with "olive-".
        certified_accuracy: of every model, by id, on the rows that certify, which chose nothing.
        olive_s: seconds of each of Olive's passes, its start included.
        installed: what Olive takes, and what ours does; None where it was not run.
    """

    source: str
    promise: Promise
    rows: tuple[int, int, int]
    there: tuple[judge.Figures, ...]
    techniques: tuple[Technique, ...]
    certified_accuracy: dict[str, float] = {}
    olive_s: dict[str, float] = {}
    installed: olive.Installed | None = None


def measure(name: str, asked: Asked) -> Record:
    """One bundle, by a process of the interpreter that has PyTorch; minutes, and as long again for each training."""
    with TemporaryDirectory() as folder:
        out = Path(folder) / "record.json"
        command = [_python(), "-m", "hardware.compress", name, "--out", out, "--checkpoints", asked.checkpoints]
        done = subprocess.run(
            [*map(str, command), *(["--quick"] if asked.quick else [])],
            cwd=_CHECKOUT,
            env=os.environ | {"PYTHONPATH": f"{_CHECKOUT / 'tests'}:{_CHECKOUT / 'bench'}"},
            check=False,
        )
        if done.returncode:
            raise NotRunError(f"its process ended with {done.returncode}, as it says above.")
        return msgspec.json.decode(out.read_bytes(), type=Record)


def _python() -> Path:
    """The interpreter that can train; this one where there is none."""
    with_torch = _CHECKOUT / ".venv-train" / "bin" / "python"
    return Path(sys.executable) if can_train() or not with_torch.exists() else with_torch


def main(arguments: Sequence[str] | None = None) -> None:
    """Writes one bundle's record."""
    parser = argparse.ArgumentParser(prog="hardware.compress", description=__doc__)
    parser.add_argument("model", choices=[subject.name for subject in SUBJECTS])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--checkpoints", type=Path)
    parser.add_argument("--quick", action="store_true", help="without students, and without Olive")
    said = parser.parse_args(arguments)
    subject = next(subject for subject in SUBJECTS if subject.name == said.model)
    with_olive = subject in BESIDE_OLIVE and not olive.missing() and not said.quick
    lesson = LESSONS.get(subject.name) if can_train() and not said.quick else None
    said.out.write_bytes(msgspec.json.encode(_made(subject, lesson, said.checkpoints, with_olive=with_olive)))


def _made(subject: Pair, lesson: Lesson | None, checkpoints: Path | None, *, with_olive: bool) -> Record:
    """Makes, judges and certifies all candidates."""
    olive_s: dict[str, float] = {}
    if checkpoints is not None:
        checkpoints.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder:
        bundle = _bundle(subject, Path(folder) / "bundle")
        work = Path(folder) / "work"
        work.mkdir()
        found = compress(
            bundle,
            open_dataset(images_of(subject)),
            work,
            source=source_of(
                bundle.manifest, bundle.manifest.full.id if bundle.manifest.full and subject in _FULL else ""
            ),
            promise=promise_of(bundle.manifest, None, None),
            max_loss=MAX_LOSS,
            lesson=lesson,
            others=olive.passes(olive_s) if with_olive else {},
            checkpoints=checkpoints,
            told=lambda words: print(words, file=sys.stderr, flush=True),
        )
    return Record(
        found.source.id,
        found.promise,
        found.rows,
        found.there,
        _techniques(found),
        found.certified_accuracy,
        olive_s,
        olive.installed() if with_olive else None,
    )


def _techniques(found: Compression) -> tuple[Technique, ...]:
    return tuple(
        Technique(
            one.technique,
            one.figures,
            one.verdict is not None and one.verdict.accepted,
            one.verdict.reasons if one.verdict is not None else (one.failed,),
            one.model.provenance.parameters if one.model is not None and one.model.provenance is not None else {},
        )
        for one in found.candidates
    )


def images_of(subject: Pair) -> Path:
    """The labelled images that its bundle is compressed with."""
    return DATA / subject.images / "dev" if subject.images else _MODELS / subject.recipe / "heldout"


def lacks(name: str, record: Record) -> str:
    """What the record of this bundle should have, and has not; "" where it has all, else why."""
    techniques = {one.technique for one in record.techniques}
    if name in LESSONS and "student" not in techniques:
        return "no student was taught, for PyTorch is neither here nor in .venv-train (make bench-hardware)."
    if name in {subject.name for subject in BESIDE_OLIVE} and not techniques >= set(olive.PASSES):
        return olive.missing() or "Olive was left out."
    return ""


def lost(before: Record, found: Record) -> str:
    """Which candidates the record had that the new one did not try; "" where it tried them all."""
    gone = sorted({one.technique for one in before.techniques} - {one.technique for one in found.techniques})
    return f"it has {', '.join(gone)}, which this run could not make." if gone else ""


def figures(records: Mapping[str, Record]) -> list[Figure]:
    """Of every bundle and technique, with the aims that were set."""
    found: list[Figure] = []
    for name, record in records.items():
        source = _source(record)
        judged = record.rows[1]
        found += told(name, source, source, judged)
        for one in record.techniques:
            if one.figures is not None:
                if (new := record.certified_accuracy.get(one.figures.id)) is not None:
                    lost = (record.certified_accuracy[source.id] - new) * 100
                    found.append(Figure(f"{name}: {one.technique}: lost on rows that chose nothing", lost, "points"))
                found += told(f"{name}: {one.technique}", one.figures, source, judged)
                found.append(Figure(f"{name}: {one.technique}: accepted", int(one.accepted), "of 1"))
            if one.technique in record.olive_s:
                found.append(
                    Figure(f"{name}: {one.technique}: to make it", round(record.olive_s[one.technique], 1), "s")
                )
        if name == DIGITS.name:
            found.append(_refused(name, record))
        if record.installed is not None:
            found.append(Figure(f"{name}: Olive installed", record.installed.olive, "bytes"))
            ours = record.installed.ours
            found.append(Figure(f"{name}: firstline[compress] installed, beyond the workbench", ours, "bytes"))
    if cifar := {name: record for name, record in records.items() if name in LESSONS}:
        found += _best(cifar)
    return found


def _source(record: Record) -> judge.Figures:
    return next(one for one in record.there if one.id == record.source)


def _refused(name: str, record: Record) -> Figure:
    """That int8 is refused where it is slower."""
    refused = [one for one in record.techniques if one.technique in ("static-int8", "dynamic-int8")]
    held = all(not one.accepted and "slower" in " ".join(one.reasons) for one in refused)
    count = sum(not one.accepted for one in refused)
    label = f"{name}: int8 refused, slower"
    return Figure(label, count, f"of {len(refused)}", "static and dynamic", held and len(refused) == 2)


def _best(records: Mapping[str, Record]) -> list[Figure]:
    """The aim for the full model, over all ways that were tried: only what was accepted would be shipped."""
    gains = [
        (source.latency_ms / one.figures.latency_ms, source.size_bytes / one.figures.size_bytes, name, one.technique)
        for name, record in records.items()
        for source in (_source(record),)
        for one in record.techniques
        if one.figures is not None and one.accepted and one.figures.accuracy >= source.accuracy - MAX_LOSS - 1e-9
    ]
    meet = [gain for gain in gains if gain[0] >= _FASTER or gain[1] >= _SMALLER]
    by = ", ".join(f"{name}: {technique}" for *_, name, technique in meet)
    aim = f"at least 1 that is {_FASTER} times faster or {_SMALLER} times smaller"
    label = "CIFAR full model: accepted candidates that are it within 2 points"
    rows = [Figure(label, len(meet), f"({by})" if by else "", aim, bool(meet))]
    if gains:
        for what, at in (("fastest", 0), ("smallest", 1)):
            best = max(gains, key=lambda gain: float(gain[at]))
            rows.append(
                Figure(f"CIFAR full model: {what} accepted within 2 points", best[at], f"times ({best[2]}: {best[3]})")
            )
    return rows


def told(name: str, one: judge.Figures, source: judge.Figures, judged: int) -> list[Figure]:
    """Of one model beside the source, in figures that begin with its name; `judged` rows told its accuracy."""
    wrong = round((1 - one.accuracy) * judged)
    least = 1 - binomial.upper_bound(wrong, judged, DELTA)
    rows = [
        Figure(f"{name}: accuracy", one.accuracy, "share"),
        Figure(f"{name}: accuracy, at least with 95 %", least, "share"),
        Figure(f"{name}: latency p50 of the model alone", one.latency_ms, "ms"),
        Figure(f"{name}: size", one.size_bytes, "bytes"),
    ]
    if one.kept is not None:
        rows.append(Figure(f"{name}: kept by its certificate", one.kept, "share"))
    if one.loss is not None:
        rows.append(Figure(f"{name}: lost on the judging rows", 100 * one.loss.seen, "points"))
        rows.append(Figure(f"{name}: lost, at most with 95 % for all candidates", 100 * one.loss.at_most, "points"))
    if one is not source:
        rows.append(Figure(f"{name}: times faster", source.latency_ms / one.latency_ms, "times"))
        rows.append(Figure(f"{name}: times smaller", source.size_bytes / one.size_bytes, "times"))
    return rows


def _bundle(subject: Pair, folder: Path) -> Bundle:
    if not subject.images:
        return open_bundle(_MODELS / subject.recipe / "bundle")
    spec = read_recipe(_MODELS / subject.recipe / "recipe.toml", DATA / subject.recipe)
    if subject is TAUGHT and spec.full is not None:
        small = replace(spec.full, id="resnet20", file=spec.full.file.with_name("resnet20_cifar10.onnx"))
        spec = replace(spec, edge=(*spec.edge, small))
    if subject is TFLITE:
        edge = spec.edge[0]
        plain = replace(edge, id="resnet8", file=edge.file.with_name("mlperf_resnet8_float.tflite"))
        spec = replace(spec, edge=(plain,))
    return create_bundle(spec, folder)


if __name__ == "__main__":
    main()
