"""Certifies an edge variant of a bundle on data, and writes the bundle that carries the certificate.

A contract is about the accepted edge answers together, those in which an event can occur, those of each predicted class
or known group, or about all answers of both tiers. A bundle can be certified again on the audits of a device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from firstline.workbench.bundle import write_version
from firstline.workbench.calibrate import has_temperature
from firstline.workbench.event_promises import (
    BrokenPromise,
    EventBound,
    Unpromised,
    UsualAnswer,
    broken_promise,
    unpromised,
    usual_answer,
)
from firstline.workbench.evidence import Evidence
from firstline.workbench.quality import require_fitting_labels
from firstline.workbench.score_table import ScoreTable
from firstline.workbench.selection import (
    BEST,
    SELECT_FRACTION,
    Selection,
    default_fraction,
    is_graded,
    scores_by,
    select,
)
from firstline.workbench.sequences import Sequences
from firstline_core.bundle.manifest import Manifest, Model, Policy, valid_certificate
from firstline_core.bundle.store import Bundle
from firstline_core.errors import ConfigError
from firstline_core.routing.certificate import (
    Certificate,
    Contract,
    EventPromise,
    GroupCertificate,
    event_promise,
    promise_text,
)
from firstline_core.routing.certification import (
    CertificationResult,
    RiskTests,
    Start,
    certify,
    split,
    start_shares,
    starts_at,
)
from firstline_core.routing.contracts import (
    EventRows,
    EventsResult,
    certify_events,
    certify_groups,
    certify_stream,
    certify_weighted,
    event_starts,
    net_loss,
)
from firstline_core.routing.drift import histogram
from firstline_core.tasks.arrays import LABEL
from firstline_core.tasks.base import Scores
from firstline_core.types import PROBABILITIES, Arrays
from firstline_edge.audits.records import record_key

EdgeContract = Literal["disagreement", "harm"]
"""Contracts on accepted edge answers; see `routing.certificate.Contract`."""

_NEARLY_ALL = 0.999  # a bound of 1 would leave audits nothing to find


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of a certificate.

    Attributes:
        epsilon: share of the accepted edge answers that may break the contract; of a contract on all answers, the
            accuracy given up at most.
        delta: probability that the promise is wrong; of all promises together where there are several.
        contract: the definition of a loss.
        score: name of the confidence score, see `selection.check_score`.
        seed: of the split, and of the choice of one row of each cluster of dependent rows.
        select_fraction: share of the data that decides; None takes `selection.default_fraction`. Promises about several
            events need a part; None then takes one.
        events: the promises by event, if the contract is about events; `epsilon` and `delta` are then the largest of
            theirs, see `about`.
    """

    epsilon: float
    delta: float
    contract: EdgeContract = "disagreement"
    score: str = BEST
    seed: int = 0
    select_fraction: float | None = None
    events: Mapping[str, EventBound] = field(default_factory=dict)

    def about(self, events: Mapping[str, EventBound]) -> Terms:
        """Returns these terms for promises about events, at least one."""
        bounds = events.values()
        epsilon, delta = max(bound.epsilon for bound in bounds), max(bound.delta for bound in bounds)
        return replace(self, epsilon=epsilon, delta=delta, events=events)

    def promise(self, *, graded: bool) -> str:
        """Returns what is to be proved as text.

        Args:
            graded: see `Certification`.
        """
        if self.events:
            return "; ".join(event_promise(name, one.epsilon, one.delta) for name, one in self.events.items())
        return promise_text(self.contract, self.epsilon, self.delta, graded=graded)


@dataclass(frozen=True, slots=True)
class GroupsResult(CertificationResult):
    """The results for each group, and for all groups together.

    `threshold` is the lowest of any group, `risk_upper` the highest, `kept` that of all rows. `n_needed` is 0 where any
    group is certified, else the least of theirs.

    Attributes:
        by: the kind of the groups.
        groups: each group's own; delta is shared out evenly among them.
    """

    by: str
    groups: Mapping[str, CertificationResult]


@dataclass(frozen=True, slots=True)
class Certification:
    """The result of certifying one variant.

    Attributes:
        variant: as it was tested.
        selection: the decisions made before testing.
        result: the statistics, certified or not.
        terms: that were tested.
        certificate: the variant's certificate; None if nothing is certified.
        sequences: see `Evidence`; None for audits.
        clustered: whether the data names rows that depend on each other, of which one each is evidence.
        graded: whether losses lie between 0 and 1, so that what is bounded is their mean and no share of answers.
        usual: the answer that a model could always give and still keep a promise about all accepted answers together.
        unpromised: the observations of events without a promise, by event, if the contract is about events.
        broken: counts about each promise that was not proved, not even alone, by event.
    """

    variant: Model
    selection: Selection
    result: CertificationResult
    terms: Terms
    certificate: Certificate | None = None
    sequences: Sequences | None = None
    clustered: bool = False
    graded: bool = False
    usual: UsualAnswer | None = None
    unpromised: Mapping[str, Unpromised] = field(default_factory=dict)
    broken: Mapping[str, BrokenPromise] = field(default_factory=dict)


class ConstantScoreError(ConfigError):
    """A score that is the same for every row, so that no threshold separates answers."""


def certify_bundle(
    bundle: Bundle,
    evidence: Evidence,
    terms: Terms,
    *,
    starts: Sequence[Start] | None = None,
    placing: Evidence | None = None,
) -> Certification:
    """Lets a part of the rows decide on score, temperature, value and starts, and certifies on the rest.

    Promises about events are certified together, all of them at one threshold.

    Args:
        bundle: that the evidence is of.
        evidence: of images drawn at random from what will be asked, none of them used before to choose model, score
            or temperature.
        terms: of the certificate.
        starts: thresholds where testing starts, taken from other data; None: from the selection part. Not for events.
        placing: evidence of other rows, by whose scores testing of several events starts; None: of the selection part.

    Returns:
        For events with an `EventsResult`, whose `n` and `kept` are of all rows, whether or not an event can occur.

    Raises:
        ConfigError: arguments out of range, or a score that cannot be computed.
        ConstantScoreError: the score is the same for every row.
    """
    if terms.events:
        return _certify_events(bundle, evidence, terms, placing)
    selection = _select(bundle, evidence, terms, terms.contract)
    rows = evidence.units(selection.rest, terms.seed)
    scores, losses = selection.scores[rows], evidence.losses(terms.contract)[rows]
    starts = selection.starts if starts is None else starts
    result = certify(scores, losses, terms.epsilon, terms.delta, starts=starts, seed=terms.seed)
    bound = None
    if result.threshold is not None:
        bound = auditable_epsilon(terms, evidence.losses("disagreement")[rows][scores >= result.threshold])
    found = _found(evidence, selection, result, terms)
    found = replace(found, usual=usual_answer(evidence, terms.epsilon))
    return _with_certificate(bundle, found, audit_epsilon=bound)


def _certify_events(bundle: Bundle, evidence: Evidence, terms: Terms, placing: Evidence | None) -> Certification:
    task, every = evidence.edge.task, np.arange(len(evidence))
    promises, seed = terms.events, terms.seed
    events = task.events_of(promises, evidence.edge.outputs, evidence.full)
    counting = np.logical_or.reduce([event.counts for event in events.values()])
    fraction = _deciding_share(terms, len(evidence.units(every[counting], seed)))
    losses = np.maximum.reduce([event.loss for event in events.values()])
    selection = _select(bundle, evidence, replace(terms, select_fraction=fraction), "disagreement", losses)
    scores, rest, part = selection.scores, selection.rest, selection.part
    places: dict[str, NDArray[np.float64]] | None = None
    if placing is not None and len(promises) > 1:
        placed = task.events_of(promises, placing.edge.outputs, placing.full)
        placed_scores = scores_by(placing.edge, selection.score, bundle.manifest.policy.score, placing.scores)
        places = {name: placed_scores[event.counts] for name, event in placed.items()}
    elif len(part):
        places = {name: scores[part[event.counts[part]]] for name, event in events.items()}
    test = _EventsTest(
        scores=scores,
        losses={name: event.loss for name, event in events.items()},
        rows={name: evidence.units(rest[event.counts[rest]], seed) for name, event in events.items()},
        places=places,
        seed=seed,
    )
    found = test.prove(promises)
    edge_share = 0.0 if found.threshold is None else float((scores[rest] >= found.threshold).mean())
    certification = Certification(
        evidence.variant,
        selection,
        replace(found, kept=edge_share, n=len(evidence.units(rest, seed))),
        terms,
        sequences=evidence.sequences,
        clustered=bool(evidence.clusters),
        unpromised=unpromised(evidence, rest, promises, seed),
        broken={
            name: test.broken(name, bound)
            for name, bound in promises.items()
            if found.events[name].risk_upper is None and name not in found.alone
        },
    )
    return _with_certificate(bundle, certification, audit_epsilon=None, contract="events")


def _deciding_share(terms: Terms, rows: int) -> float:
    """Returns the share of the rows that decide; promises about several events need some of them.

    Args:
        terms: with promises about events.
        rows: number of independent rows in which an event can occur.
    """
    if terms.select_fraction is not None:
        return terms.select_fraction
    return SELECT_FRACTION if len(terms.events) > 1 else default_fraction(rows)


@dataclass(frozen=True, slots=True, eq=False)
class _EventsTest:
    """The rows that test promises about events.

    Attributes:
        scores: (n,) of all rows.
        losses: (n,) by event.
        rows: positions of the rows that certify an event; all others have no influence on its test.
        places: by event, the scores of the rows that decide where testing starts; None if no rows are set aside.
        seed: of ties and bets.
        weights: (n,) of rows with different sampling probabilities.
    """

    scores: NDArray[np.floating]
    losses: Mapping[str, NDArray[np.floating]]
    rows: Mapping[str, NDArray[np.intp]]
    places: Mapping[str, NDArray[np.floating]] | None
    seed: int
    weights: NDArray[np.float64] | None = None

    def prove(self, promises: Mapping[str, EventBound]) -> EventsResult:
        """Tests promises together, all of them at one threshold; if that fails, also each one alone."""
        starts = None
        if self.places is not None:
            starts = event_starts(
                [self.places[name] for name in promises],
                [len(self.rows[name]) for name in promises],
                [(bound.epsilon, bound.delta) for bound in promises.values()],
            )
        tested = {}
        for name, bound in promises.items():
            rows = self.rows[name]
            weights = None if self.weights is None else self.weights[rows]
            tested[name] = EventRows(self.scores[rows], self.losses[name][rows], bound.epsilon, bound.delta, weights)
        found = certify_events(tested, starts=None if len(promises) == 1 and not starts else starts, seed=self.seed)
        if found.certified or len(promises) == 1 or self.places is None:
            return found
        return replace(found, alone=tuple(name for name in promises if self.prove({name: promises[name]}).certified))

    def broken(self, name: str, bound: EventBound) -> BrokenPromise:
        """Returns what breaks a promise that was not proved."""
        rows = self.rows[name]
        return broken_promise(
            self.scores[rows], self.losses[name][rows], bound, lambda other: self.prove({name: other}).certified
        )


def certify_stream_bundle(bundle: Bundle, evidence: Evidence, terms: Terms) -> Certification:
    """Certifies that the tiered accuracy is at most epsilon below the full model's; `terms.contract` does not matter.

    An answer is right if it has no loss against its label. With losses between 0 and 1, the mean loss of both tiers is
    at most epsilon above the full model's.

    Nothing audits it in the field, where the true labels are not known: `audit_epsilon` stays empty. Arguments and
    errors are those of `certify_bundle`; the images are labelled.
    """
    selection = _select(bundle, evidence, terms, "harm")
    costs = net_loss(*(1 - evidence.truth_losses(outputs) for outputs in (evidence.edge.outputs, evidence.full)))
    rows, part = evidence.units(selection.rest, terms.seed), selection.part
    result = certify_stream(
        selection.scores[rows],
        costs[rows],
        terms.epsilon,
        terms.delta,
        seed=terms.seed,
        grid=selection.scores[part] if len(part) else None,
    )
    found = replace(_found(evidence, selection, result, terms), graded=is_graded(np.abs(costs)))
    return _with_certificate(bundle, found, audit_epsilon=None, contract="stream")


def certify_classes(bundle: Bundle, evidence: Evidence, terms: Terms) -> Certification:
    """Certifies the accepted answers of each class that the edge predicts, all classes together.

    Classes that the data does not show accept nothing. Arguments and errors are those of `certify_by`, and a
    `ConfigError` if no answer has a class.
    """
    groups = bundle.manifest.task.groups(evidence.edge.outputs)
    if not any(groups):
        raise ConfigError(
            f"No edge answer to the data has a class that contracts of the task {bundle.manifest.task.kind} tell "
            "apart, so there is no promise by class; leave out --by."
        )
    result, selection = _certify_all_groups(bundle, evidence, groups, "class", terms)
    limits = {group: proved.threshold for group, proved in result.groups.items()}
    rows = evidence.units(selection.rest, terms.seed).tolist()
    accepted = [row for row in rows if (limit := limits[groups[row]]) is not None and selection.scores[row] >= limit]
    # Where every class keeps to epsilon, all of them together do, and that is what audits see.
    bound = auditable_epsilon(terms, evidence.losses("disagreement")[accepted])
    return _with_certificate(bundle, _found(evidence, selection, result, terms), audit_epsilon=bound)


def certify_by(bundle: Bundle, evidence: Evidence, groups: Sequence[str], by: str, terms: Terms) -> Certification:
    """Certifies each group separately, without making a certificate.

    Args:
        bundle: that the evidence is of.
        evidence: as for `certify_bundle`.
        groups: (n,) of each row, known before the decision.
        by: the kind of the groups, in one word.
        terms: delta is of all the promises together.

    Returns:
        With a `GroupsResult`.

    Raises:
        ConfigError: arguments out of range, or a score that cannot be computed.
        ConstantScoreError: the score is the same for every row.
    """
    result, selection = _certify_all_groups(bundle, evidence, groups, by, terms)
    return _found(evidence, selection, result, terms)


def _certify_all_groups(
    bundle: Bundle, evidence: Evidence, groups: Sequence[str], by: str, terms: Terms
) -> tuple[GroupsResult, Selection]:
    selection = _select(bundle, evidence, terms, terms.contract)
    scores, rows = selection.scores, evidence.units(selection.rest, terms.seed)
    certifying = Counter(groups[at] for at in rows.tolist())
    members: dict[str, list[int]] = {}
    for at in selection.part.tolist():
        members.setdefault(groups[at], []).append(at)
    results = certify_groups(
        scores[rows],
        evidence.losses(terms.contract)[rows],
        [groups[at] for at in rows.tolist()],
        terms.epsilon,
        terms.delta,
        seed=terms.seed,
        starts={group: starts_at(scores[own], start_shares(certifying[group])) for group, own in members.items()},
    )
    each = dict(sorted(results.items()))
    certified = [one for one in each.values() if one.certified]
    result = GroupsResult(
        certified=bool(certified),
        threshold=min((one.threshold for one in certified if one.threshold is not None), default=None),
        kept=sum(one.kept * one.n for one in each.values()) / max(len(rows), 1),
        risk_upper=max((one.risk_upper for one in certified if one.risk_upper is not None), default=None),
        n=len(rows),
        n_needed=0 if certified else min((one.n_needed for one in each.values()), default=1),
        by=by,
        groups=each,
    )
    return result, selection


def certify_field(bundle: Bundle, audits: ScoreTable, terms: Terms) -> Certification:
    """Certifies a bundle again on a device's audits: always the agreement of accepted answers with the full model.

    Args:
        bundle: that the device ran, with the certificate under which it audited.
        audits: of the device.
        terms: its contract and score do not matter; no rows decide unless `select_fraction` says so.

    Raises:
        ConfigError: rows of another bundle, version, model or score; or as for `certify_weighted`.
    """
    scores, weights = audits.scores, audits.weights
    variant, _ = _audited_variant(bundle.manifest, audits.certificates)
    fraction = terms.select_fraction or 0.0
    result = certify_weighted(
        scores, audits.losses, weights, terms.epsilon, terms.delta, select_fraction=fraction, seed=terms.seed
    )
    selection = Selection(bundle.manifest.policy.score, np.arange(len(scores)), scores)
    found = Certification(variant, selection, result, terms, graded=is_graded(audits.losses))
    return _with_certificate(bundle, found, audit_epsilon=terms.epsilon, weights=weights)


def certify_field_promises(bundle: Bundle, audits: ScoreTable, terms: Terms) -> Certification:
    """Certifies promises about events again on a device's audits.

    Args:
        bundle: as for `certify_field`.
        audits: of the device.
        terms: without events, they are about those of the certificate under which the device audited. The score does
            not matter.

    Returns:
        With an `EventsResult`, as `certify_bundle`.

    Raises:
        ConfigError: as for `certify_field`; or there is no promise about an event, or one of which the audits kept
            nothing.
    """
    variant, certificate = _audited_variant(bundle.manifest, audits.certificates)
    promises = terms.events or {
        name: EventBound(promise.epsilon, promise.delta) for name, promise in certificate.events.items()
    }
    if not promises:
        raise ConfigError(
            "The certificate under which the device audited promises nothing about events; name --epsilon and --delta."
        )
    if unknown := [name for name in promises if name not in certificate.events]:
        audited = ", ".join(certificate.events) or "the agreement of all accepted answers alone"
        raise ConfigError(
            f"The audits say nothing about '{unknown[0]}', because the certificate did not promise it; they are about "
            f"{audited}. Certify it on data with --data."
        )
    scores, weights, terms = audits.scores, audits.weights, terms.about(promises)
    absent = np.full(len(scores), np.nan)
    by_event = {name: audits.events.get(name, absent) for name in promises}
    can_occur = {name: ~np.isnan(loss) for name, loss in by_event.items()}
    fraction = _deciding_share(terms, sum(map(np.count_nonzero, can_occur.values())))
    part, rest = split(len(scores), fraction, terms.seed)
    found = _EventsTest(
        scores=scores,
        losses=by_event,
        rows={name: rest[counts[rest]] for name, counts in can_occur.items()},
        places={name: scores[part[counts[part]]] for name, counts in can_occur.items()} if len(part) else None,
        seed=terms.seed,
        weights=weights,
    ).prove(promises)
    accepted = scores[rest] >= (np.inf if found.threshold is None else found.threshold)
    edge_share = float(weights[rest][accepted].sum() / weights[rest].sum())
    result = replace(found, kept=edge_share, n=len(rest))
    selection = Selection(bundle.manifest.policy.score, rest, scores)
    renewed = Certification(variant, selection, result, terms)
    return _with_certificate(bundle, renewed, audit_epsilon=None, contract="events", weights=weights)


def _audited_variant(manifest: Manifest, keys: frozenset[str]) -> tuple[Model, Certificate]:
    """Scores of another model, or of another score, would certify nothing of this one."""
    for variant in manifest.edge:
        certificate = valid_certificate(manifest, variant)
        if certificate is None or not certificate.audit_bounds:
            continue
        if keys == {record_key(manifest.name, str(manifest.version), certificate)}:
            return variant, certificate
    raise ConfigError(
        f"The table is not of {manifest.name} version {manifest.version}: its column `certificate` names none of this "
        "bundle's. Print it with `edge-agent audit list` on a device that runs this very version."
    )


def auditable_epsilon(terms: Terms, differs: Scores) -> float:
    """Returns the bound that audits in the field can test without labels.

    Args:
        terms: of the certificate.
        differs: (accepted,) disagreement with the full model, of the rows that the certified threshold accepts.

    Returns:
        `epsilon` where disagreement itself is promised; else the upper bound of the mean loss, which audits test.
    """
    if terms.contract == "disagreement":
        return terms.epsilon
    rows, losses = len(differs), differs.astype(np.float64)
    tests = RiskTests.of(np.zeros(rows), losses, _NEARLY_ALL, terms.delta, seed=terms.seed)
    return tests.upper_bound(rows, terms.delta)


def _select(
    bundle: Bundle, evidence: Evidence, terms: Terms, contract: EdgeContract, losses: Scores | None = None
) -> Selection:
    """Makes the decisions on a part of the rows, by the losses of a contract unless others are given."""
    harm = contract == "harm"
    if harm and evidence.truth is not None:
        # Against wrong labels the full model is never right, so that no edge answer would do harm.
        require_fitting_labels(evidence.edge.task, evidence.full, evidence.truth)
    selection = select(
        evidence.edge,
        evidence.losses(contract) if losses is None else losses,
        own=bundle.manifest.policy.score,
        own_scores=evidence.scores,
        targets=_targets(evidence, labelled=harm),
        disagreements=evidence.losses("disagreement") if harm else None,
        clusters=evidence.clusters,
        name=terms.score,
        fraction=terms.select_fraction,
        seed=terms.seed,
    )
    _require_confidence(evidence, selection)
    return selection


def require_different_answers(edge: Arrays, full: Arrays) -> None:
    """Refuses data to whose rows each model gives one answer, such as copies of one row.

    Raises:
        ConstantScoreError: there are several rows, and all have the same answers.
    """
    answers = (*edge.values(), *full.values())
    rows = len(answers[0])
    if rows > 1 and all((array == array[:1]).all() for array in answers):
        raise ConstantScoreError(
            f"Each model gives one answer to all {rows} rows, as to copies of one row, so the data show nothing about "
            "the models. Give data with rows that differ."
        )


def _require_confidence(evidence: Evidence, selection: Selection) -> None:
    """Refuses a score that is the same for every row: no threshold of it separates answers.

    Args:
        evidence: that was certified.
        selection: with the score.

    Raises:
        ConstantScoreError: it is; names the scores that differ between rows.
    """

    def differs(scores: NDArray[np.floating]) -> bool:
        numbers = scores[~np.isnan(scores)]
        return bool(numbers.size) and bool((numbers != numbers[0]).any())

    if len(evidence) < 2 or differs(selection.scores):
        return
    require_different_answers(evidence.edge.outputs, evidence.full)
    kind = selection.score.kind
    others = [name for name, (_, scores) in evidence.edge.fixed_scores().items() if name != kind and differs(scores)]
    remedy = (
        f"Scores that differ are: {', '.join(others)}; choose one with --score."
        if others
        else "No other score of the task differs either: this edge model gives no confidence. Export it with its "
        "scores or candidates, and without thresholds inside the graph."
    )
    raise ConstantScoreError(
        f"The score '{kind}' of '{evidence.variant.id}' is {selection.scores[0]:g} for all {len(evidence)} rows, so it "
        f"cannot tell which answers to accept. {remedy}"
    )


def _targets(evidence: Evidence, *, labelled: bool) -> NDArray[np.int64] | None:
    """Returns the classes that a temperature is fitted to; None for tasks without a temperature.

    No label counts where agreement is the contract.
    """
    if not has_temperature(evidence.edge.task):
        return None
    if labelled and evidence.truth is not None:
        labels: NDArray[np.int64] = evidence.truth[LABEL]
        return labels
    likeliest: NDArray[np.int64] = evidence.full[PROBABILITIES].argmax(axis=1)
    return likeliest


def _found(evidence: Evidence, selection: Selection, result: CertificationResult, terms: Terms) -> Certification:
    graded = is_graded(evidence.losses(terms.contract))
    return Certification(
        evidence.variant,
        selection,
        result,
        terms,
        sequences=evidence.sequences,
        clustered=bool(evidence.clusters),
        graded=graded,
    )


def _with_certificate(
    bundle: Bundle,
    found: Certification,
    *,
    audit_epsilon: float | None,
    contract: Contract | None = None,
    weights: NDArray[np.float64] | None = None,
) -> Certification:
    """Adds the variant's certificate, if anything is certified.

    Args:
        bundle: that was certified.
        found: without a certificate.
        audit_epsilon: see `Certificate`.
        contract: if it is not the one of the terms.
        weights: (n,) of rows with different sampling probabilities.
    """
    selection, result, terms, rest = found.selection, found.result, found.terms, found.selection.rest
    if result.threshold is None or result.risk_upper is None:
        return found
    groups = result.groups if isinstance(result, GroupsResult) else {}
    events = result.events if isinstance(result, EventsResult) else {}
    certificate = Certificate(
        contract=contract or terms.contract,
        epsilon=terms.epsilon,
        delta=terms.delta,
        threshold=result.threshold,
        n=result.n,
        kept=result.kept,
        risk_upper=result.risk_upper,
        edge_digest=found.variant.digest,
        full_digest=bundle.manifest.full_digest,
        score_digest=bundle.manifest.score_digest(selection.score),
        audit_epsilon=audit_epsilon,
        histogram=histogram(selection.scores[rest], weights=None if weights is None else weights[rest]),
        by="class" if groups else "",
        groups={
            label: GroupCertificate(one.threshold, one.n, one.kept, one.risk_upper) for label, one in groups.items()
        },
        events={
            name: EventPromise(one.epsilon, one.delta, one.n, one.kept, one.risk_upper)
            for name, one in events.items()
            if one.risk_upper is not None
        },
        labels_digest=bundle.manifest.labels_digest if groups or events else "",
        graded=found.graded,
    )
    return replace(found, certificate=certificate)


def policy_of(policy: Policy, certification: Certification) -> Policy:
    """Returns the bundle's policy with the score, the threshold and the value that a certification decided on.

    The declared threshold serves variants without a certificate of their own. It is in the score's own units, so
    another score replaces it with the certified threshold; of a promise by class with the strictest one, because the
    looser ones say nothing about other classes.
    """
    value = certification.selection.value or policy.value
    if certification.certificate is None or certification.selection.score == policy.score:
        return msgspec.structs.replace(policy, value=value)
    by_class = [group.threshold for group in certification.certificate.groups.values() if group.threshold is not None]
    return Policy(certification.selection.score, max(by_class, default=certification.certificate.threshold), value)


def voided(manifest: Manifest, certification: Certification) -> tuple[str, ...]:
    """Returns the ids of the other variants whose certificates become void with the new score."""
    if certification.selection.score.digest == manifest.policy.score.digest:
        return ()
    others = (model for model in manifest.edge if model.id != certification.variant.id)
    return tuple(model.id for model in others if valid_certificate(manifest, model) is not None)


def with_certificate(manifest: Manifest, certification: Certification) -> Manifest:
    """Returns the manifest with the variant's new certificate and policy; the caller increases the version."""
    variant = next(model for model in manifest.edge if model.id == certification.variant.id)
    replaced = msgspec.structs.replace(variant, certificate=certification.certificate)
    return msgspec.structs.replace(
        manifest,
        policy=policy_of(manifest.policy, certification),
        edge=tuple(replaced if model.id == replaced.id else model for model in manifest.edge),
    )


def write_certified(bundle: Bundle, certification: Certification, out: Path, *, force: bool = False) -> Bundle:
    """Writes the bundle with the variant's new certificate and its score, as the next version.

    Other variants keep theirs, void or not: see `voided`. Files that are absent stay absent.

    Args:
        bundle: that was certified.
        certification: with a certificate.
        out: must not exist, unless `force`; may then be the bundle itself.
        force: replaces a bundle; anything else that lies there is never touched.

    Raises:
        ConfigError: `out` may not, or cannot, be written.
    """
    manifest = bundle.manifest
    certified = msgspec.structs.replace(with_certificate(manifest, certification), version=manifest.version + 1)
    return write_version(bundle, certified, out, force=force)
