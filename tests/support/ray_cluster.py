"""A Ray cluster of three nodes on loopback, as a process of its own: a head that runs no model, and two machines.

Run as a program it is that process: it says its address as a line of JSON, and does what lines on its input say.
"""

import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def environment() -> dict[str, str]:
    """Of every process of the cluster, and of each process that joins it."""
    return os.environ | {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # else it takes the machine's outer address for 127.0.0.1
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
    }


class RayNodes:
    """The process, from outside."""

    def __init__(self, environ: dict[str, str]) -> None:
        self.environ = environ
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed in `end`)
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,  # of nodes that are killed it has much to say
            env=environ,
            text=True,
        )
        try:
            self.address: str = self._answer()
        except AssertionError:
            self.end()
            raise

    def kill_one(self) -> None:
        """Kills a machine's processes, without a word to the others."""
        self._ask("kill")

    def add_one(self) -> None:
        """Another machine joins."""
        self._ask("add")

    def end(self) -> None:
        try:
            self._process.communicate(timeout=30)  # its input's end is its own
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        self._log.close()

    def _ask(self, order: str) -> None:
        self._process.stdin.write(f"{order}\n")
        self._process.stdin.flush()
        assert self._answer() == order

    def _answer(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith('{"said":'):
                return str(json.loads(line)["said"])
        self._log.seek(0)
        raise AssertionError(f"the Ray cluster's process ended: {self._log.read()[-3000:]}")


@contextmanager
def ray_nodes() -> Iterator[RayNodes]:
    """A running cluster."""
    found = RayNodes(environment())
    try:
        yield found
    finally:
        found.end()


def _main() -> None:
    from ray.cluster_utils import Cluster

    with tempfile.TemporaryDirectory(
        prefix="ray", ignore_cleanup_errors=True
    ) as folder:  # sockets' paths must be short
        # Where the head writes its address, in a folder that has to be there: no other cluster is touched.
        os.environ["RAY_TMPDIR"] = folder
        Path(folder, "ray").mkdir()
        node = {"node_ip_address": "127.0.0.1", "object_store_memory": 100_000_000}
        cluster = Cluster(
            initialize_head=True, head_node_args={**node, "num_cpus": 0, "include_dashboard": False, "temp_dir": folder}
        )
        machines = [cluster.add_node(**node, num_cpus=1) for _ in range(2)]
        _say(cluster.address)
        for line in sys.stdin:
            order = line.strip()
            if order == "kill":
                cluster.remove_node(machines.pop(), allow_graceful=False)
            elif order == "add":
                machines.append(cluster.add_node(**node, num_cpus=1))
            _say(order)
        cluster.shutdown()


def _say(text: str) -> None:
    print(json.dumps({"said": text}, separators=(",", ":")), flush=True)


if __name__ == "__main__":
    _main()
