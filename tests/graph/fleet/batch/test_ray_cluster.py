"""The way to a cluster: what is no address, who does not answer, and nodes that cannot work together."""

import os
import signal
import socket
import subprocess
import sys
import threading
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mendgraph.graph.fleet.batch import ray_cluster
from mendgraph.graph.fleet.batch.ray_cluster import EXTRA_MISSING, Cluster, connect, look_at_nodes, quiet
from mendgraph.graph.fleet.batch.ray_node import BATCH_DIR_VARIABLE, look
from mendgraph.nodes.execute_tools.store.postgres_url import STORE_URL_VARIABLE
from mendgraph.nodes.execute_tools.store.run_folder import DATA_DIR_VARIABLE
from mendgraph.nodes.records import ToolError, ToolErrorCode
from tests.architecture.product import ROOT

pytest.importorskip("ray", reason="Ray is missing: `uv sync --extra ray` installs it")


class RayError(Exception):
    pass


class NodeDiedError(RayError):
    pass


class TaskUnschedulableError(RayError):
    pass


@pytest.fixture(autouse=True)
def own_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(DATA_DIR_VARIABLE, str(tmp_path / "data"))
    monkeypatch.setenv(BATCH_DIR_VARIABLE, str(tmp_path / "copies"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def cluster_of(*looks: Any, machines: tuple[str, ...] = ("10.0.0.1", "10.0.0.2")) -> Any:
    """A cluster whose nodes say this of themselves; an error is what becomes of the question."""

    def get(reference: int) -> Any:
        found = looks[reference]
        if isinstance(found, Exception):
            raise found
        return found

    nodes = [
        {"NodeID": f"{number:056x}", "Alive": True, "Resources": {"CPU": 1.0}, "NodeManagerAddress": machine}
        for number, machine in zip(range(len(looks)), machines, strict=False)
    ]
    lost = {"NodeID": "x", "Alive": False, "Resources": {"CPU": 1.0}, "NodeManagerAddress": "10.0.0.9"}
    bare = {"NodeID": "y", "Alive": True, "Resources": {}, "NodeManagerAddress": "10.0.0.8"}
    exceptions = SimpleNamespace(
        RayError=RayError, NodeDiedError=NodeDiedError, TaskUnschedulableError=TaskUnschedulableError
    )
    ray = SimpleNamespace(nodes=lambda: [lost, *nodes, bare], exceptions=exceptions)
    asked = iter(range(len(looks)))
    return SimpleNamespace(ray=ray, submit=lambda *_, **__: next(asked), get=get)


@pytest.mark.parametrize("address", ["nonsense", "1.2.3", "host:0", "host:65536", ":6379", "host:six"])
def test_what_is_no_address_is_refused(address: str) -> None:
    found = connect(address)
    assert isinstance(found, ToolError)
    assert found.code is ToolErrorCode.INVALID_ARGUMENT
    assert found.message == f"{address!r} is no address of a Ray cluster: write host:port, as in 10.0.0.1:6379."


def test_the_address_of_a_client_is_refused_with_the_remedy() -> None:
    found = connect("ray://127.0.0.1:10001")
    assert isinstance(found, ToolError)
    assert "is a Ray client's address: give that of the cluster itself" in found.message


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        for given in (None, address):
            found = connect(given)
            assert isinstance(found, ToolError)
            assert found.code is ToolErrorCode.UNAVAILABLE
            assert found.message == (
                f"No Ray cluster answers at {address} ([Errno 111] Connection refused):"
                " start one with `ray start --head`, or correct the address."
            )


def test_without_the_extra_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    found = connect(None)
    assert found == ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=EXTRA_MISSING)
    assert "pip install 'mendgraph[ray]'" in EXTRA_MISSING


def test_what_ray_says_when_it_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    said = "Version mismatch: The cluster was started with:\n Ray: 2.1"

    def refuses(**_: Any) -> None:
        raise RuntimeError(said)

    monkeypatch.setattr(ray, "init", refuses)
    monkeypatch.setattr(ray_cluster, "_reachable", lambda _: None)
    found = connect("10.0.0.1:6379")
    assert isinstance(found, ToolError)
    assert found.message.startswith("The Ray cluster at 10.0.0.1:6379 has other versions than this program: Version")
    said = "no room"
    found = connect(None)
    assert isinstance(found, ToolError)
    assert found.message == "No Ray cluster could be started on this machine (no room): see the folder /tmp/ray."


def test_a_connection_of_the_program_is_used_and_left(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "shutdown", lambda: pytest.fail("it is not ours"))
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 3.0})
    found = connect(None)
    assert isinstance(found, Cluster)
    assert found.cpus == 3.0
    found.close()


def test_another_version_on_a_node_is_told() -> None:
    ray = SimpleNamespace(remote=lambda function: function, get=lambda *_, **__: "0.0.7")
    found = Cluster(ray, ours=False).get("reference")  # type: ignore[arg-type]
    assert isinstance(found, ToolError)
    assert "has another mendgraph than this program (0.0.7, not " in found.message
    call = ray_cluster._caller()
    assert call("0.0.7", "look", ()) == version("mendgraph")
    assert call(version("mendgraph"), "look", ())["shared"] is False


def test_nodes_of_one_machine_with_one_folder_of_records_need_no_shared_store() -> None:
    assert look_at_nodes(cluster_of(look(()), look(()), machines=("10.0.0.1", "10.0.0.1")), ()) is None


@pytest.mark.parametrize("apart", ["machine", "records", "copies"])
def test_nodes_that_share_no_records_are_refused_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, apart: str
) -> None:
    first = look(())
    names = {"records": DATA_DIR_VARIABLE, "copies": BATCH_DIR_VARIABLE}
    with monkeypatch.context() as other:
        if apart in names:
            other.setenv(names[apart], str(tmp_path / "other"))
        second = look(())
    machines = ("10.0.0.1", "10.0.0.2") if apart == "machine" else ("10.0.0.1", "10.0.0.1")
    found = look_at_nodes(cluster_of(first, second, machines=machines), ())
    assert isinstance(found, ToolError)
    assert found.message == (
        "The nodes of the Ray cluster do not share their records with this program: set MENDGRAPH_STORE_URL to one"
        " PostgreSQL database, here and in the environment of `ray start` on each node."
    )


def test_the_store_is_named_everywhere_or_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = look(())
    with monkeypatch.context() as shared:
        shared.setenv(STORE_URL_VARIABLE, "postgresql://u:word@h/d")
        has = look(())
        found = look_at_nodes(cluster_of(has, bare), ())
        assert isinstance(found, ToolError)
        assert "has no MENDGRAPH_STORE_URL: set it in the environment of `ray start`" in found.message
        assert look_at_nodes(cluster_of(has, has), ()) is None
    found = look_at_nodes(cluster_of(has, has), ())
    assert isinstance(found, ToolError)
    assert found.message == (
        "The nodes have MENDGRAPH_STORE_URL, and this program has not: set it here to the same store."
    )
    assert "word" not in repr((has, found))


def test_a_node_that_lacks_a_key_or_cannot_work_is_named() -> None:
    found = look_at_nodes(cluster_of(look(())), ("A_KEY",))
    assert isinstance(found, ToolError)
    assert (found.code, "has no A_KEY" in found.message) == (ToolErrorCode.PERMISSION_DENIED, True)
    found = look_at_nodes(cluster_of({**look(()), "problem": "The disk is full.", "host": "n1"}), ())
    assert isinstance(found, ToolError)
    assert found.message == "The node n1 cannot work: The disk is full. MENDGRAPH_BATCH_DIR names another."
    other = ToolError(code=ToolErrorCode.UNAVAILABLE, message="Another version.")
    assert look_at_nodes(cluster_of(other), ()) is other


def test_a_node_that_was_lost_just_now_is_left_out_and_one_that_is_silent_is_not() -> None:
    assert look_at_nodes(cluster_of(look(()), NodeDiedError()), ()) is None
    for lost in (cluster_of(TaskUnschedulableError()), cluster_of()):
        found = look_at_nodes(lost, ())
        assert isinstance(found, ToolError)
        assert found.message == "The Ray cluster has no node with a CPU: start one with `ray start --address=...`."
    found = look_at_nodes(cluster_of(RayError()), ())
    assert isinstance(found, ToolError)
    assert found.message == "The node 10.0.0.1 does not answer (RayError)."


def test_ray_takes_no_signal_over() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with quiet():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGTERM) is before
    thread = threading.Thread(target=lambda: quiet().__enter__())
    thread.start()
    thread.join()


PROGRAM = """
import os, signal, sys
before = dict(os.environ), signal.getsignal(signal.SIGTERM)
os.chdir(sys.argv[1])  # who would have imported this one, had it been sent to the workers
from mendgraph.graph.fleet.batch.ray_cluster import connect, look_at_nodes
cluster = connect(None)
assert look_at_nodes(cluster, ("A_KEY",)) is None
paths = cluster.ray.get(cluster.ray.remote(num_cpus=0)(lambda: sys.path).remote())
assert sys.argv[1] not in paths, paths
[node] = cluster.ray.nodes()
assert max(node["DashboardAgentListenPort"], node["MetricsAgentPort"]) <= 0, node
import httpx  # the one port that a web page can talk to installs what it is told to, and wants a token
agent = f"http://{node['NodeManagerAddress']}:{node['RuntimeEnvAgentPort']}/get_or_create_runtime_env"
asked = httpx.post(agent, content=b"", headers={"origin": "http://evil.test", "content-type": "text/plain"})
assert asked.status_code == 401, asked.text
cluster.close()
assert signal.getsignal(signal.SIGTERM) is before[1]
changed = {name for name in {*os.environ, *before[0]} if os.environ.get(name) != before[0].get(name)}
print(sorted(changed), cluster.ray.is_initialized())
"""


def test_a_cluster_that_is_started_here_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "json.py").write_text("raise SystemExit('somebody else')\n")
    folder = Path("/tmp") / f"r-{os.getpid()}-{tmp_path.name[-2:]}"  # sockets have short names
    folder.mkdir()
    said = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, str(tmp_path / "here")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=ROOT,
        env={**os.environ, "RAY_TMPDIR": str(folder), "A_KEY": "k"},
    )
    subprocess.run(["rm", "-rf", str(folder)], check=True)
    offline = "network_util.cc"  # Ray's own complaint where the machine has no route to others
    complained = [line for line in said.stderr.splitlines() if offline not in line]
    assert (said.returncode, said.stdout, complained) == (0, "[] False\n", [])
