"""The one file that talks to Ray: joins a cluster, deploys, asks how deployments are, and calls replicas."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from firstline_core.errors import ConfigError, InferenceError, LinkDownError, RemoteTimeoutError
from firstline_core.telemetry.logs import logger
from firstline_core.telemetry.wording import rounded
from firstline_core.types import Arrays
from firstline_gateway.executors.base import Outcome
from firstline_gateway.executors.ray.deployment import Deployment, State
from firstline_gateway.executors.ray.replica import Replica

# Ray reports a cluster's use to its makers by default; this turns it off for what is started from here.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
try:
    import ray
    from ray import serve
    from ray.exceptions import RayError, RayTaskError
    from ray.serve.config import AutoscalingConfig
    from ray.serve.exceptions import RayServeException
    from ray.serve.handle import DeploymentHandle
except ImportError as error:
    raise ConfigError(
        f"execution.engine is \"ray\", but the package '{error.name}' is not installed; install firstline[gateway,ray]."
    ) from error

# Ray itself tries for minutes, and writes of it.
_REACH_S = 2.0
# What waits for a replica's threads waits there: the router would ask again and again, 25 ms apart and more.
_QUEUED = 256
_HEALTH_PERIOD_S = 2.0
_HEALTH_TIMEOUT_S = 5.0
_ADD_AFTER_S = 5.0
_TAKE_AWAY_AFTER_S = 300.0
_DRAIN_S = 10.0
_SAYS_WHY = re.compile(r"firstline_core\.errors\.\w+: (.+)")

log = logger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


class RayCluster:
    """A cluster of Ray, see `deployment.Cluster`.

    Args:
        address: its head, HOST:PORT; "auto" for the cluster that this machine is a node of.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        # Ray's own calls block, and expect one thread.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ray")
        self._handles: dict[str, DeploymentHandle[Any]] = {}

    async def connect(self) -> None:
        await self._blocking(self._connect)

    async def states(self) -> dict[str, State]:
        return await self._blocking(_states)

    async def deploy(self, deployment: Deployment) -> None:
        await self._blocking(_deploy, deployment)

    async def fingerprint(self, name: str) -> str:
        return str(await self._call(name, "fingerprint", _HEALTH_TIMEOUT_S))

    async def run(
        self, name: str, inputs: Sequence[Arrays], left_s: Sequence[float | None], timeout_s: float
    ) -> list[Outcome]:
        outcomes: list[Outcome] = await self._call(name, "run", timeout_s, list(inputs), list(left_s))
        return outcomes

    async def close(self) -> None:
        self._handles.clear()
        await asyncio.get_running_loop().run_in_executor(self._thread, ray.shutdown)
        self._thread.shutdown(wait=False)

    def _connect(self) -> None:
        if ray.is_initialized():
            return
        if self._address != "auto":
            host, _, port = self._address.rpartition(":")
            with socket.create_connection((host.strip("[]"), int(port)), _REACH_S):
                pass
        # Ray prints its reports to stdout, such as that a machine ended, also without `log_to_driver`.
        # The function is private to Ray: hence the upper bound on its version.
        ray._private.worker.print_to_stdstream = _log_report
        ray.init(address=self._address, namespace="firstline", configure_logging=False, log_to_driver=False)
        serve.start(proxy_location="Disabled")
        logging.getLogger("ray.serve").setLevel(logging.WARNING)

    async def _call(self, name: str, method: str, timeout_s: float, *arguments: object) -> Any:
        try:
            # Around all of it: finding the application takes Ray's thread, which a cluster in trouble holds for long.
            async with asyncio.timeout(timeout_s):
                if name not in self._handles:
                    self._handles[name] = await self._blocking(serve.get_app_handle, name)
                reply = getattr(self._handles[name], method).remote(*arguments)
                try:
                    return await reply
                except asyncio.CancelledError:
                    reply.cancel()
                    raise
        except TimeoutError as error:
            raise RemoteTimeoutError(f"no replica of {name} answered within {rounded(timeout_s)} s") from error
        except RayTaskError as error:
            raise InferenceError(f"A replica of {name} failed: {_reason(str(error))}") from error
        except (RayError, RayServeException) as error:
            self._handles.pop(name, None)
            raise LinkDownError(f"a replica of {name} is away ({_reason(str(error))})") from error

    async def _blocking(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, lambda: call(*args, **kwargs))
        except (RayError, RayServeException, OSError, RuntimeError, ValueError) as error:
            # Of an absent cluster Ray raises ConnectionError, RuntimeError or ValueError, by the way it found out.
            raise LinkDownError(
                f"the Ray cluster at {self._address} does not answer ({_reason(str(error))})"
            ) from error


def _log_report(data: Mapping[str, Any], ignore_prefix: bool) -> None:
    """Logs a report of the cluster, in place of the function with which Ray prints it."""
    log.warning("Ray cluster reports a problem", problem=_reason("\n".join(data["lines"])))


def _states() -> dict[str, State]:
    found: dict[str, State] = {}
    for name, application in serve.status().applications.items():
        replicas = sum(each.replica_states.get("RUNNING", 0) for each in application.deployments.values())
        failed = ""
        if application.status == "DEPLOY_FAILED":
            messages = [application.message, *(each.message for each in application.deployments.values())]
            failed = next((match[1] for text in messages if (match := _SAYS_WHY.search(text))), _reason(messages[0]))
        if application.status != "DELETING":
            found[name] = State(replicas, failed)
    return found


def _deploy(found: Deployment) -> None:
    wanted = serve.deployment(
        name="full-model",
        autoscaling_config=AutoscalingConfig(
            min_replicas=found.replicas_min,
            max_replicas=found.replicas_max,
            target_ongoing_requests=found.busy,
            upscale_delay_s=_ADD_AFTER_S,
            downscale_delay_s=_TAKE_AWAY_AFTER_S,
        ),
        max_ongoing_requests=_QUEUED,
        health_check_period_s=_HEALTH_PERIOD_S,
        health_check_timeout_s=_HEALTH_TIMEOUT_S,
        graceful_shutdown_timeout_s=_DRAIN_S,
        ray_actor_options={"num_cpus": found.replica_cores, "num_gpus": found.replica_gpus},
    )(Replica)
    serve.run_many(
        [serve.RunTarget(wanted.bind(found), name=found.name, route_prefix=None)], wait_for_applications_running=False
    )


def _reason(text: str) -> str:
    """The first line of what may be many."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")
