"""Asking this device's own model: what the cache knows is not computed, and equal rows are computed once.

Its counterpart for the full model is `gateway.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from firstline_core.clock import Clock
from firstline_core.errors import DeadlineExceededError, FirstlineError, SheddingError
from firstline_core.types import Privacy, Tier
from firstline_edge.budgets.spending import Spending
from firstline_edge.cache import keys
from firstline_edge.cache.results import ResultCache
from firstline_edge.cascade.hedging import Hedging
from firstline_edge.gateway import attempt
from firstline_edge.models.edge_model import EdgeModel
from firstline_edge.requests.context import Case
from firstline_edge.requests.deadline import within
from firstline_edge.requests.model_output import ModelOutput
from firstline_edge.requests.rows import Row
from firstline_edge.requests.single_flight import SingleFlight

# Looking a member up in its enumeration takes as long as reading a clock.
_EDGE, _CACHE, _LOCAL_ONLY = Tier.EDGE, Tier.CACHE, Privacy.LOCAL_ONLY
_SHED_S = 30.0  # before that there is hardly room again
_LATE = "This device's model was not done before the request's deadline; give it more time."


class Runner:
    """The edge models, behind the cache.

    Args:
        cache: keeps what they said.
        hedging: may ask the full model before a slow run ends.
        spending: pays for runs, and says whether a hedge may be paid; None where nothing has a price.
    """

    def __init__(self, cache: ResultCache, hedging: Hedging, spending: Spending | None, clock: Clock) -> None:
        self._cache = cache
        self._hedging = hedging
        self._spending = spending
        self._clock = clock
        self._flights: SingleFlight[ModelOutput] = SingleFlight()

    async def close(self) -> None:
        """Ends the runs of callers who left."""
        await self._flights.close()

    async def ask(self, case: Case, edge: EdgeModel, rows: Sequence[Row]) -> None:
        """Fills in what the edge model says of each row. Equal rows, of whichever request, are computed once.

        Args:
            case: of which these are rows; may gain a hedge.
            edge: its model's.
            rows: to be filled in.

        Raises:
            FirstlineError: the model failed, or was not done in time; see `Cascade.infer`.
        """
        left = self.ask_quickly(case, edge, rows)
        if left:
            await self.ask_slowly(case, edge, left)

    def ask_quickly(self, case: Case, edge: EdgeModel, rows: Sequence[Row]) -> Sequence[Row]:
        """Fills in what takes no waiting: what the cache knows, and what a quick model says.

        Returns:
            The rows that are left for `ask_slowly`: all that the cache does not know, or none.

        Raises:
            SheddingError: it is not run at all now.
            FirstlineError: the model failed; see `Cascade.infer`.
        """
        missing = (
            self._recall(case, edge, rows) if case.trail.rows is None else [row for row in rows if row.edge is None]
        )
        if missing:
            self._check_shedding(case)
        if not missing or not edge.quick(case.request):
            return missing
        started_s = self._clock.monotonic_s()
        try:
            whole = len(missing) == len(case.rows)
            tensor = case.tensor if whole else case.tensor.take([row.position for row in missing])
            outputs = edge.run(tensor, edge.measured_ms(case.request, len(missing)) / 1000)
        except FirstlineError as error:
            case.trail.attempts.append(attempt(self._clock, _EDGE, error.code, started_s))
            raise
        self._take(case, edge, missing, outputs, started_s)
        return ()

    async def ask_slowly(self, case: Case, edge: EdgeModel, rows: Sequence[Row]) -> None:
        """Runs the model in a thread, where it can be shared, hedged and left at the deadline.

        Args:
            case: of which these are rows; may gain a hedge.
            edge: its model's.
            rows: to be filled in, of which the cache knows nothing.

        Raises:
            FirstlineError: the model failed, or was not done in time; see `Cascade.infer`.
        """
        started_s = self._clock.monotonic_s()
        try:
            outputs = await self._run(case, edge, rows)
        except FirstlineError as error:
            case.trail.attempts.append(attempt(self._clock, _EDGE, error.code, started_s))
            raise
        self._take(case, edge, rows, outputs, started_s)

    def _check_shedding(self, case: Case) -> None:
        choice = case.trail.choice
        if choice is not None and choice.sheds:
            case.trail.attempts.append(attempt(self._clock, _EDGE, SheddingError.code, self._clock.monotonic_s()))
            raise shedding(choice.sheds)

    def _recall(self, case: Case, edge: EdgeModel, rows: Sequence[Row]) -> list[Row]:
        """Fills in what the cache knows; the rows that it does not."""
        started_s = self._clock.monotonic_s()
        missing: list[Row] = []
        for row in rows:
            row.edge, row.edge_tier = self._cache.get(keys.result_key(edge.digest, row.content)), _CACHE
            if row.edge is None:
                missing.append(row)
        if len(missing) < len(rows):
            case.trail.attempts.append(attempt(self._clock, _CACHE, "ok", started_s))
        return missing

    def _take(
        self, case: Case, edge: EdgeModel, rows: Sequence[Row], outputs: Sequence[ModelOutput], started_s: float
    ) -> None:
        """The model ran: fills in what it said, and keeps it."""
        ran = attempt(self._clock, _EDGE, "ok", started_s)
        case.trail.attempts.append(ran)
        private = case.request.privacy is _LOCAL_ONLY
        if self._spending is not None and not private:
            self._spending.ran(len(rows))
        for row, output in zip(rows, outputs, strict=True):
            row.edge, row.edge_tier = output, _EDGE
            self._cache.put(keys.result_key(edge.digest, row.content), output, private=private)

    async def _run(self, case: Case, edge: EdgeModel, rows: Sequence[Row]) -> list[ModelOutput]:
        row_keys = [keys.result_key(edge.digest, row.content) for row in rows]

        async def compute(seats: Sequence[int]) -> list[ModelOutput]:
            tensor = case.tensor.take([rows[seat].position for seat in seats])
            measured_s = edge.measured_ms(case.request, len(seats)) / 1000
            return await edge.run_in_thread(tensor, case.deadline_s, measured_s)

        async def run(until_s: float) -> list[ModelOutput]:
            return await within(self._clock, until_s, self._flights.run(row_keys, compute), _LATE)

        if self._spending is None or self._spending.ample:
            case.hedge = self._hedging.start(case.request, case.model, edge, rows, case.deadline_s)
        if case.hedge is not None:
            try:
                return await run(case.hedge.until_s)
            except DeadlineExceededError:
                if case.hedge.landed:  # its answer is to be in time
                    raise
        return await run(case.deadline_s)


def shedding(why: str, error: FirstlineError | None = None) -> SheddingError:
    """Nothing is computed here now.

    Args:
        why: in a sentence's words.
        error: why nobody else answers; None where nobody else may.
    """
    instead = "and the request is bound to it" if error is None else f"and nobody else answers: {error.message}"
    return SheddingError(
        f"This device computes nothing at the moment ({why}), {instead.removesuffix('.')}; try again.",
        retry_after_s=_SHED_S,
    )
