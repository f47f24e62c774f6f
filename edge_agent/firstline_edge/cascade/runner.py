"""Runs this device's own model behind the result cache; equal rows are computed once."""

from __future__ import annotations

from collections.abc import Sequence

from firstline_core.clock import Clock
from firstline_core.errors import DeadlineExceededError, FirstlineError, SheddingError
from firstline_core.types import Privacy, Tier
from firstline_edge.budgets.spending import Spending
from firstline_edge.cache.results import ResultCache
from firstline_edge.cascade.hedging import Hedge
from firstline_edge.models.models import EdgeModel
from firstline_edge.requests.context import ModelOutput, RequestContext, Row, attempt
from firstline_edge.requests.deadline import within
from firstline_edge.requests.single_flight import SingleFlight

# Looking a member up in its enumeration takes as long as reading a clock.
_EDGE, _CACHE, _LOCAL_ONLY = Tier.EDGE, Tier.CACHE, Privacy.LOCAL_ONLY
_RETRY_AFTER_SHEDDING_S = 30.0
_LATE = "This device's model was not done before the request's deadline; give it more time."


class Runner:
    """Fills in what the edge model says about rows, from the cache or by running the model.

    Args:
        cache: stores model outputs.
        spending: pays for runs; None if nothing has a price.
        clock: for deadlines and attempts.
    """

    def __init__(self, cache: ResultCache, spending: Spending | None, clock: Clock) -> None:
        self._cache = cache
        self._spending = spending
        self._clock = clock
        self._flights: SingleFlight[ModelOutput] = SingleFlight()

    async def close(self) -> None:
        """Cancels the runs whose callers have left."""
        await self._flights.close()

    def recall(self, context: RequestContext, edge: EdgeModel, rows: Sequence[Row]) -> Sequence[Row]:
        """Fills in the outputs that the cache knows, and returns the other rows."""
        started_s = self._clock.monotonic_s()
        missing: list[Row] = []
        for row in rows:
            row.edge, row.edge_tier = self._cache.get(row.content + edge.key), _CACHE
            if row.edge is None:
                missing.append(row)
        if len(missing) < len(rows):
            context.attempts.append(attempt(self._clock, _CACHE, "ok", started_s))
        return missing

    async def run(self, context: RequestContext, edge: EdgeModel, rows: Sequence[Row], hedge: Hedge | None) -> None:
        """Runs the edge model on rows that the cache does not know, and stores its outputs in the cache.

        Args:
            context: the request of these rows.
            edge: the variant to run.
            rows: filled in.
            hedge: the call to the full model that was made early, if there is one.

        Raises:
            SheddingError: this device computes nothing at the moment.
            FirstlineError: the model failed or was not done in time; see `Cascade.infer`.
        """
        private = context.request.privacy is _LOCAL_ONLY
        started_s = self._clock.monotonic_s()
        try:
            if context.shedding:
                raise shedding_error(context.shedding)
            outputs = await self._outputs(context, edge, rows, hedge)
        except FirstlineError as error:
            context.attempts.append(attempt(self._clock, _EDGE, error.code, started_s))
            raise
        context.attempts.append(attempt(self._clock, _EDGE, "ok", started_s))
        if self._spending is not None and not private:
            self._spending.ran(len(rows))
        for row, output in zip(rows, outputs, strict=True):
            row.edge, row.edge_tier = output, _EDGE
            self._cache.put(row.content + edge.key, output, private=private)

    async def _outputs(
        self, context: RequestContext, edge: EdgeModel, rows: Sequence[Row], hedge: Hedge | None
    ) -> Sequence[ModelOutput]:
        request, tensor = context.request, context.request.inputs[0]
        if edge.quick(request):  # it runs at once, so that no other request can ask for the same row meanwhile
            batch = tensor if len(rows) == len(context.rows) else tensor.take([row.position for row in rows])
            return edge.run(batch, edge.measured_ms(request, len(rows)) / 1000)

        async def compute(positions: Sequence[int]) -> list[ModelOutput]:
            batch = tensor.take([rows[position].position for position in positions])
            return await edge.run_in_thread(batch, context.deadline_s, edge.measured_ms(request, len(positions)) / 1000)

        async def run_until(until_s: float) -> list[ModelOutput]:
            flight = self._flights.run([row.content + edge.key for row in rows], compute)
            return await within(self._clock, until_s, flight, _LATE)

        if hedge is not None:
            try:
                return await run_until(hedge.until_s)
            except DeadlineExceededError:
                if hedge.landed:  # the full model's answer is still in time
                    raise
        return await run_until(context.deadline_s)


def shedding_error(why: str, error: FirstlineError | None = None) -> SheddingError:
    """Returns the error for a request that nothing may compute now.

    Args:
        why: the reason, as part of a sentence.
        error: why the gateway does not answer either; None if the request is bound to this device.
    """
    instead = "and the request is bound to it" if error is None else f"and nobody else answers: {error.message}"
    return SheddingError(
        f"This device computes nothing at the moment ({why}), {instead.removesuffix('.')}; try again.",
        retry_after_s=_RETRY_AFTER_SHEDDING_S,
    )
