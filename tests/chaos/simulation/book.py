"""Who asked what, and what became of it: what must hold whatever happens, checked as it happens."""

import hashlib
import math
import sqlite3
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NoReturn

import numpy as np

from chaos.simulation.models import MANIFESTS, THRESHOLD, edge_says, full_says
from chaos.simulation.plan import CERTIFIED, Ask, Plan
from firstline_core.clock import Clock
from firstline_core.errors import DeadlineExceededError, FirstlineError, QueueFullError
from firstline_core.types import (
    PROBABILITIES,
    Answer,
    InferRequest,
    InferResponse,
    Privacy,
    Reason,
    Route,
    RowAnswer,
    Status,
    Tier,
)
from firstline_edge.outbox.outbox import Outbox
from firstline_edge.outbox.timeline import LEAST_JUMP_S

# A device that has to answer alone may lack time or a free core; nothing else is an excuse.
_HONEST = (DeadlineExceededError, QueueFullError)
_NOTICED_S = 65.0  # a wall clock that was set ahead, and what was stored before given its new times
_ANSWERS_AGE_S = 7 * 86_400.0 - 600.0  # as the outbox keeps them, less what a seed lasts
_LATE_S = 0.25  # an answer after its deadline by more than its promise's fsyncs take

_STILL_STEPS = 10_000


class Violation(AssertionError):  # noqa: N818 (it is what it is called)
    """What must hold did not: the seed, the simulated time and a sentence."""


class Fate(StrEnum):
    """What the caller of a request knows."""

    OPEN = "open"
    FINAL = "final"
    PROMISED = "promised"
    REFUSED = "refused"
    CUT = "cut"  # the connection ended with the process


@dataclass(slots=True)
class Story:
    """One request."""

    ask: Ask
    asked_s: float
    fate: Fate = Fate.OPEN
    first: InferResponse | None = None
    promised_s: float = 0.0
    end: InferResponse | None = None
    heard_in: int = -1  # the epoch of its latest announcement


class Book:
    """See the module. Every check raises `Violation`, and keeps the first.

    Attributes:
        found: the first violation, wherever it was raised: what is tested may catch it.
        failed: batches that the full model failed on.
        steps: of the simulation, each checked.
    """

    def __init__(self, plan: Plan, clock: Clock) -> None:
        self._plan = plan
        self._clock = clock
        self._stories: dict[str, Story] = {}
        self._epoch = 0
        self._kills_s: list[float] = []
        self._starts_s: list[float] = []
        self._effects: dict[str, object] = {}
        self._audits: set[str] = set()
        self._trace = hashlib.blake2b(digest_size=16)
        self._now_s, self._still = 0.0, 0
        self.found: Violation | None = None
        self.failed = 0
        self.steps = 0
        self.counts = dict.fromkeys((*Fate, "corrected", "expired"), 0)

    @property
    def trace(self) -> str:
        """A digest of all that happened, with its times."""
        return self._trace.hexdigest()

    def holds(self, truth: bool, otherwise: str, *values: object) -> None:
        """Raises `Violation` where it does not; `values` go into the braces of the sentence."""
        if not truth:
            self.violated(otherwise.format(*values))

    def violated(self, sentence: str) -> NoReturn:
        raise self._note_found(sentence)

    def broke(self, error: BaseException | None) -> None:
        """An unexpected exception was raised."""
        self._note_found(f"{error!r} was raised")

    def _note_found(self, sentence: str) -> Violation:
        violation = Violation(f"seed {self._plan.seed}, at {self._clock.monotonic_s():.3f} s: {sentence}")
        self.found = self.found or violation
        return violation

    def note(self, *facts: object) -> None:
        self._trace.update(f"{self._clock.monotonic_s():.6f} {facts}\n".encode())

    # What callers see.

    def asked(self, request_id: str, ask: Ask) -> None:
        self.note("asked", request_id)
        self._stories[request_id] = Story(ask, self._clock.monotonic_s())

    def answered(self, request_id: str, response: InferResponse) -> None:
        """The first answer."""
        story, answer = self._stories[request_id], _answer(response)
        self.note("answered", request_id, answer.status, answer.tier, answer.reason, answer.certified)
        self.holds(story.fate is Fate.OPEN, "{} was answered twice", request_id)
        self.holds(answer.request_id == request_id, "{} was answered as {}", request_id, answer.request_id)
        self.holds(answer.status is not Status.EXPIRED, "{} expired before it was promised", request_id)
        limit_s = 2.0 if story.ask.timeout_s is None else story.ask.timeout_s
        late_s = self._clock.monotonic_s() - story.asked_s - limit_s
        self.holds(late_s <= _LATE_S, "{} was answered {:.3f} s after its deadline", request_id, late_s)
        promised = answer.status is Status.PROVISIONAL
        self.holds(answer.durable is promised, "{} is {}, and durable: {}", request_id, answer.status, answer.durable)
        private = story.ask.privacy is Privacy.LOCAL_ONLY
        self.holds(not (private and promised), "{} is local_only, and a correction was promised", request_id)
        for position, row in enumerate(_rows(answer)):
            self._check_row(request_id, story, response, position, row)
        story.fate, story.first = (Fate.PROMISED if promised else Fate.FINAL), response
        story.promised_s = self._clock.monotonic_s()
        self.counts[story.fate] += 1

    def refused(self, request_id: str, error: FirstlineError) -> None:
        self.note("refused", request_id, error.code)
        self.holds(
            isinstance(error, _HONEST), "{} was refused, though this device could answer: {}", request_id, repr(error)
        )
        self._stories[request_id].fate = Fate.REFUSED
        self.counts[Fate.REFUSED] += 1

    def cut(self, request_id: str) -> None:
        self.note("cut", request_id)
        self._stories[request_id].fate = Fate.CUT
        self.counts[Fate.CUT] += 1

    # What applications hear.

    def announced(self, correction: InferResponse) -> None:
        answer = _answer(correction)
        request_id = answer.request_id
        self.note("announced", request_id, answer.status, answer.reason)
        story = self._stories.get(request_id)
        if story is None:
            self.violated(f"{request_id} was never asked, and is announced")
        self.holds(
            story.fate in (Fate.PROMISED, Fate.CUT, Fate.OPEN),
            "{} is announced, though its caller was told that it is {}",
            request_id,
            story.fate,
        )
        self.holds(story.heard_in != self._epoch, "{} is announced twice, and nothing was lost meanwhile", request_id)
        if story.end is None:
            self._check_end(request_id, story, correction, answer)
            self.counts["expired" if answer.status is Status.EXPIRED else "corrected"] += 1
        else:
            self.holds(_same(story.end, correction), "{} was corrected twice, and not alike", request_id)
        story.end, story.heard_in = correction, self._epoch

    def unacknowledged(self, correction: InferResponse) -> None:
        """The broker heard it, and the agent does not know: it must tell it again."""
        self._stories[_answer(correction).request_id].heard_in = -1

    # What crosses the link, and what is on the disk.

    def sent(self, request: InferRequest) -> None:
        self.note("sent", request.request_id)
        story = self._stories.get(request.request_id)
        private = request.privacy is Privacy.LOCAL_ONLY or (story and story.ask.privacy is Privacy.LOCAL_ONLY)
        self.holds(not private, "{} is local_only, and was sent", request.request_id)

    def reached(self, request: InferRequest) -> None:
        """It came to the gateway."""
        self.note("reached", request.request_id)

    def delivered(self, response: InferResponse) -> None:
        """The gateway's answer to a delivery: however often it comes, of one run, whose time it tells."""
        answer = _answer(response)
        self.note("delivered", answer.request_id)
        effect = answer.attempts, response.output(PROBABILITIES).tobytes()
        first = self._effects.setdefault(answer.request_id, effect)
        self.holds(first == effect, "{} took effect twice at the gateway", answer.request_id)

    def repeated(self, request: InferRequest) -> None:
        """The other device got an answer."""
        self.note("repeated", request.request_id)
        if request.audit is not None:
            self._audits.add(request.request_id)

    def counted_audits(self, counted: tuple[Collection[str], int]) -> None:
        """The end: whatever the gateway's clocks said, each audit counts, and once.

        Args:
            counted: the ids that the gateway knows as counted, and how many count in its tests.
        """
        recorded, count = counted
        self.holds(self._audits == set(recorded), "of {} audits the gateway knows {}", len(self._audits), len(recorded))
        self.holds(count == len(self._audits), "{} audits count {} times", len(self._audits), count)

    def committed(self, connection: sqlite3.Connection) -> None:
        (items,) = connection.execute("SELECT count(*) FROM items").fetchone()
        limit = self._plan.outbox_items
        self.holds(items <= limit, "the outbox holds {} items, its limit is {}", items, limit)

    def killed(self) -> None:
        """The agent, now."""
        self.note("killed")
        self._kills_s.append(self._clock.monotonic_s())
        self._epoch += 1

    async def started(self, outbox: Outbox) -> None:
        """What was acknowledged is there."""
        self.note("started", outbox.depth)
        self._starts_s.append(self._clock.monotonic_s())
        for request_id, story in self._stories.items():
            if story.fate is Fate.PROMISED and not self._may_be_forgotten(story):
                await self._stored(request_id, outbox)

    def step(self, depth: int) -> None:
        """After every step, of which there are many: nothing is called where all is well.

        Args:
            depth: of the outbox, as the agent counts it.
        """
        self.steps += 1
        now_s = self._clock.monotonic_s()
        if now_s != self._now_s:
            self._now_s, self._still = now_s, 0
        else:
            self._still += 1
            if self._still >= _STILL_STEPS:
                self.violated(f"{self._still} steps, and time stands still")
        if depth > self._plan.outbox_items:
            self.violated(f"the outbox counts {depth} items, its limit is {self._plan.outbox_items}")

    async def close(self, outbox: Outbox, recorded: Collection[str]) -> None:
        """The end: every promise is kept, and every correction is on record at the gateway.

        Args:
            recorded: the ids of that record.
        """
        self.holds(outbox.depth == 0, "{} promises wait for ever", outbox.depth)
        for request_id, story in self._stories.items():
            self.holds(story.fate is not Fate.OPEN, "{} was never answered", request_id)
            if story.fate is Fate.PROMISED:
                self.holds(story.end is not None, "{} was promised, and its end never announced", request_id)
                if not self._may_be_forgotten(story):
                    stored = await self._stored(request_id, outbox)
                    same = story.end is not None and _same(stored, story.end)
                    self.holds(same, "{} is stored as another answer", request_id)
            if story.end is not None and _answer(story.end).status is Status.FINAL:
                self.holds(request_id in recorded, "{} was corrected, and the gateway knows nothing of it", request_id)
        self.note("closed")

    async def _stored(self, request_id: str, outbox: Outbox) -> InferResponse:
        try:
            return await outbox.answer(request_id, "local")
        except FirstlineError as error:
            self.violated(f"{request_id} was acknowledged, and is lost: {error.message}")

    def _check_row(self, request_id: str, story: Story, response: InferResponse, position: int, row: RowAnswer) -> None:
        ask, full_digest = story.ask, MANIFESTS[story.ask.model].full_digest
        value = np.array(ask.values[position : position + 1], np.float32)
        by_full = row.model_digest == full_digest
        truth = (full_says if by_full else edge_says)(value)[0]
        found = response.output(PROBABILITIES)[position]
        self.holds(
            np.array_equal(found, truth), "{} has {} in row {}, its model says {}", request_id, found, position, truth
        )
        if by_full:
            self.holds(ask.privacy is Privacy.ANY, "{} is local_only, and the full model answered it", request_id)
            return
        covered = (
            ask.model == CERTIFIED
            and ask.route is Route.AUTO
            and ask.privacy is Privacy.ANY
            and row.reason is Reason.CONFIDENT
            and bool(value[0] >= np.float32(THRESHOLD))
        )
        self.holds(covered or not row.certified, "{} is kept as certified, and no certificate covers it", request_id)

    def _check_end(self, request_id: str, story: Story, end: InferResponse, answer: Answer) -> None:
        self.holds(answer.status is not Status.PROVISIONAL, "the end of {} is provisional", request_id)
        for position, row in enumerate(_rows(answer)):
            self._check_row(request_id, story, end, position, row)
        if story.first is not None:
            for position, before in enumerate(_rows(_answer(story.first))):
                now = _rows(answer)[position]
                waited = before.status is Status.PROVISIONAL
                right = now.status is answer.status if waited else now == before
                self.holds(
                    right, "row {} of {} was {}, and ended as {}", position, request_id, before.status, now.status
                )
                corrected = waited and answer.status is Status.FINAL
                self.holds(not corrected or now.tier is Tier.CLOUD, "{} was corrected by the {}", request_id, now.tier)
        if answer.status is Status.EXPIRED:
            self._check_expiry(request_id, story, answer)

    def _check_expiry(self, request_id: str, story: Story, answer: Answer) -> None:
        """Too old by the time that passed, or that had passed as a clock showed later; or refused for good."""
        if answer.reason is Reason.CLOUD_ERROR:
            self.holds(self.failed > 0, "{} expired for the gateway's refusal, and nothing failed there", request_id)
            return
        began_s = story.promised_s or story.asked_s
        age_s = self._clock.monotonic_s() - began_s
        ahead = [jump for jump in self._plan.jumps if jump.by_s > LEAST_JUMP_S]
        shown = any(self._is_before_start(began_s, jump.at_s) for jump in ahead)
        # It was made before it was on the disk, and its caller was told after that.
        told_s = 3 * self._plan.fsync_s + 0.001
        # A life that takes no notice of a short jump stores all that comes after it too early by the jump.
        unnoticed_s = sum(jump.by_s for jump in self._plan.jumps if 0 < jump.by_s <= LEAST_JUMP_S)
        old = age_s >= self._plan.max_age_s - told_s - unnoticed_s or shown
        self.holds(old, "{} expired after {:.1f} of {:.0f} s", request_id, age_s, self._plan.max_age_s)

    def _is_before_start(self, stored_s: float, jump_s: float) -> bool:
        """Whether an agent that was up at the jump, or could not notice it before it was killed, found it stored."""
        if any(stored_s <= start_s <= jump_s for start_s in self._starts_s):
            return True
        killed_s = next((kill_s for kill_s in self._kills_s if kill_s >= stored_s), math.inf)
        return stored_s <= jump_s and killed_s <= jump_s + _NOTICED_S

    def _may_be_forgotten(self, story: Story) -> bool:
        """Announced, and too old by what a clock shows to an agent that did not store it itself.

        With no promise left to wait, a jump is noticed with the next request that is promised, maybe after a restart.
        """
        restarted_s = max(self._starts_s, default=0.0)
        jumps = (jump for jump in self._plan.jumps if jump.by_s >= _ANSWERS_AGE_S)
        return story.end is not None and any(story.promised_s <= min(jump.at_s, restarted_s) for jump in jumps)


def _answer(response: InferResponse) -> Answer:
    return response.answer


def _rows(answer: Answer) -> tuple[RowAnswer, ...]:
    """Row by row, also where there is one only."""
    alone = (answer.tier, answer.reason, answer.status, answer.certified, answer.confidence, answer.model_digest)
    return answer.rows or (RowAnswer(*alone),)


def _same(one: InferResponse, other: InferResponse) -> bool:
    same: Any = np.array_equal(one.output(PROBABILITIES), other.output(PROBABILITIES))
    return bool(same) and _answer(one) == _answer(other)
