"""The commonest answer, given without waiting: of one row that the cache knows or a quick model runs, and that is kept.

These are the steps of `cascade.py` for a request that needs no others, in few calls: how long it takes is what an
agent costs beside its model. Whatever else is to be done is left to the cascade, which decides nothing otherwise.
"""

from __future__ import annotations

from firstline_core.clock import Clock
from firstline_core.errors import FirstlineError, InferenceError
from firstline_core.types import (
    PROBABILITIES,
    Answer,
    InferRequest,
    InferResponse,
    Privacy,
    Reason,
    Route,
    Status,
    Tensor,
    Tier,
)
from firstline_edge.adaptation.chooser import Chooser
from firstline_edge.audits.drawn import row_bytes
from firstline_edge.audits.hooks import Audits
from firstline_edge.budgets.spending import Spending
from firstline_edge.cache import keys
from firstline_edge.cache.results import ResultCache
from firstline_edge.cascade.hedging import Hedging
from firstline_edge.cascade.router import Router
from firstline_edge.gateway import attempt
from firstline_edge.models.edge_model import EdgeModel, is_quick
from firstline_edge.models.held import Models
from firstline_edge.requests.context import Trail
from firstline_edge.requests.model_output import ModelOutput
from firstline_edge.requests.rows import Row

_ONE_ROW = (1,)
# Looking a member up in its enumeration takes as long as reading a clock.
_AUTO, _ANY, _FINAL = Route.AUTO, Privacy.ANY, Status.FINAL
_EDGE, _CACHE, _CONFIDENT = Tier.EDGE, Tier.CACHE, Reason.CONFIDENT


class AtOnce:
    """Answers what can be answered at once, or says how far it came.

    Args:
        models: those that this device holds.
        cache: what they said.
        router: knows from which score on an answer is kept.
        spending: pays for runs; None where nothing has a price.
        audits: sees what was kept.
        hedging: learns how often that is so.
        chooser: chooses among several variants of a model.
        limit_bytes: the largest payload that this device takes on itself.
        clock: of attempts.
    """

    def __init__(
        self,
        *,
        models: Models,
        cache: ResultCache,
        router: Router,
        spending: Spending | None,
        audits: Audits,
        hedging: Hedging,
        chooser: Chooser,
        limit_bytes: int,
        clock: Clock,
    ) -> None:
        self._models = models
        self._cache = cache
        self._router = router
        self._spending = spending
        self._audits = audits
        self._hedging = hedging
        self._chooser = chooser
        self._limit_bytes = limit_bytes
        self._clock = clock

    def answer(self, request: InferRequest, trail: Trail) -> InferResponse | None:
        """The answer, where there is one at once.

        Args:
            request: any.
            trail: how far it came: from there `Cascade.infer` goes on.

        Returns:
            None where it takes more than that.

        Raises:
            InvalidTensorError: the bundle takes other inputs.
        """
        # 1. A request of one row, that is not bound to a tier, for a model that runs here.
        model = self._models.find(request.model, request.version)
        if (
            model is None
            or (edge := model.edge) is None
            or request.route is not _AUTO
            or request.privacy is not _ANY
            or len(request.inputs) != 1
            or request.inputs[0].array.shape[:1] != _ONE_ROW
            or (size_bytes := row_bytes(request.inputs[0], 0)) > self._limit_bytes
        ):
            return None
        trail.tier = _EDGE
        if model.variants is not None:
            choice = trail.choice = self._chooser.choose(request, model.variants)
            model, edge = choice.model, choice.model.edge or edge
        tensor = model.tensor(request)

        # 2. The small model, from the cache or by running it.
        started_s = self._clock.monotonic_s()
        content = keys.content_digest(tensor)
        key = content + edge.key
        output, tier = self._cache.get(key), _CACHE
        if output is not None:
            trail.attempts.append(attempt(self._clock, _CACHE, "ok", started_s))
        elif (trail.choice is None or not trail.choice.sheds) and is_quick(
            edge.pace.factor * (measured_ms := edge.row_measured_ms(size_bytes))
        ):
            output, tier = self._run(edge, tensor, key, measured_ms, trail), _EDGE

        # 3. Kept, if the policy keeps it for its score alone.
        terms = self._router.terms(model, model.group(output))
        line = terms.line
        if output is None or (score := output.score) is None or line is None or not score >= line.score:
            trail.rows = [Row(0, content, output, tier)]
            return None
        reason = line.decision.reason
        certified = terms.covered and reason is _CONFIDENT
        trail.told = terms.told

        # 4. What audits and hedges learn from it, and the answer.
        if reason is _CONFIDENT:
            self._audits.kept(request, model, content, output)
        probabilities = output.probabilities[None]
        if tier is _EDGE:
            self._hedging.kept(request.model)
        else:  # the cache's own, and the caller may do with theirs as they like
            probabilities = probabilities.copy()
        return InferResponse(
            request.model,
            model.version,
            (Tensor(PROBABILITIES, probabilities),),
            request.id,
            Answer(
                request.request_id,
                _FINAL,
                certified,
                False,  # not durable: nothing was promised
                tier,
                reason,
                score,
                edge.loaded.digest,
                tuple(trail.attempts),
            ),
        )

    def _run(self, edge: EdgeModel, tensor: Tensor, key: bytes, measured_ms: float, trail: Trail) -> ModelOutput | None:
        """What the model says of the row, which the cache is to know under the key; None where it fails."""
        started_s = self._clock.monotonic_s()
        try:
            output = edge.run_row(tensor, measured_ms / 1000)
        except FirstlineError as error:
            trail.attempts.append(attempt(self._clock, _EDGE, error.code, started_s))
            if not isinstance(error, InferenceError):
                raise
            trail.failed = True
            return None
        trail.attempts.append(attempt(self._clock, _EDGE, "ok", started_s))
        if self._spending is not None:
            self._spending.ran(1)
        self._cache.put(key, output)
        return output
