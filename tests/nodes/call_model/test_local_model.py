import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

from mendgraph.nodes.call_model import local_model, local_server
from mendgraph.nodes.call_model.local_model import LocalServer, ServerSlot, start_local_server, why_unavailable
from mendgraph.nodes.call_model.weights import parts_folder
from mendgraph.nodes.records import ProviderErrorKind, ProviderFailure
from tests.doubles.fake_weights import fake_weights
from tests.doubles.tiny_model import write_tiny_model

FAKE = fake_weights()
MODEL = "qwen2.5-coder-1.5b"
STATUS = "check with `mendgraph model status`, or set OPENAI_BASE_URL and OPENAI_API_KEY"
ANNOUNCE = "import json, os, sys\ndef announce(url): print(json.dumps({'url': url}), flush=True)\n"
SERVES = ANNOUNCE + "announce('http://127.0.0.1:1')\nsys.stdin.read()\n"
TELLS = ANNOUNCE + "announce(repr([sys.argv[1:], {k: os.environ.get(k) for k in ENV}]))\nsys.stdin.read()\n"
REFUSES = "import sys\nprint('0.00.1 E srv start: no\\tgood\\nmore', file=sys.stderr)\nsys.exit(1)\n"

Program = Callable[[str], tuple[str, ...]]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Turns a source text into what stands in for the server."""

    def write(source: str) -> tuple[str, ...]:
        script = tmp_path / "server.py"
        script.write_text(source)
        return (sys.executable, "-I", "-S", str(script))

    return write


@pytest.fixture
def server(program: Program) -> Iterator[LocalServer]:
    server = running(start_local_server("w", program=program(SERVES)))
    yield server
    server.stop()


def running(server: LocalServer | ProviderFailure) -> LocalServer:
    assert isinstance(server, LocalServer)
    return server


def unavailable(message: str) -> ProviderFailure:
    return ProviderFailure(kind=ProviderErrorKind.MODEL_UNAVAILABLE, message=message)


def test_server_that_announces_itself_can_be_talked_to(server: LocalServer) -> None:
    assert (server.base_url, server.model, server.alive) == ("http://127.0.0.1:1/v1", MODEL, True)
    server.stop()
    assert not server.alive
    server.stop()


def test_server_has_a_session_of_its_own_so_that_ctrl_c_does_not_reach_it(server: LocalServer) -> None:
    assert os.getsid(server.pid) == server.pid


def test_child_is_told_what_to_serve_in_a_calm_clean_environment(
    program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONPATH", "somewhere")
    monkeypatch.setenv("MENDGRAPH_STORE_URL", "postgresql://somewhere")
    monkeypatch.chdir(tmp_path)
    tells = program("ENV = ('OMP_WAIT_POLICY', 'GOMP_SPINCOUNT', 'PYTHONPATH', 'MENDGRAPH_STORE_URL')\n" + TELLS)
    server = running(start_local_server("w.gguf", context_tokens=512, program=tells))
    server.stop()
    arguments = [str(tmp_path / "w.gguf"), MODEL, "512"]
    environment = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0", "PYTHONPATH": None, "MENDGRAPH_STORE_URL": None}
    assert server.base_url == f"{[arguments, environment]!r}/v1"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (REFUSES, "(srv start: no good)"),
        ("raise SystemExit(3)", "(exit code 3)"),
        ("print('hello', flush=True)", "(instead of its address it said b'hello\\n')"),
    ],
)
def test_server_that_does_not_start_is_reported_in_its_own_words(program: Program, source: str, message: str) -> None:
    failure = start_local_server("w", program=program(source))
    assert failure == unavailable(f"the local model server did not start {message}: {STATUS}")


def test_server_that_needs_too_long_is_ended(program: Program, tmp_path: Path) -> None:
    hangs = program(f"import os, time\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(60)")
    failure = start_local_server("w", program=hangs, timeout_s=0.3)
    assert failure == unavailable(f"the local model server did not start (no answer within 0.3 s): {STATUS}")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_program_that_is_not_there_is_a_failure(tmp_path: Path) -> None:
    failure = start_local_server("w", program=[str(tmp_path / "absent")])
    assert failure == unavailable(f"the local model server did not start (No such file or directory): {STATUS}")


PARENT = """
import os, sys
from mendgraph.nodes.call_model.local_model import start_local_server
start_local_server("w", program=[sys.executable, "-I", "-S", sys.argv[1]])
{end}
"""


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "sys.exit()"])
def test_it_ends_with_its_parent_however_that_ends(program: Program, tmp_path: Path, end: str) -> None:
    gone = tmp_path / "gone"
    farewell = f"open({str(gone)!r}, 'w').close()\n"
    by_signal = f"import signal\nsignal.signal(signal.SIGTERM, lambda *_: open({str(gone)!r}, 'w').close())\n"
    script = program(by_signal + SERVES + farewell)[-1]
    subprocess.run([sys.executable, "-c", PARENT.format(end=end), script], check=False)
    limit = time.monotonic() + 5
    while not gone.exists() and time.monotonic() < limit:
        time.sleep(0.01)
    assert gone.exists()


@pytest.fixture
def slot(program: Program) -> Iterator[ServerSlot]:
    slot = ServerSlot(lambda: start_local_server("w", program=program(SERVES)))
    yield slot
    running(slot.get()).stop()


def test_all_threads_share_one_server(slot: ServerSlot) -> None:
    servers: list[LocalServer | ProviderFailure] = []
    threads = [threading.Thread(target=lambda: servers.append(slot.get())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({running(server).pid for server in servers}) == 1


def test_server_that_died_is_started_again(slot: ServerSlot) -> None:
    first = running(slot.get())
    os.kill(first.pid, signal.SIGKILL)
    first.stop()
    second = running(slot.get())
    assert (second.alive, second.pid == first.pid) == (True, False)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_model, "find_spec", lambda _: object())


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("data", "parts", "message"),
    [
        (None, False, "the embedded model's weights are not on this machine: run `mendgraph model pull`"),
        (None, True, "the embedded model's weights are only partly here: run `mendgraph model pull`"),
        (FAKE.data[::-1], False, "the embedded model's weights are damaged: run `mendgraph model pull`"),
    ],
)
def test_each_missing_piece_names_its_one_command(
    tmp_path: Path, data: bytes | None, parts: bool, message: str
) -> None:
    place = tmp_path / "fake.gguf"
    if data is not None:
        place.write_bytes(data)
    if parts:
        FAKE.place(FAKE.spec.parts[0], parts_folder(str(place)))
    assert why_unavailable(str(place), spec=FAKE.spec) == unavailable(message)


LIBRARY = """
import json, os, types
class CommonParams:
    def __init__(self):
        self.model = types.SimpleNamespace()
        self.speculative = types.SimpleNamespace(ngram_simple=types.SimpleNamespace())
common_speculative_type = types.SimpleNamespace(COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE="ngram")
class Server:
    def __init__(self, params):
        os.write(1, b"chatter of the library\\n")
        if params.model.path == "damaged":
            raise RuntimeError("Failed to init server")
        params.model, speculative = vars(params.model), vars(params.speculative)
        params.speculative = {**speculative, "ngram_simple": vars(speculative["ngram_simple"])}
        self.listening_address = json.dumps(vars(params), default=sorted)
"""

Child = subprocess.Popen[str]


@pytest.fixture
def library(tmp_path: Path) -> Path:
    (tmp_path / "xllamacpp.py").write_text(LIBRARY)
    return tmp_path


@pytest.fixture
def child(library: Path) -> Iterator[Child]:
    with start(library, "weights.gguf") as process:
        yield process
        process.kill()


def start(library: Path, weights: str) -> Child:
    command = [sys.executable, "-P", local_server.__file__, weights, "qwen", "512"]
    environment = {**os.environ, "PYTHONPATH": str(library)}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, text=True)


def ended(library: Path, weights: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a child that ends while its parent lives."""
    with start(library, weights) as child:
        code = child.wait(5)
        return code, *child.communicate()


def first_line(child: Child) -> str:
    assert child.stdout is not None
    return child.stdout.readline()


@pytest.mark.skipif(find_spec("xllamacpp") is None, reason="the extra `local` is not installed")
def test_real_server_answers_below_its_own_path_alone(tmp_path: Path) -> None:
    server = start_local_server(str(write_tiny_model(tmp_path / "tiny.gguf")), context_tokens=512)
    assert isinstance(server, LocalServer), server
    body = json.dumps({"messages": [{"role": "user", "content": "a"}], "max_tokens": 2})
    foreign = {"host": "evil.test", "origin": "http://evil.test", "content-type": "text/plain"}
    origin = server.base_url.rsplit("/", 2)[0]
    try:
        with httpx.Client(headers=foreign, timeout=60) as client:
            asked = {
                url: client.post(f"{url}/chat/completions", content=body) for url in (server.base_url, f"{origin}/v1")
            }
            other = [
                client.get(origin + path).status_code for path in ("/", "/health", "/props", "/slots", "/v1/models")
            ]
    finally:
        server.stop()
    assert [answer.status_code for answer in asked.values()] == [200, 404]
    assert other == [404] * 5


def test_it_ends_when_its_parent_is_gone(child: Child) -> None:
    first_line(child)
    assert child.stdin is not None
    child.stdin.close()
    assert child.wait(5) == 0


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise ImportError('No module named xllamacpp')", "No module named xllamacpp"),
        (
            "class CommonParams: pass\nclass Server: pass\ncommon_speculative_type = 0",
            "'CommonParams' object has no attribute 'model'",
        ),
    ],
    ids=["not installed", "another version"],
)
def test_library_that_does_not_fit_ends_it_with_the_reason(library: Path, source: str, reason: str) -> None:
    (library / "xllamacpp.py").write_text(source)
    assert ended(library, "weights.gguf") == (1, "", f"{reason}\n")
