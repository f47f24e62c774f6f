"""Segmentation: a class for each pixel. Pure.

The outputs are `mask` UINT8 [n, height, width], where 255 is ignored, and `confidence` FP32 [n]. `processing/masks.py`
describes the frame of masks: the upright image in its top left corner. The evidence summarises a model's
probabilities of each class.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from firstline_core.errors import ConfigError, InferenceError, InvalidTensorError, ModelLoadError
from firstline_core.processing import masks
from firstline_core.processing.geometry import GEOMETRY, InputSize
from firstline_core.processing.masks import IGNORED, Mask
from firstline_core.processing.steps import Argmax, Binary, ClassMap, ClassScores, Positive, PostStep, Softmax
from firstline_core.tasks.base import ConfiguredTask, Misses, ModelOutputs, Postprocess, Prediction, Scores
from firstline_core.tasks.drawing import COLOURS, write
from firstline_core.tasks.view import WHOLE, View
from firstline_core.telemetry.wording import counted
from firstline_core.types import Array, Arrays, Share, TensorSpec

if TYPE_CHECKING:
    from PIL import Image

MASK, CONFIDENCE = "mask", "confidence"
"""Outputs UINT8 (n, height, width) and FP32 (n,)."""

CLASS_IOU, CLASS_BEST = "class_iou", "class_best"
"""Evidence FP32 (n, labels): the intersection over union that the model's own probabilities let expect for each class
of its map (0 for the others), and the highest probability of each class in any cell."""

_CELLS = 64  # of each axis of the grid from which the evidence is computed
_LABELS_AT_MOST = 64  # with more, no selection part has enough rows of each class


class Segmentation(ConfiguredTask, frozen=True, tag="segmentation"):
    """A model of masks.

    Attributes:
        labels: of the classes, in their order.
        width: of masks, in pixels.
        height: of masks, in pixels.
        counted: labels whose intersection over union counts in the loss; all if there are none.
        iou: intersection over union from which a class was found, for events.
        least_share: of the image that a class covers, for events; smaller ones are neither missed nor invented.
    """

    score_kinds: ClassVar[tuple[str, ...]] = ("expected_iou", "mean_confidence", "lowest_iou", "few_classes")
    quality: ClassVar[str] = "miou"
    higher_is_better: ClassVar[bool] = True
    view_options: ClassVar[tuple[str, ...]] = ("classes", "masks")
    in_pixels: ClassVar[bool] = True

    labels: Annotated[tuple[str, ...], Meta(min_length=2, max_length=255)]
    width: Positive
    height: Positive
    counted: tuple[str, ...] = ()
    iou: Annotated[float, Meta(gt=0, le=1)] = 0.5
    least_share: Share = 0.0

    def __post_init__(self) -> None:
        for label in self.counted:
            if label not in self.labels:
                raise ValueError(f"counted names the label '{label}', which does not exist")

    @property
    def frame(self) -> InputSize:
        """Returns the size of masks."""
        return InputSize(self.width, self.height)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return TensorSpec(MASK, "UINT8", (-1, self.height, self.width)), TensorSpec(CONFIDENCE, "FP32", (-1,))

    @property
    def evidence(self) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(name, "FP32", (-1, len(self.labels))) for name in (CLASS_IOU, CLASS_BEST))

    @property
    def truth(self) -> tuple[TensorSpec, ...]:
        """Returns the form of labelled masks, see `masks.fitted`; a mask of 255 alone is a row without a label."""
        return (TensorSpec(MASK, "UINT8", (-1, self.height, self.width)),)

    @property
    def event_classes(self) -> tuple[str, ...]:
        return self.labels

    def fault(self, outputs: Arrays) -> str:
        mask, confidence = outputs[MASK], outputs[CONFIDENCE]
        if ((mask >= len(self.labels)) & (mask != IGNORED)).any():
            return f"classes outside of 0 to {len(self.labels) - 1}, and not {IGNORED}"
        if not ((confidence >= 0) & (confidence <= 1)).all():
            return "a confidence outside of 0 to 1, or NaN"
        return ""

    def postprocess(self, model: ModelOutputs) -> Postprocess:
        """Compiles the steps.

        `softmax` or `binary` and then `argmax` turn scores of the classes into a map; without `argmax` the output is a
        map of classes. `class_map` follows. `class_scores` names the scores behind a map.
        """
        named = [step for step in model.steps if isinstance(step, ClassScores)]
        steps = [step for step in model.steps if not isinstance(step, ClassScores)]
        maps = [step for step in steps if isinstance(step, ClassMap)]
        steps, table = steps[: len(steps) - len(maps)], masks.class_table(maps, len(self.labels))
        name, size = model.port(model.output), model.image_size()
        to_shares: Callable[[Array], Array] | None = None
        source, computes_map = name, bool(steps)
        match steps, named:
            case [], []:
                pass
            case [], [declared]:
                source = model.port(declared.output)
                softmax = [Softmax()] if declared.of == "logits" else []
                to_shares = masks.class_shares(softmax, declared.layout, model.what)
            case [*before, Argmax() as last], [] if all(isinstance(step, Softmax | Binary) for step in before):
                to_shares = masks.class_shares(before, last.layout, model.what)
            case [], _:
                raise ModelLoadError("Postprocessing of a segmentation: class_scores is given once.")
            case _:
                raise ModelLoadError(
                    "Postprocessing of a segmentation: softmax or binary, argmax and class_map for scores of classes; "
                    "class_map and at most one class_scores for a map of classes."
                )

        def run(raw: Arrays, rows: Arrays) -> Prediction:
            places = rows[GEOMETRY]
            shares = None if to_shares is None else to_shares(raw[source])
            if shares is not None and computes_map:
                classes = shares.argmax(axis=-1)
            else:
                classes = masks.class_map_of(raw[name], model.what)
            for found in (classes,) if shares is None else (classes, shares):
                if len(found) != len(places):
                    raise InferenceError(f"{model.what} gave {len(found)} maps for {counted(len(places), 'row')}.")
            classes = masks.to_labels(classes, table, len(self.labels), model.what)
            framed = [masks.to_frame(one, place, size, self.frame) for one, place in zip(classes, places, strict=True)]
            evidence: dict[str, Array] = {}
            confidence = np.zeros(len(places), np.float32)
            if shares is not None:
                confidence, evidence = self._evidence(shares, places, size, table)
            return Prediction({MASK: np.stack(framed), CONFIDENCE: confidence}, evidence)

        return Postprocess(tuple(dict.fromkeys((name, source))), run, needs=(GEOMETRY,))

    def _evidence(
        self, shares: Array, places: NDArray[np.float32], size: InputSize, table: NDArray[np.int64] | None
    ) -> tuple[Scores, dict[str, Array]]:
        """Returns the mean of the highest probability of each cell of the image, and the evidence."""
        rows, labels = len(places), len(self.labels)
        confidence = np.zeros(rows, np.float32)
        iou, best = np.zeros((rows, labels), np.float32), np.zeros((rows, labels), np.float32)
        for row, (all_cells, place) in enumerate(zip(shares, places, strict=True)):
            grid = masks.image_cells(all_cells.shape[:2], place, size)
            thin = [axis[:: max(1, -(-len(axis) // _CELLS))] for axis in grid]
            cells = all_cells[np.ix_(*thin)].reshape(-1, all_cells.shape[2])
            if table is not None:
                cells = masks.label_shares(cells, table, labels)
            if cells.shape[1] != labels:
                raise InferenceError(
                    f"The model has scores of {cells.shape[1]} classes, but the bundle {labels} labels."
                )
            most = cells.argmax(axis=1)
            sure = cells[np.arange(len(cells)), most]
            confidence[row] = np.clip(sure.mean(), 0, 1)
            found = np.bincount(most, weights=sure, minlength=labels)
            area = np.bincount(most, minlength=labels)
            union = area + cells.sum(axis=0) - found
            iou[row] = np.clip(found / np.maximum(union, 1e-6), 0, 1)
            best[row] = np.clip(cells.max(axis=0), 0, 1)
        return confidence, {CLASS_IOU: iou, CLASS_BEST: best}

    def score(self, kind: str, outputs: Arrays, evidence: Arrays, *, temperature: float = 1.0) -> Scores:
        """Returns the confidence of each row, in [0, 1].

        - `expected_iou`: the mean over the classes of the map of the intersection over union that the model's own
          probabilities let expect.
        - `mean_confidence`: the mean over the cells of the image of the highest probability. Large background areas
          raise it.
        - `lowest_iou`: the lowest expected intersection over union of a class of the map.
        - `few_classes`: 1 / the number of classes in the mask. It needs no probabilities.

        Args:
            kind: one of `score_kinds`.
            outputs: canonical outputs.
            evidence: from the model's probabilities; only `few_classes` needs none.
            temperature: without effect, because the evidence has no logits.

        Raises:
            InvalidTensorError: the model gives only a map of classes.
        """
        if kind == "few_classes":
            found = 1 / np.maximum(self._present(outputs[MASK]).sum(axis=1), 1)
        elif CLASS_IOU not in evidence:
            raise InvalidTensorError(
                f"The score '{kind}' needs scores of the classes; this model gives only their map."
            )
        elif kind == "mean_confidence":
            found = outputs[CONFIDENCE]
        else:
            iou = evidence[CLASS_IOU]
            there = iou > 0
            if kind == "expected_iou":
                found = iou.sum(axis=1) / np.maximum(there.sum(axis=1), 1)
            else:
                found = iou.min(axis=1, where=there, initial=1)
        return np.asarray(found, np.float32)

    def unscored(self, kind: str, steps: Sequence[PostStep]) -> str:
        if kind in ("few_classes", "learned") or any(isinstance(step, Argmax | ClassScores) for step in steps):
            return ""
        return "needs scores of the classes, by argmax or class_scores; without them there are few_classes and learned"

    def features(self, outputs: Arrays, evidence: Arrays) -> NDArray[np.float32]:
        """Returns the inputs of learned scores, (n, feature_count).

        Number of classes, logarithm of the share of the smallest one, confidence, mean and lowest expected intersection
        over union, highest probability of another class (0 without probabilities); then, for up to 64 labels, which
        classes are in the mask.
        """
        counts = self._counts(outputs[MASK])
        present = counts > 0
        shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        least = shares.min(axis=1, where=present, initial=1)
        columns = [present.sum(axis=1), np.log(np.maximum(least, 1e-6)), outputs[CONFIDENCE]]
        if CLASS_IOU in evidence:
            columns += [self.score(kind, outputs, evidence) for kind in ("expected_iou", "lowest_iou")]
            columns.append(evidence[CLASS_BEST].max(axis=1, where=evidence[CLASS_IOU] == 0, initial=0))
        else:
            columns += [np.zeros(len(counts))] * 3
        if len(self.labels) <= _LABELS_AT_MOST:
            columns += list(present.T)
        return np.column_stack(columns).astype(np.float32)

    def supposed_losses(self, outputs: Arrays, evidence: Arrays) -> Scores:
        """Returns 1 - the expected intersection over union, or 1 - `few_classes` without probabilities."""
        supposed: Scores = 1 - self.score("expected_iou" if CLASS_IOU in evidence else "few_classes", outputs, evidence)
        return supposed

    def groups(self, outputs: Arrays) -> Sequence[str]:
        """Returns for each row the label other than the first that covers most; the first if there is no other.

        The first label usually is the background.
        """
        counts = self._counts(outputs[MASK])
        largest = np.where(counts[:, 1:].any(axis=1), counts[:, 1:].argmax(axis=1) + 1, 0)
        return [self.labels[label] for label in largest.tolist()]

    def occurrences(self, outputs: Arrays) -> NDArray[np.int64]:
        """Returns which labels cover at least `least_share` of the image, (n, labels)."""
        return self._present(outputs[MASK], self.least_share).astype(np.int64)

    def loss(self, edge: Arrays, full: Arrays) -> Scores:
        """Returns 1 - the mean intersection over union of the classes that occur in either mask, (n,).

        Pixels that the full model's mask ignores do not count. Others that only the edge model's mask ignores are
        wrong. If the full model's mask ignores every pixel, the loss is 1 if the edge model's has a class, else 0.
        """
        counted = [self.labels.index(label) for label in self.counted or self.labels]
        losses = np.array([1 - _mean(*overlap, counted) for overlap in self._overlaps(edge, full)], np.float32)
        nothing = (full[MASK] == IGNORED).all(axis=(1, 2))
        return np.where(nothing, self._present(edge[MASK])[:, counted].any(axis=1), losses).astype(np.float32)

    def misses(self, edge: Arrays, full: Arrays) -> tuple[Misses, Misses]:
        """Returns the rows that count for "missed" and for "invented", and which of them are lost.

        "missed L" counts rows in which the label L covers `least_share` of the full model's mask; it is lost if the
        intersection over union of L is below `iou`. "invented L" counts the same of the edge model's mask.
        """
        ours, theirs = (self._present(outputs[MASK], self.least_share) for outputs in (edge, full))
        lost = [both / np.maximum(either, 1) < self.iou for both, either in self._overlaps(edge, full)]
        rows = np.array(lost, np.bool_).reshape(theirs.shape)  # so that no rows have columns too
        return (theirs, rows), (ours, rows)

    def labelled(self, truth: Arrays) -> NDArray[np.bool_]:
        """Returns which masks have a class in any pixel."""
        return np.asarray((truth[MASK] != IGNORED).any(axis=(1, 2)), np.bool_)

    def truth_loss(self, outputs: Arrays, truth: Arrays) -> Scores:
        return np.where(self.labelled(truth), self.loss(outputs, truth), 1).astype(np.float32)

    def summary(self, outputs: Arrays, evidence: Arrays, truth: Arrays) -> dict[str, float]:
        """Returns the mean over images of their mean intersection over union, and two figures over all pixels.

        `miou_pooled` is the mean intersection over union of the classes over all pixels of the data set, and
        `pixel_accuracy` the share of pixels with the right class, most of which are background.
        """
        known = self.labelled(truth)
        if not known.any():
            raise ConfigError("The mean intersection over union needs labelled masks; the data has none.")
        overlaps = [overlap for overlap, row in zip(self._overlaps(outputs, truth), known, strict=True) if row]
        both, either = (sum(counts) for counts in zip(*overlaps, strict=True))
        every = list(range(len(self.labels)))
        pixels = int((truth[MASK] != IGNORED).sum())
        return {
            "miou": float(np.mean([_mean(*overlap, every) for overlap in overlaps])),
            "miou_pooled": _mean(both, either, every),
            "pixel_accuracy": float(both.sum() / pixels),
        }

    def describe(self, outputs: Arrays, row: int, view: View = WHOLE) -> dict[str, Any]:
        """Returns the labels of the mask, largest first, each with its share of the image, and the mask.

        The mask is a greyscale PNG in base64 whose values are the numbers of the labels, or run lengths: pairs of a
        number and a count, row by row. If the size of the image is known, it covers the image, else the frame of masks.
        """
        mask = outputs[MASK][row]
        if row < len(view.sizes):
            inner = masks.content(view.sizes[row], self.frame)
            mask = mask[: inner.height, : inner.width]
        wanted = [self.labels.index(label) for label in view.classes or self.labels]
        mask = np.where(np.isin(mask, wanted), mask, IGNORED).astype(np.uint8)
        counts = self._counts(mask[None])[0]
        total = max(int((outputs[MASK][row] != IGNORED).sum()), 1)
        order = [label for label in np.argsort(-counts, kind="stable").tolist() if counts[label]]
        form = {"rle": _run_lengths(mask)} if view.masks == "rle" else {"png": _png(mask)}
        return {
            "classes": [
                {"label": self.labels[label], "class": label, "share": round(float(counts[label]) / total, 4)}
                for label in order
            ],
            "confidence_of_mask": round(float(outputs[CONFIDENCE][row]), 4),
            "mask": {"width": mask.shape[1], "height": mask.shape[0], **form},
        }

    def draw(self, image: Image.Image, outputs: Arrays, row: int, view: View = WHOLE) -> Image.Image:
        """Returns a copy of the upright image with the labels other than the first in colours."""
        from PIL import Image, ImageColor  # Pillow takes 3 MB: import it only for images

        mask = masks.to_image(outputs[MASK][row], image.size, self.frame)
        pixels = np.asarray(image.convert("RGB")).copy()
        found = [label for label in np.unique(mask).tolist() if 0 < label < len(self.labels)]
        shown = [label for label in found if not view.classes or self.labels[label] in view.classes]
        for label in shown:
            colour = np.array(ImageColor.getrgb(COLOURS[label % len(COLOURS)]))
            pixels[mask == label] = (pixels[mask == label] * 0.4 + colour * 0.6).astype(np.uint8)
        drawn = Image.fromarray(pixels)
        for label in shown:
            rows, columns = np.nonzero(mask == label)
            middle = len(rows) // 2
            colour_name = COLOURS[label % len(COLOURS)]
            write(drawn, (float(columns[middle]), float(rows[middle])), self.labels[label], colour_name)
        return drawn

    def distance(self, expected: Arrays, actual: Arrays) -> float:
        """Returns the largest share of different pixels of a row, or difference of a confidence."""
        pixels = (expected[MASK] != actual[MASK]).mean(axis=(1, 2)).max(initial=0)
        confidence = np.abs(expected[CONFIDENCE] - actual[CONFIDENCE]).max(initial=0)
        return float(max(pixels, confidence))

    def _counts(self, pixels: Mask) -> NDArray[np.int64]:
        """Returns the number of pixels of each label, (n, labels)."""
        rows = [np.bincount(mask.reshape(-1), minlength=IGNORED + 1)[: len(self.labels)] for mask in pixels]
        return np.array(rows, np.int64).reshape(len(pixels), len(self.labels))

    def _present(self, pixels: Mask, least_share: float = 0.0) -> NDArray[np.bool_]:
        """Returns which labels cover this share of the pixels that are not ignored, (n, labels)."""
        counts = self._counts(pixels)
        return np.asarray((counts > 0) & (counts >= least_share * counts.sum(axis=1, keepdims=True)), np.bool_)

    def _overlaps(self, edge: Arrays, full: Arrays) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Yields for each row the pixels of each label in both masks, and in either: (labels,) each.

        Only the pixels that the full model's mask does not ignore count.
        """
        labels = len(self.labels)
        for ours, theirs in zip(edge[MASK], full[MASK], strict=True):
            counted = theirs != IGNORED
            some, others = ours[counted], theirs[counted]
            both, ours_of, theirs_of = (
                np.bincount(pixels, minlength=IGNORED + 1)[:labels] for pixels in (some[some == others], some, others)
            )
            yield both, ours_of + theirs_of - both


def _mean(both: NDArray[np.int64], either: NDArray[np.int64], counted: Sequence[int]) -> float:
    """Returns the mean intersection over union of the classes that occur; 1 if none does."""
    both, either = both[counted], either[counted]
    occurs = either > 0
    return float((both[occurs] / either[occurs]).mean()) if occurs.any() else 1.0


def _run_lengths(mask: Mask) -> list[list[int]]:
    """Returns pairs of a class and the number of pixels that follow each other, row by row."""
    flat = mask.reshape(-1)
    starts = np.flatnonzero(np.concatenate(([True], flat[1:] != flat[:-1])))
    lengths = np.diff(np.concatenate((starts, [flat.size])))
    return [list(pair) for pair in zip(flat[starts].tolist(), lengths.tolist(), strict=True)]


def _png(mask: Mask) -> str:
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(mask).save(stream, format="PNG")
    return base64.b64encode(stream.getvalue()).decode()
