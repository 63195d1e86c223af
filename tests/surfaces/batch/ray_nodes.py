"""A Ray cluster on this machine, in a process of its own: nodes each of which can be killed.

`python -m tests.surfaces.batch.ray_nodes FOLDER` reads a line of JSON with the environment of each node, prints one
with the cluster's address and the process id of each node, does the same for each further line, and ends with its
input.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import pytest

from mendgraph.nodes.workspace.files.deadline import monotonic_s, pause
from tests.architecture.product import ROOT

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is missing: `uv sync --extra ray` installs it")
CPUS: Final = 2
STORE_BYTES: Final = 78_643_200
"""The least that Ray takes for the object store of a node."""

_SETTINGS: Final = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
LONGEST_END_S: Final = 60.0


class RayNodes(NamedTuple):
    """A running cluster: the address of its head, and the process id of each node; the first one is the head."""

    address: str
    pids: list[int]
    folder: str
    process: "subprocess.Popen[str]"

    def replace(self, node: int, environment: dict[str, str]) -> None:
        """A new node in the place of one that was killed."""
        (self.pids[node],) = _read_nodes(self.process, [environment], self.folder).pids

    def kill(self, node: int) -> None:
        """End a node at once, like a power failure: its Ray processes and its workers."""
        for pid in [*children_of(self.pids[node]), self.pids[node]]:
            with suppress(ProcessLookupError):  # an idle worker ends by itself
                os.kill(pid, signal.SIGKILL)


def children_of(pid: int) -> list[int]:
    """The processes that this one has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return [int(pid) for pid in children.split()]


@contextmanager
def ray_nodes(environments: Sequence[dict[str, str]]) -> Iterator[RayNodes]:
    """A cluster with one node for each of these environments, which are added to that of the test."""
    folder = tempfile.mkdtemp(prefix="r-", dir="/tmp")  # sockets have short names
    try:
        with Path(folder, "said").open("wb") as log, _started(folder, log) as process:
            yield _read_nodes(process, environments, folder)
            process.communicate(timeout=LONGEST_END_S)
        wait_until_gone(folder)
    finally:
        for pid in processes_of(folder):
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def processes_of(folder: str) -> list[int]:
    """The processes of the cluster in this folder, and what they have started."""
    pids = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):  # it has ended meanwhile
            if f"RAY_TMPDIR={folder}".encode() in Path(f"/proc/{name}/environ").read_bytes():
                pids.append(int(name))
    return pids


def wait_until_gone(folder: str) -> None:
    """Wait until no process of the cluster is left."""
    latest = monotonic_s() + LONGEST_END_S
    while remaining := processes_of(folder):
        assert monotonic_s() < latest, remaining
        pause(0.05)


def _started(folder: str, log: IO[bytes]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "tests.surfaces.batch.ray_nodes", folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        env={**os.environ, **_SETTINGS, "RAY_TMPDIR": folder},
        cwd=ROOT,
        text=True,
        start_new_session=True,
    )


def _read_nodes(process: "subprocess.Popen[str]", environments: Sequence[dict[str, str]], folder: str) -> RayNodes:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(list(environments)) + "\n")
    process.stdin.flush()
    line = process.stdout.readline()
    assert line, Path(folder, "said").read_text(encoding="utf-8")
    return RayNodes(**json.loads(line), folder=folder, process=process)


def main(folder: str) -> None:
    """Start the nodes, and end them with the input."""
    from ray.cluster_utils import Cluster

    place = os.path.join(folder, "ray")
    os.makedirs(place)
    output_descriptor = os.dup(1)
    os.dup2(2, 1)  # Ray prints
    cluster: Any = Cluster()
    with os.fdopen(output_descriptor, "w") as output:
        for line in sys.stdin:
            has_head = cluster.head_node is not None
            nodes = []
            for environment in json.loads(line):
                head = {"include_dashboard": False, "include_log_monitor": False, "temp_dir": place}
                options = {} if cluster.head_node else head
                nodes.append(
                    cluster.add_node(
                        num_cpus=CPUS, object_store_memory=STORE_BYTES, env_vars=environment, wait=has_head, **options
                    )
                )
            if not has_head:  # with one that was killed there are never as many as were added
                cluster.wait_for_nodes(60)
            pids = [node.all_processes["raylet"][0].process.pid for node in nodes]
            output.write(json.dumps({"address": cluster.address, "pids": pids}) + "\n")
            output.flush()
    cluster.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
