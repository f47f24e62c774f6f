"""Scores and losses of detectors, whatever the boxes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstline_core.errors import InvalidTensorError
from firstline_core.processing.boxes import intersection_over_union
from firstline_core.routing.certification import certify
from firstline_core.routing.detection import (
    Boxes,
    any_unmatched,
    matches,
    mean_confidence,
    minimum_confidence,
    unmatched_share,
)

AT: dict[str, Any] = {"overlap": 0.5, "least": 0.3}
BOX = st.tuples(st.integers(0, 8), st.integers(0, 8), st.integers(1, 6), st.integers(1, 6))


@st.composite
def boxes(draw: st.DrawFn, most: int = 6) -> Boxes:
    """Small boxes on a small grid, so that they often overlap; confidences differ."""
    found = draw(st.lists(BOX, max_size=most))
    count = len(found)
    classes = draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))
    sure = draw(st.lists(st.integers(0, 1000), min_size=count, max_size=count, unique=True))
    return Boxes.of([(x, y, x + w, y + h) for x, y, w, h in found], classes, np.array(sure) / 1000)


def moved(one: Boxes, order: Any = slice(None), shift: float = 0.0, scale: float = 1.0) -> Boxes:
    return Boxes(one.corners[order] * scale + shift, one.classes[order], one.confidences[order])


@given(boxes())
def test_a_model_agrees_with_itself(one: Boxes) -> None:
    assert not any_unmatched(one, one, **AT)
    assert unmatched_share(one, one, **AT) == 0


@given(boxes(), boxes())
def test_losses_are_zero_together_and_pairs_are_unique(edge: Boxes, full: Boxes) -> None:
    share = unmatched_share(edge, full, **AT)
    assert 0 <= share <= 1
    assert (share > 0) == any_unmatched(edge, full, **AT)
    pairs, ours, theirs = matches(edge, full, **AT)
    assert pairs <= min(ours, theirs)


@given(boxes(), boxes(), st.randoms(use_true_random=False))
def test_order_unit_and_origin_do_not_matter(edge: Boxes, full: Boxes, random: Any) -> None:
    order = random.sample(range(len(edge.classes)), len(edge.classes))
    found = unmatched_share(edge, full, **AT)
    assert unmatched_share(moved(edge, order), full, **AT) == found
    assert unmatched_share(moved(edge, shift=16, scale=4), moved(full, shift=16, scale=4), **AT) == found


@given(boxes(), boxes())
def test_boxes_below_the_confidence_do_not_count(edge: Boxes, full: Boxes) -> None:
    cut = [one.from_confidence(AT["least"]) for one in (edge, full)]
    assert unmatched_share(edge, full, **AT) == unmatched_share(*cut, **AT)
    if len(cut[0].classes):
        assert mean_confidence(edge, AT["least"]) == mean_confidence(cut[0], AT["least"])


@given(boxes())
def test_missed_and_misclassified_boxes_are_losses(full: Boxes) -> None:
    seen = full.from_confidence(AT["least"])
    if not len(seen.classes):
        return
    assert any_unmatched(moved(seen, slice(1, None)), full, **AT)
    assert any_unmatched(seen, moved(full, slice(0, 0)), **AT)
    assert (
        unmatched_share(Boxes(seen.corners, 1 + seen.classes.max() + seen.classes, seen.confidences), full, **AT) == 1
    )


@given(boxes(), st.sampled_from([0.0, 0.3, 0.9]))
def test_scores_are_within_0_and_1(one: Boxes, least: float) -> None:
    assert 0 <= minimum_confidence(one, least) <= mean_confidence(one, least) + 1e-12 <= 1 + 1e-12
    if len(one.from_confidence(least).classes):
        assert minimum_confidence(one, least) >= least


@given(boxes(), boxes())
def test_overlaps_are_symmetric_and_full_with_oneself(one: Boxes, other: Boxes) -> None:
    found = intersection_over_union(one.corners, other.corners)
    assert found.shape == (len(one.classes), len(other.classes))
    assert ((found >= 0) & (found <= 1)).all()
    np.testing.assert_array_equal(found, intersection_over_union(other.corners, one.corners).T)
    np.testing.assert_array_equal(np.diag(intersection_over_union(one.corners, one.corners)), 1)


def test_hand_computed_losses() -> None:
    full = Boxes.of([(0, 0, 4, 4), (10, 10, 14, 14)], [0, 1], [0.9, 0.8])
    edge = Boxes.of([(0, 0, 4, 3), (10, 10, 14, 14), (0, 0, 4, 4)], [0, 1, 0], [0.9, 0.7, 0.2])
    assert intersection_over_union(edge.corners, full.corners)[0, 0] == 0.75
    assert not any_unmatched(edge, full, overlap=0.5, least=0.3)
    assert any_unmatched(edge, full, overlap=0.8, least=0.3)
    assert unmatched_share(edge, full, overlap=0.8, least=0.3) == 0.5
    assert (mean_confidence(edge, 0.3), minimum_confidence(edge, 0.3)) == (0.8, 0.7)
    assert minimum_confidence(edge, 0.95) == pytest.approx(0.1)  # it suspects a box that does not count
    assert mean_confidence(Boxes.of([], [], []), 0.3) == 1


def test_only_the_surest_of_two_boxes_matches() -> None:
    full = Boxes.of([(0, 0, 4, 4)], [0], [0.9])
    twice = Boxes.of([(0, 0, 4, 4), (0, 0, 4, 4)], [0, 0], [0.9, 0.8])
    assert matches(twice, full, **AT) == (1, 2, 1)


def test_a_certificate_takes_both_losses() -> None:
    random = np.random.default_rng(0)
    scores = random.random(600)
    full = Boxes.of([(0, 0, 4, 4), (9, 9, 12, 12)], [0, 0], [0.9, 0.9])
    half = Boxes.of([(0, 0, 4, 4)], [0], [0.9])
    edges = [half if random.random() < 0.3 * (1 - score) else full for score in scores]
    binary = certify(scores, [any_unmatched(edge, full, **AT) for edge in edges], 0.1, 0.05)
    fractional = certify(scores, [unmatched_share(edge, full, **AT) for edge in edges], 0.1, 0.05)
    assert binary.certified and fractional.certified
    assert fractional.kept > binary.kept  # a third of two models' boxes is less than the whole image


@pytest.mark.parametrize(
    ("corners", "classes", "sure"), [([(0, 0, 1, 1)], [0, 1], [0.5]), ([(0, 0, 1, 1)], [0], [1.5]), ([], [], [0.5])]
)
def test_invalid_boxes_are_refused(corners: Any, classes: Any, sure: Any) -> None:
    with pytest.raises(InvalidTensorError):
        Boxes.of(corners, classes, sure)
