"""Certifies the edge model of a pair on the measured rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from firstline.workbench.certify import Certification, Terms, certify_bundle
from firstline.workbench.evaluate import Measured
from firstline.workbench.event_promises import EventBound, require_event
from firstline.workbench.evidence import evidence_of
from firstline_core.bundle.store import Bundle
from firstline_core.tasks.base import MISSED

EPSILON, DELTA = 0.05, 0.1
"""Of the promise that is tried where the user names none: 5 % at 90 %."""


def certify_pair(bundle: Bundle, measured: Measured, promises: Mapping[str, EventBound]) -> Certification:
    """Certifies promises about events, one about all answers, or the usual one: 5 % at 90 %.

    Of tasks that need an event, the usual promise is about missing what the full model reports most often.

    Args:
        bundle: with both models.
        measured: the bundle, with evidence.
        promises: by event, "" for all answers; none for the usual one.

    Raises:
        ConfigError: the scores are the same for every row, or a promise about all answers would be misleading.
    """
    if "" in promises:
        require_event(bundle.manifest)
    task, (edge,) = bundle.manifest.task, measured.edges
    evidence = evidence_of(measured)[edge.answers.model.id]
    bounds = promises
    if not bounds and bundle.manifest.needs_event:
        if not task.events:
            require_event(bundle.manifest)
        reported = (task.occurrences(evidence.full) > 0).sum(axis=0)
        bounds = {f"{MISSED} {task.event_classes[int(reported.argmax())]}": EventBound(EPSILON, DELTA)}
    about_all = promises.get("", EventBound(EPSILON, DELTA))
    terms = Terms(about_all.epsilon, about_all.delta)
    return certify_bundle(bundle, evidence, terms.about(bounds) if bounds.keys() - {""} else terms)


def as_certified(measured: Measured, certification: Certification) -> Measured:
    """Returns the measurement with the rows accepted that the certified threshold accepts, if there is one."""
    threshold, scores = certification.result.threshold, certification.selection.scores
    if threshold is None:
        return measured
    edges = tuple(
        replace(edge, scores=scores, threshold=threshold, accepted=scores >= threshold) for edge in measured.edges
    )
    return replace(measured, edges=edges)
