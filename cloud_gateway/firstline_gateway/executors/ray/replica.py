"""The replica on a machine of the cluster: one full model and its processing, loaded from the bundle that is there."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from firstline_core.bundle.loading import load_model
from firstline_core.bundle.store import open_bundle
from firstline_core.clock import SYSTEM_CLOCK
from firstline_core.errors import ModelLoadError
from firstline_core.runtime.memory import keep_freed_memory
from firstline_core.runtime.select import RuntimeOptions, check_options
from firstline_core.types import Arrays
from firstline_gateway.executors.base import Outcome
from firstline_gateway.executors.local import run_batch
from firstline_gateway.executors.ray.deployment import Deployment


class Replica:
    """One of the deployment's: as many threads as it has cores, each running a one-thread session.

    Raises:
        ConfigError: an execution provider that this machine does not have.
        ModelLoadError: there is no such bundle here, it does not load, or it has another full model.
    """

    def __init__(self, deployment: Deployment) -> None:
        options = RuntimeOptions(providers=deployment.providers, threads=1, decoding=deployment.decoding)
        check_options(options, "execution.providers")
        bundle = open_bundle(Path(deployment.bundle))
        full, digest = bundle.manifest.full, bundle.manifest.full_digest
        if full is None or digest != deployment.digest:
            raise ModelLoadError(
                f"The bundle {deployment.bundle} of this machine has full model {digest or 'none'}, the gateway's has "
                f"{deployment.digest}; put the same bundle there."
            )
        keep_freed_memory()  # as the gateway does
        self._deployment = deployment
        self._model = load_model(bundle, full, options)
        self._threads = ThreadPoolExecutor(deployment.replica_cores, thread_name_prefix="session")

    async def run(self, inputs: Sequence[Arrays], left_s: Sequence[float | None]) -> list[Outcome]:
        """Runs a batch; the deadlines are put on this machine's clock."""
        now_s = SYSTEM_CLOCK.monotonic_s()
        deadlines_s = [None if left is None else now_s + left for left in left_s]
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, run_batch, self._model, inputs, self._deployment.max_batch_rows, deadlines_s
        )

    async def fingerprint(self) -> str:
        """Of the deployment that this is a part of."""
        return self._deployment.fingerprint
