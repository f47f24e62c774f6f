"""One request on its way through the cascade, and how far it came."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from firstline_core.routing.account import Denial
from firstline_core.types import Attempt, InferRequest, InferResponse, Reason, Tensor, Tier
from firstline_edge.cache import keys
from firstline_edge.cascade.hedging import Hedge
from firstline_edge.models.held import HeldModel
from firstline_edge.requests.rows import Row, respond

if TYPE_CHECKING:
    from firstline_edge.models.held import VariantChoice


class Trail(Struct, eq=False):
    """How far a request came, for whoever must tell why it was refused.

    Args:
        attempts: every try so far.
        tier, reason: who was to answer last, and why; None where it was refused before that.
        cause: the failure for which this device's answer stands in, in a sentence; "" where there was none.
        denials: by row, why it was not worth its price.
        rows: of the request, where they were looked at already: as far as the cache and a quick model know them.
        failed: whether the model failed at that.
        choice: the variant that it was given; None where its model has but one.
        told: what the answer was held against, for the decision log; None where `Router.told` is to be asked.
    """

    attempts: list[Attempt] = []
    tier: Tier | None = None
    reason: Reason | None = None
    cause: str = ""
    denials: dict[int, Denial] = {}
    rows: list[Row] | None = None
    failed: bool = False
    choice: VariantChoice | None = None
    told: Mapping[str, Any] | None = None

    def turn_to(self, tier: Tier, reason: Reason | None) -> None:
        self.tier, self.reason = tier, reason


class Case(Struct, eq=False):
    """A request for a bundle that this device holds.

    Args:
        model: that bundle.
        tensor: its input.
        rows: all of them, in order.
        deadline_s: on the monotonic clock.
        hedge: the call to the gateway that was made before the edge model answered, if one was.
    """

    request: InferRequest
    model: HeldModel
    tensor: Tensor
    rows: list[Row]
    deadline_s: float
    trail: Trail
    hedge: Hedge | None = None

    @classmethod
    def of(cls, request: InferRequest, model: HeldModel, deadline_s: float, trail: Trail) -> Case:
        """Nothing is known of its rows but what the trail says.

        Raises:
            InvalidTensorError: the bundle takes other inputs.
        """
        tensor = model.tensor(request)
        rows = trail.rows
        if rows is None:
            rows = [Row(position, content) for position, content in enumerate(keys.content_digests(tensor))]
        return cls(request, model, tensor, rows, deadline_s, trail)

    def answer(self, *, durable: bool = False) -> InferResponse:
        """What its rows make together; every one has been answered."""
        return respond(self.request, self.model.version, self.rows, self.trail.attempts, durable=durable)
