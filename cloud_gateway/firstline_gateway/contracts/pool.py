"""Pools the audits of one promise by all devices into one test. Pure.

Each device draws its audits independently; the gateway counts them in the order of its answers. One test of all
audits finds a shift that devices share far sooner than a combination of their e-values. The average of e-values hardly
exceeds the best device's share, and their product counts a scene twice if two cameras saw it.

Assumption: given all earlier audits of all devices, the next edge answer is wrong with a probability of at most
epsilon. Devices that look at the same scene at the same moment violate it: one wrong answer makes the others likely.
Only one of those audits may count, chosen before its loss is known. `contracts.audit_spacing_s` selects it at random
among the audits of one source. All audits of a promise have the same chance to count, so a source that many devices
share counts as much as its audits (`routing/sampling.py`). A second audit of the same device within the spacing is left
out anyway. Set the devices' `audit.spacing_s` at least as long, so that they space their audits themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from firstline_core.bundle.manifest import Manifest, valid_certificate
from firstline_core.fleet.rest import AuditResult
from firstline_core.routing import audit
from firstline_core.routing.audit import AuditState
from firstline_core.routing.certificate import ALL_ROWS
from firstline_core.routing.sampling import NO_PEAK, Peak, spaced_probabilities
from firstline_core.telemetry.wording import counted
from firstline_core.types import AuditNote, ModelKey

_RECENT = 256  # audits that a pool remembers; further ones do not count meanwhile
_RECENT_OF_DEVICE = 16  # of these, so that a few devices with many sources do not keep out all others


class PoolKey(NamedTuple):
    """A promise: of the answers of this edge variant, kept at this threshold, the mean loss is at most epsilon.

    The loss is the task's, or that of the event; then only answers in which it can occur count.
    """

    bundle: str
    version: int
    edge_digest: str
    threshold: float
    epsilon: float
    event: str = ALL_ROWS

    @property
    def model(self) -> ModelKey:
        """The version whose promise it is."""
        return ModelKey(self.bundle, self.version)


class RecentAudit(NamedTuple):
    """An audit within the spacing.

    Attributes:
        service_s: when it came, in seconds of the store's service.
        device: that sent it.
        source: see `InferRequest`.
        propensity: the probability with which it was to count.
        counts: whether it did.
    """

    service_s: float
    device: str
    source: str
    propensity: float
    counts: bool


@dataclass(frozen=True, slots=True)
class AuditPool:
    """The result of the audits of one promise so far.

    Attributes:
        state: state of the test.
        promises: the number of promises of the contract, which share delta.
        disagreements: number of audits whose loss is above 0; every audit of an event is one in which it can occur.
        total_loss: sum of the audits' losses.
        first_s, last_s: wall time of the first and the latest audit.
        alarmed_s: wall time of the alarm, which later audits do not clear; None without an alarm.
        recent: the audits that can be too close to the next one of their source, oldest first; see `with_recent`.
        peak: the most devices that audited one source within the spacing.
    """

    key: PoolKey
    state: AuditState
    first_s: float
    last_s: float
    promises: int = 1
    disagreements: int = 0
    total_loss: float = 0.0
    alarmed_s: float | None = None
    recent: tuple[RecentAudit, ...] = ()
    peak: Peak = NO_PEAK

    @property
    def risk(self) -> float | None:
        """The mean loss of the audits; None without any.

        It estimates the mean loss of the devices' edge answers; a device counts by its number of audits.
        """
        return self.total_loss / self.state.audits if self.state.audits else None

    def level(self, delta: float) -> float:
        """Returns the level of the alarm of this promise, where delta is that of the contract."""
        return delta / self.promises

    def result(self, delta: float) -> AuditResult:
        """Returns what the audits show, where delta is the level of the contract.

        The promise holds only if the mean loss of the audits is at most the promised share, and if there are enough
        audits: twice the odds of an error would have raised the alarm with a probability of 95 %.
        """
        if self.alarmed_s is not None:
            return AuditResult.ALARMED
        if not self.state.audits:
            return AuditResult.NOT_AUDITED
        enough = self.state.audits >= audit.audits_to_alarm(self.state, self.level(delta))
        holds = enough and self.risk is not None and self.risk <= self.key.epsilon
        return AuditResult.HOLDS if holds else AuditResult.TOO_LITTLE_EVIDENCE

    @property
    def finding(self) -> str:
        """The result in words: "missed person: 12 % of 140 audits in which it can occur; promised 5 %"."""
        what, of, which = (
            (self.key.event, "of", " in which it can occur") if self.key.event else ("mean disagreement", "over", "")
        )
        share, promised = f"{100 * (self.risk or 0.0):.3g} %", f"{100 * self.key.epsilon:.4g} %"
        return f"{what}: {share} {of} {counted(self.state.audits, 'audit')}{which}; promised {promised}"


def promises_in(manifest: Manifest) -> list[PoolKey]:
    """Returns all promises of a bundle."""
    keys = []
    for variant in manifest.edge:
        certificate = valid_certificate(manifest, variant)
        if certificate is not None:
            promise = manifest.name, manifest.version, certificate.edge_digest, certificate.threshold
            keys += [PoolKey(*promise, epsilon, event) for event, epsilon in sorted(certificate.audit_bounds.items())]
    return keys


def new_pool(key: PoolKey, now_s: float, *, promises: int = 1) -> AuditPool:
    """Returns a pool before its first audit, of one of several promises of a contract."""
    return AuditPool(key, audit.begin(key.epsilon), now_s, now_s, promises)


def with_audit(pool: AuditPool, note: AuditNote, loss: float, *, now_s: float, delta: float) -> AuditPool:
    """Returns the pool after one more audit.

    Args:
        pool: the pool after the earlier audits.
        note: the audit's note, which tests the pool's promise.
        loss: of the answer, in [0, 1].
        now_s: wall time, for display.
        delta: the level of the contract, which its events share.
    """
    state = audit.update(pool.state, loss)
    pool = replace(pool, promises=len(note.bounds))
    alarmed_s = pool.alarmed_s
    if alarmed_s is None and audit.alarm(state, pool.level(delta)):
        alarmed_s = now_s
    return replace(
        pool,
        state=state,
        last_s=now_s,
        disagreements=pool.disagreements + (loss > 0),
        total_loss=pool.total_loss + loss,
        alarmed_s=alarmed_s,
    )


def with_recent(
    pool: AuditPool, device: str, source: str, spacing_s: float, *, service_s: float, draw: float
) -> tuple[AuditPool, bool]:
    """Returns the pool that remembers one more audit of a source, and whether that audit counts.

    It does not count within the spacing after an audit that counted, nor while too many audits, of the device or of all
    devices, are remembered. An audit is remembered for the spacing; otherwise the next one could count too soon.

    Args:
        pool: the pool after the earlier audits.
        device: that sent the audit.
        source: of the audit; see `InferRequest`. Audits without one share the source "".
        spacing_s: minimum time between counted audits of one source.
        service_s: now, in seconds of the store's service.
        draw: a random number in [0, 1).
    """
    if not spacing_s:
        return pool, True
    recent = [one for one in pool.recent if service_s - one.service_s < spacing_s]
    of_source = [one for one in recent if one.source == source]
    of_device = [one.source for one in recent if one.device == device]
    if source in of_device or len(of_device) >= _RECENT_OF_DEVICE or len(recent) >= _RECENT:
        return pool, False
    peak = pool.peak.with_number(len(of_source) + 1, service_s)
    draw_probability, propensity = spaced_probabilities(1 / peak.value, sum(one.propensity for one in of_source))
    counts = draw < draw_probability and not any(one.counts for one in of_source)
    latest = RecentAudit(service_s, device, source, propensity, counts)
    return replace(pool, recent=(*recent, latest), peak=peak), counts


def promises_of(manifest: Manifest, note: AuditNote) -> list[PoolKey]:
    """Returns the promises that a note audits, one for each event.

    A device cannot choose the bounds or the threshold of a test. No certificate covers a stricter value, and in a pool
    of its own one faulty or malicious device could raise the alarm of the whole fleet.

    Args:
        manifest: the manifest of the version that answered.
        note: the note that the device sent.

    Returns:
        An empty list if the bundle makes no such promise.
    """
    audited = note.edge_digest, note.threshold
    keys = [key for key in promises_in(manifest) if (key.edge_digest, key.threshold) == audited]
    return keys if {key.event: key.epsilon for key in keys} == note.bounds else []
