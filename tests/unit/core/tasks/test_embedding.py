"""Embeddings and their neighbours."""

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from firstline_core.errors import ConfigError, InferenceError, InvalidTensorError, ModelLoadError
from firstline_core.processing.geometry import InputSize
from firstline_core.processing.steps import Columns, Gallery, Sigmoid
from firstline_core.storage.artefact import Artefact
from firstline_core.tasks.base import ModelOutputs, Postprocess, check_outputs
from firstline_core.tasks.embedding import EMBEDDING, MARGIN, NEIGHBOUR, OTHER, SIMILARITY, Embedding
from firstline_core.types import Array, TensorSpec

PEOPLE = Embedding(2, labels=("ann", "bob", "ann"))
CLOSE = Embedding(2, tolerance=0.1)
FACES = np.array([[2, 0], [0, 5], [1, 1]], np.float32)
FILE = Artefact("faces.npy", "0" * 64, 1)


def people(*neighbours: int, similarity: float = 0.5) -> dict[str, Array]:
    return {
        EMBEDDING: np.ones((len(neighbours), 2), np.float32),
        NEIGHBOUR: np.array(neighbours, np.int64),
        SIMILARITY: np.full(len(neighbours), similarity, np.float32),
    }


def vectors(*rows: tuple[float, ...]) -> dict[str, Array]:
    return {EMBEDDING: np.array(rows, np.float32)}


def content(rows: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, rows)
    return stream.getvalue()


def compiled(task: Embedding, *steps: Any, file: bytes = b"") -> Postprocess:
    ports = [TensorSpec("y", "FP32", (-1, -1))]
    read = file or content(FACES)
    return task.postprocess(
        ModelOutputs(
            "Model 'm'", steps, ports, "y", lambda: InputSize(1, 1), lambda _: lambda array: array, lambda _: read
        )
    )


def test_the_distance_of_embeddings_is_one_less_their_cosine() -> None:
    """Of (3, 4) and (4, 3) it is 1 - 24 / 25, whatever their lengths."""
    edge, full = vectors((3, 4), (3, 4)), vectors((8, 6), (3, 4))
    assert Embedding(2, tolerance=0.041).loss(edge, full).tolist() == [0, 0]
    assert Embedding(2, tolerance=0.039).loss(edge, full).tolist() == [1, 0]


def test_another_label_is_a_loss_and_another_row_of_it_is_none() -> None:
    edge, full = people(0, 0, 1, -1, -1), people(2, 1, 1, -1, 0)
    assert PEOPLE.loss(edge, full).tolist() == [0, 1, 0, 0, 1]
    missed, invented = PEOPLE.events_of(["missed ann", "invented ann"], edge, full).values()
    assert (missed.counts.tolist(), missed.loss.tolist()) == ([True, False, False, False, True], [0, 0, 0, 0, 1])
    assert (invented.counts.tolist(), invented.loss.tolist()) == ([True, True, False, False, False], [0, 1, 0, 0, 0])
    assert PEOPLE.groups(edge) == ["ann", "ann", "bob", "", ""]
    assert PEOPLE.occurrences(edge).tolist() == [[1, 0], [1, 0], [0, 1], [0, 0], [0, 0]]
    assert PEOPLE.event_classes == ("ann", "bob")


def test_a_large_gallery_has_events_of_the_labels_that_the_recipe_names() -> None:
    labels = (*map(str, range(300)), "7")
    assert Embedding(2, labels=labels).events == ()
    assert Embedding(2, labels=labels).occurrences(people(3, -1)).shape == (2, 0)
    assert Embedding(2, labels=labels).groups(people(3, -1)) == ["", ""]
    watched = Embedding(2, labels=labels, event_labels=("9", "7"))
    edge, full = people(7, 8, 300, -1), people(300, 7, 9, 299)
    assert watched.events == ("missed 9", "invented 9", "missed 7", "invented 7")
    assert watched.occurrences(edge).tolist() == [[0, 1], [0, 0], [0, 1], [0, 0]]
    missed, invented = watched.events_of(["missed 7", "invented 7"], edge, full).values()
    assert (missed.counts.tolist(), missed.loss.tolist()) == ([True, True, False, False], [0, 1, 0, 0])
    assert (invented.counts.tolist(), invented.loss.tolist()) == ([True, False, True, False], [0, 0, 1, 0])
    assert watched.groups(edge) == ["7", "", "7", ""]


@pytest.mark.parametrize(
    ("names", "message"), [(("ann", "ann"), "names a label twice"), (("eve",), "'eve', which no row")]
)
def test_labels_with_events_are_different_labels_of_the_gallery(names: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Embedding(2, labels=("ann", "bob"), event_labels=names)


def test_only_galleries_with_a_least_similarity_need_an_event() -> None:
    assert PEOPLE.needs_event((Gallery(FILE, least=0.5),))
    assert not PEOPLE.needs_event((Gallery(FILE),))
    assert Embedding(2, labels=tuple(map(str, range(300)))).needs_event((Gallery(FILE, least=0.5),))


def test_directions_are_compared_by_the_tolerance() -> None:
    edge, full = vectors((1, 0), (1, 0), (2, 0)), vectors((5, 0), (0, 1), (1, 0.1))
    assert CLOSE.loss(edge, full).tolist() == [0, 1, 0]
    with pytest.raises(ValueError, match="by a tolerance, or by the labels"):
        Embedding(2)


def test_the_gallery_gives_neighbours_and_margins() -> None:
    found = compiled(PEOPLE, Gallery(FILE)).run({"y": np.array([[1, 0], [0.1, 1]], np.float32)}, {"x": np.zeros(2)})
    assert found.outputs[NEIGHBOUR].tolist() == [0, 1]
    assert found.outputs[SIMILARITY] == pytest.approx([1, 1 / 1.01**0.5])
    assert found.evidence[OTHER] == pytest.approx([0, 1.1 / 2.02**0.5], abs=1e-6)
    assert found.evidence[MARGIN] == pytest.approx([1, (1 - 1.1 / 2**0.5) / 1.01**0.5], abs=1e-6)
    assert PEOPLE.score("margin", found.outputs, found.evidence) == pytest.approx(found.evidence[MARGIN] / 2)
    assert PEOPLE.score("similarity", found.outputs, found.evidence) == pytest.approx(
        (1 + found.outputs[SIMILARITY]) / 2
    )
    check_outputs(PEOPLE.declared(rounded=False, cut=False), found.outputs, 2)


def test_nothing_similar_is_nobody() -> None:
    found = compiled(PEOPLE, Gallery(FILE, least=0.9)).run({"y": np.array([[-1, 0.1]], np.float32)}, {"x": np.zeros(1)})
    assert found.outputs[NEIGHBOUR].tolist() == [-1]
    similarity = found.outputs[SIMILARITY]
    assert found.evidence[MARGIN] == pytest.approx(0.9 - similarity)
    assert PEOPLE.score("similarity", found.outputs, found.evidence) == pytest.approx((1 - similarity) / 2)
    assert PEOPLE.describe(found.outputs, 0) == {"neighbour": None, "similarity": round(float(similarity[0]), 4)}


def test_short_embeddings_are_filled_up_with_zeros() -> None:
    post = compiled(Embedding(4, tolerance=0.1), Columns((0, 1)))
    found = post.run({"y": np.array([[1, 2, 3]], np.float32)}, {"x": np.zeros(1)})
    assert found.outputs[EMBEDDING].tolist() == [[1, 2, 0, 0]] and found.evidence == {}


def test_scores_without_a_gallery() -> None:
    assert CLOSE.score("norm", vectors((3, 4), (0, 0)), {}) == pytest.approx([5 / 6, 0])
    for kind in ("margin", "similarity"):
        with pytest.raises(InvalidTensorError, match="needs a gallery"):
            CLOSE.score(kind, vectors((3, 4)), {})
        assert "norm and learned" in CLOSE.unscored(kind, ())
        assert PEOPLE.unscored(kind, (Gallery(FILE),)) == ""
    assert CLOSE.unscored("norm", ()) == ""
    assert CLOSE.features(vectors((0, 0)), {}).shape == (1, CLOSE.feature_count)
    assert CLOSE.supposed_losses(vectors((0, 0)), {}).tolist() == [0.5]


def test_recall_at_one() -> None:
    truth = {"label": np.array([0, 1, 1, -1])}
    assert PEOPLE.truth_loss(people(2, 1, 0, 0), truth).tolist() == [0, 0, 1, 1]
    assert PEOPLE.summary(people(2, 1, 0, 0), {}, truth) == pytest.approx({"recall_at_1": 2 / 3})
    alone = vectors((1, 0), (1, 0.1), (0, 1), (0.9, 0.1), (5, 5))
    labels = {"label": np.array([7, 7, 3, 3, 9])}  # the only row of 9 does not count
    assert CLOSE.summary(alone, {}, labels) == {"recall_at_1": 0.25}
    with pytest.raises(ConfigError, match="without a gallery have no right or wrong"):
        CLOSE.truth_loss(alone, labels)
    with pytest.raises(ConfigError, match="there are none"):
        CLOSE.summary(vectors((1, 0)), {}, {"label": np.array([0])})


def test_an_answer_for_people() -> None:
    assert PEOPLE.describe(people(1), 0) == {"neighbour": "bob", "similarity": 0.5}
    assert CLOSE.describe(vectors((0.1, 2)), 0) == {"embedding": [0.1, 2]}
    assert np.asarray(PEOPLE.draw(Image.new("RGB", (200, 100)), people(1), 0)).any()
    assert not np.asarray(CLOSE.draw(Image.new("RGB", (9, 9)), vectors((1, 0)), 0)).any()


def test_difference_is_relative_to_the_length() -> None:
    assert CLOSE.difference(vectors((3, 4)), vectors((3, 4.05))) == pytest.approx(0.01, rel=1e-5)
    assert CLOSE.difference(vectors((3, 4)), vectors((3, 4), (3, 4))) == np.inf


@pytest.mark.parametrize(
    ("found", "message"),
    [(people(3), "a neighbour outside of -1 to 2"), (people(0, similarity=2), "a similarity outside of -1 to 1")],
)
def test_values_that_are_not_possible_are_refused(found: dict[str, Array], message: str) -> None:
    with pytest.raises(InferenceError, match=message):
        check_outputs(PEOPLE.declared(rounded=False, cut=False), found, 1)


@pytest.mark.parametrize(
    ("task", "steps", "message"),
    [
        (PEOPLE, (), "gallery goes with the labels"),
        (CLOSE, (Gallery(FILE),), "3 rows, but there are 0 labels"),
        (Embedding(2, labels=("a",)), (Gallery(FILE),), "3 rows, but there are 1 labels"),
        (CLOSE, (Sigmoid(),), "columns and graph, and last gallery"),
        (PEOPLE, (Gallery(FILE), Columns((0,))), "columns and graph, and last gallery"),
    ],
)
def test_steps_that_do_not_fit_are_refused(task: Embedding, steps: Any, message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        compiled(task, *steps)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (b"no array", "is not a .npy file"),
        (content(np.array([{}], object)), "is not a .npy file"),
        (content(np.zeros(3, np.float32)), r"needs finite numbers \[rows, columns\], got \[3\]"),
        (content(np.full((3, 2), np.nan)), "needs finite numbers"),
    ],
)
def test_a_gallery_is_a_matrix_without_objects(file: bytes, message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        compiled(PEOPLE, Gallery(FILE), file=file)


def test_outputs_of_another_size_are_refused() -> None:
    with pytest.raises(InferenceError, match="embeddings have 2 columns"):
        compiled(CLOSE).run({"y": np.zeros((1, 3), np.float32)}, {"x": np.zeros(1)})
    with pytest.raises(InferenceError, match="its gallery has 2"):
        compiled(PEOPLE, Gallery(FILE)).run({"y": np.zeros((1, 1), np.float32)}, {"x": np.zeros(1)})
