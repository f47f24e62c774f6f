"""Pools of audits, as a gateway keeps them."""

from dataclasses import replace

from firstline_core.routing import audit
from firstline_gateway.contracts.pool import AuditPool, PoolKey, new_pool

KEY = PoolKey("digits", 3, "0" * 64, 1 / 3, 0.05)
OTHER = KEY._replace(threshold=0.5)
NOW_S = 1_800_000_000.0


def pool_of(losses: int, key: PoolKey = KEY, **changes: object) -> AuditPool:
    """A pool of `losses` audits, all of which disagreed."""
    state = audit.begin(key.epsilon)
    for _ in range(losses):
        state = audit.update(state, 1.0)
    pool = replace(new_pool(key, NOW_S), state=state, disagreements=losses, total_loss=float(losses))
    return replace(pool, **changes)
