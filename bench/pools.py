"""Labelled pools of real model pairs: the answers of edge and full model for every image, collected once and cached.

The images of a pool can be changed before the models see them, for example blurred like those of a camera out of focus.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from firstline.workbench.bundle import create_bundle
from firstline.workbench.data.dataset import Dataset, Media, open_dataset
from firstline.workbench.data.files import Where
from firstline.workbench.data.sample import Sample
from firstline.workbench.observe import observe_here
from firstline.workbench.spec import read_recipe
from firstline_core.bundle.store import Bundle, open_bundle
from firstline_core.runtime.select import RuntimeOptions
from firstline_core.tasks.arrays import LABEL
from firstline_core.tasks.classification import Probabilities

_CHECKOUT = Path(__file__).parents[1]
_MODELS = _CHECKOUT / "models"

DATA = Path(os.environ.get("FIRSTLINE_SHARED_DATA", _CHECKOUT.parent / "shared" / "data"))
"""Folder of the third-party models and images."""

CACHE = Path(tempfile.gettempdir()) / "firstline-pools"
"""Folder of collected answers."""

Change = Callable[[bytes], bytes]
"""Changes an encoded image."""


@dataclass(frozen=True, slots=True)
class Pair:
    """An edge variant, its full model, and the labelled images to measure them on.

    Args:
        name: for people.
        recipe: folder below models/.
        variant: id of the edge variant.
        images: folder below the third-party data, "" for images of the checkout.
    """

    name: str
    recipe: str
    variant: str
    images: str

    def missing_in(self, data: Path) -> Path | None:
        """Returns the first missing folder, or None."""
        folders = (data / self.recipe, data / self.images) if self.images else ()
        return next((folder for folder in folders if not folder.is_dir()), None)


DIGITS = Pair("digits", "digits", "edge-onnx", "")
CIFAR10 = Pair("cifar10-cascade resnet8-int8", "cifar10-cascade", "resnet8-int8", "cifar10-cascade")
IMAGENET = Pair("imagenet-cascade v1-160", "imagenet-cascade", "v1-160", "imagenet-cascade")
TRAINSAMPLE = Pair("imagenet-trainsample v1-160", "imagenet-cascade", "v1-160", "imagenet-trainsample")
"""Other images for the models of `IMAGENET`. Its accuracy is too high if the models were trained on them."""


@dataclass(frozen=True, slots=True)
class Pool:
    """One edge variant of one pair on all labelled images. Shapes (n, classes) and (n,)."""

    name: str
    edge: Probabilities
    full: Probabilities
    labels: NDArray[np.int64]

    def losses(self) -> dict[str, NDArray[np.bool_]]:
        """Returns both losses of an edge answer: the full model answers differently; only the full model is right."""
        edge, full = self.edge.argmax(axis=1), self.full.argmax(axis=1)
        return {"disagreement": edge != full, "harm": (full == self.labels) & (edge != self.labels)}

    def take(self, rows: NDArray[np.intp]) -> Pool:
        """Returns the pool of these rows, repeated if they are named twice."""
        return Pool(self.name, self.edge[rows], self.full[rows], self.labels[rows])


def collect(
    pair: Pair, data: Path = DATA, *, change: Change | None = None, changed: str = "", limit: int | None = None
) -> Pool:
    """Runs the pair's models on its images, or reads the answers of an earlier run of this recipe.

    Args:
        pair: what to run.
        data: third-party models and images.
        change: applied to each image first.
        changed: name of that change, with its strength.
        limit: number of images, spread evenly; None for all.
    """
    digest = _digest(pair)
    file = CACHE / f"{pair.name.replace(' ', '-')}{'-' + changed if changed else ''}-{limit or 'all'}-{digest}.npz"
    if not file.is_file():
        CACHE.mkdir(parents=True, exist_ok=True)
        folder = data / pair.images / "dev" if pair.images else _MODELS / pair.recipe / "heldout"
        dataset = open_dataset(folder, limit)
        if change is not None:
            dataset = replace(dataset, media=_Changed(dataset.media, change))
        unfinished = file.with_suffix(f".{os.getpid()}.npz")
        np.savez_compressed(unfinished, allow_pickle=False, **_observe(bundle_of(pair, data), pair, dataset))
        unfinished.replace(file)
    with np.load(file) as stored:
        return Pool(pair.name, stored["edge"], stored["full"], stored["labels"])


@dataclass(frozen=True, slots=True)
class _Changed:
    media: Media | None
    change: Change

    def read(self, samples: Sequence[Sample], where: Where) -> Iterator[bytes]:
        if self.media is not None:
            yield from map(self.change, self.media.read(samples, where))


def _digest(pair: Pair) -> str:
    file = _MODELS / pair.recipe / ("recipe.toml" if pair.images else "bundle/manifest.json")
    return hashlib.sha256(file.read_bytes()).hexdigest()[:12]


def bundle_of(pair: Pair, data: Path = DATA) -> Bundle:
    """Returns the pair's bundle; bundles of third-party models are created in the cache."""
    if not pair.images:
        return open_bundle(_MODELS / pair.recipe / "bundle")
    folder = CACHE / f"{pair.recipe}-{_digest(pair)}"
    if not folder.is_dir():
        create_bundle(read_recipe(_MODELS / pair.recipe / "recipe.toml", data / pair.recipe), folder)
    return open_bundle(folder)


def _observe(bundle: Bundle, pair: Pair, dataset: Dataset) -> dict[str, NDArray[np.generic]]:
    manifest = bundle.manifest
    if manifest.full is None:
        raise ValueError(f"{manifest.name} has no full model to compare with")
    edge = next(model for model in manifest.edge if model.id == pair.variant)
    of_edge, of_full = observe_here(bundle, (edge, manifest.full), dataset, RuntimeOptions(threads=1)).answers
    return {
        "edge": of_edge.probabilities,
        "full": of_full.probabilities,
        "labels": dataset.required_truth(manifest.task)[LABEL],
    }
