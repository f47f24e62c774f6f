"""Running a model of a fixed batch size over any number of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from firstline_core.types import Array

Feeds = Mapping[str, Array]


def run_in_batches(feeds: Feeds, size: int, run: Callable[[Feeds], dict[str, Array]]) -> dict[str, Array]:
    """Cuts the feeds into batches of exactly `size` rows and puts the outputs together again.

    The last batch is filled up with copies of its own last row, which the model has to accept anyway.

    Args:
        feeds: arrays that share their first axis, of at least one row.
        size: the model's batch size.
        run: runs one batch; its outputs have `size` rows.
    """
    rows = len(next(iter(feeds.values())))
    if rows == size:
        return run(feeds)
    batches = [run(_batch(feeds, start, size)) for start in range(0, rows, size)]
    return {name: np.concatenate([batch[name] for batch in batches])[:rows] for name in batches[0]}


def _batch(feeds: Feeds, start: int, size: int) -> Feeds:
    batch = {name: array[start : start + size] for name, array in feeds.items()}
    missing = size - len(next(iter(batch.values())))
    if missing == 0:
        return batch
    return {name: np.concatenate([array, np.repeat(array[-1:], missing, axis=0)]) for name, array in batch.items()}
