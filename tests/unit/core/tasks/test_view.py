"""The part of an answer that a caller wants to see."""

from __future__ import annotations

import numpy as np
import pytest
from support.images import encode, images

from firstline_core.errors import RequestError
from firstline_core.protocol.asgi import query_parameters
from firstline_core.tasks import describe
from firstline_core.tasks.classification import Classification
from firstline_core.tasks.detection import Detection
from firstline_core.tasks.view import WHOLE, View, image_of, read_view, with_sizes
from firstline_core.types import Array, Tensor

TASK = Detection(("cat", "dog", "cow"), k=4)


def outputs() -> dict[str, Array]:
    return {
        "boxes": np.array([[[0, 0, 4, 4], [0, 0, 3, 3], [0, 0, 2, 2], [0, 0, 0, 0]]], np.float32),
        "scores": np.array([[0.9, 0.5, 0.25, 0]], np.float32),
        "classes": np.array([[1, 0, 1, -1]]),
        "count": np.array([3]),
    }


@pytest.mark.parametrize(
    ("query", "labels"),
    [
        ({}, ["dog", "cat", "dog"]),
        ({"route": "edge", "id": "mine"}, ["dog", "cat", "dog"]),
        ({"min_score": "0.5"}, ["dog", "cat"]),
        ({"min_score": "1"}, []),
        ({"classes": "dog"}, ["dog", "dog"]),
        ({"classes": "cat, cow"}, ["cat"]),
        ({"max_objects": "1"}, ["dog"]),
        ({"classes": "cat,dog", "max_objects": "2", "min_score": "0.3"}, ["dog", "cat"]),
    ],
)
def test_objects_are_filtered(query: dict[str, str], labels: list[str]) -> None:
    view = read_view(query, "pets", TASK)
    (found,) = describe(TASK, outputs(), view) or [{}]
    assert [each["label"] for each in found["objects"]] == labels
    assert found["count"] == len(labels)
    assert TASK.seen(outputs(), 0, view).classes.tolist() == [TASK.labels.index(label) for label in labels]


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("classes=a&classes=b", ("a", "b")),
        ("classes=a,b&classes=c", ("a", "b", "c")),
        ("classes=salt,%20pepper", ("salt, pepper",)),
        ("classes=salt,+pepper&classes=a,b", ("salt, pepper", "a", "b")),
    ],
)
def test_labels_may_be_repeated_and_hold_commas(query: str, wanted: tuple[str, ...]) -> None:
    task = Detection(("a", "b", "c", "salt, pepper"), 3)
    assert read_view(query_parameters(query.encode()), "pets", task).classes == wanted


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ({"min_score": "high"}, "'min_score' is 'high'; use a number from 0 to 1."),
        ({"min_score": "1.5"}, "use a number from 0 to 1"),
        ({"min_score": "nan"}, "use a number from 0 to 1"),
        ({"min_score": ""}, "use a number from 0 to 1"),
        (
            {"classes": "cow,bird"},
            "names 'bird', which 'pets' does not know; 'pets' knows cat, dog, cow. Separate labels",
        ),
        ({"classes": ""}, "'classes' has an empty label; 'pets' knows cat, dog, cow. Separate"),
        ({"max_objects": "0"}, "'max_objects' is '0'; use 1 to 1000."),
        ({"max_objects": "-1"}, "use 1 to 1000"),
        ({"max_objects": "9" * 5000}, "use 1 to 1000"),
        (
            {"masks": "png"},
            "'masks' does not apply to detection, the task of 'pets'; use min_score, classes,",
        ),
    ],
)
def test_wrong_parameters_are_refused(query: dict[str, str], says: str) -> None:
    with pytest.raises(RequestError) as refused:
        read_view(query, "pets", TASK)
    assert says in refused.value.message


def test_parameters_of_other_tasks_are_refused() -> None:
    with pytest.raises(RequestError, match=r"'min_score' does not apply to classification, .*; leave it out"):
        read_view({"min_score": "0.5"}, "digits", Classification(("a", "b")))
    with pytest.raises(RequestError, match="'max_objects' needs a model that this device holds; it lacks 'pets'"):
        read_view({"max_objects": "3"}, "pets", None)
    assert read_view({"wait": "first"}, "pets", None) is WHOLE


def test_answers_in_pixels_state_the_size_of_the_upright_image() -> None:
    pictures = images(encode(np.zeros((20, 30, 3), np.uint8)), encode(np.zeros((5, 6, 3), np.uint8), "JPEG"))
    assert with_sizes(WHOLE, TASK, pictures).sizes == ((30, 20), (6, 5))
    assert with_sizes(WHOLE, Classification(("a", "b")), pictures) is WHOLE
    assert with_sizes(WHOLE, TASK, None) is WHOLE
    (found,) = describe(TASK, outputs(), View(sizes=((30, 20),))) or [{}]
    assert list(found) == ["width", "height", "count", "objects"]
    assert (found["width"], found["height"]) == (30, 20)


def test_images_are_found_among_other_inputs() -> None:
    pictures = images(encode(np.zeros((5, 6), np.uint8), "JPEG"))
    words, numbers = images(b"find dogs", name="prompt"), Tensor("x", np.zeros((1, 2), np.float32))
    assert image_of((words, numbers, pictures)) is pictures
    assert image_of((words, numbers)) is None
