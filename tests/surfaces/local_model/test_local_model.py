import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
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
from tests.extent import slow
from tests.row_tables import rows

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
    """A program with this source text in place of the server."""

    def write(source: str) -> tuple[str, ...]:
        script = tmp_path / "server.py"
        script.write_text(source)
        return (sys.executable, "-I", "-S", str(script))

    return write


def running(server: LocalServer | ProviderFailure) -> LocalServer:
    assert isinstance(server, LocalServer)
    return server


def unavailable(message: str) -> ProviderFailure:
    return ProviderFailure(kind=ProviderErrorKind.MODEL_UNAVAILABLE, message=message)


def test_started_server_has_an_address_and_its_own_process_session(program: Program) -> None:
    server = running(start_local_server("w", program=program(SERVES)))
    assert (server.base_url, server.model, server.alive) == ("http://127.0.0.1:1/v1", MODEL, True)
    assert os.getsid(server.pid) == server.pid
    server.stop()
    assert not server.alive
    server.stop()


def test_child_process_gets_its_arguments_and_a_clean_environment(
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


@rows(
    (REFUSES, "(srv start: no good)"),
    ("raise SystemExit(3)", "(exit code 3)"),
    ("print('hello', flush=True)", "(instead of its address it printed b'hello\\n')"),
)
def test_server_that_does_not_start_is_reported_with_its_own_message(
    source: str, message: str, program: Program
) -> None:
    failure = start_local_server("w", program=program(source))
    assert failure == unavailable(f"the local model server did not start {message}: {STATUS}")


def test_server_that_starts_too_slowly_is_killed(program: Program, tmp_path: Path) -> None:
    hangs = program(f"import os, time\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(60)")
    failure = start_local_server("w", program=hangs, timeout_s=0.3)
    assert failure == unavailable(f"the local model server did not start (no answer within 0.3 s): {STATUS}")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_missing_program_is_a_failure(tmp_path: Path) -> None:
    failure = start_local_server("w", program=[str(tmp_path / "absent")])
    assert failure == unavailable(f"the local model server did not start (No such file or directory): {STATUS}")


PARENT = """
import os, sys
from mendgraph.nodes.call_model.local_model import start_local_server
start_local_server("w", program=[sys.executable, "-I", "-S", sys.argv[1]])
os.kill(os.getpid(), 9)
"""


@slow
def test_server_ends_with_its_parent(program: Program, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    farewell = f"open({str(gone)!r}, 'w').close()\n"
    by_signal = f"import signal\nsignal.signal(signal.SIGTERM, lambda *_: open({str(gone)!r}, 'w').close())\n"
    script = program(by_signal + SERVES + farewell)[-1]
    subprocess.run([sys.executable, "-c", PARENT, script], check=False)
    limit = time.monotonic() + 5
    while not gone.exists() and time.monotonic() < limit:
        time.sleep(0.01)
    assert gone.exists()


def test_all_threads_share_one_server_and_a_dead_one_is_restarted(program: Program) -> None:
    slot = ServerSlot(lambda: start_local_server("w", program=program(SERVES)))
    servers: list[LocalServer | ProviderFailure] = []
    threads = [threading.Thread(target=lambda: servers.append(slot.get())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [first, *others] = map(running, servers)
    assert {server.pid for server in others} == {first.pid}
    os.kill(first.pid, signal.SIGKILL)
    first.stop()
    second = running(slot.get())
    assert (second.alive, second.pid == first.pid) == (True, False)
    second.stop()


MISSING = "the embedded model's weights are {}: run `mendgraph model pull`"


@rows((None, False, "not on this machine"), (None, True, "only partly here"), (FAKE.data[::-1], False, "damaged"))
def test_missing_weights_error_names_the_pull_command(
    data: bytes | None, parts: bool, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_model, "find_spec", lambda _: object())
    place = tmp_path / problem / "fake.gguf"
    place.parent.mkdir()
    if data is not None:
        place.write_bytes(data)
    if parts:
        FAKE.place(FAKE.spec.parts[0], parts_folder(str(place)))
    assert why_unavailable(str(place), spec=FAKE.spec) == unavailable(MISSING.format(problem))


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


def start(folder: Path, library: str) -> subprocess.Popen[str]:
    """The program of the server, with this text as its library."""
    (folder / "xllamacpp.py").write_text(library)
    command = [sys.executable, "-P", local_server.__file__, "weights.gguf", "qwen", "512"]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, text=True)


def test_server_program_ends_when_its_parent_is_gone(tmp_path: Path) -> None:
    with start(tmp_path, LIBRARY) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()
        process.stdin.close()
        assert process.wait(5) == 0


OTHER_VERSION = "class CommonParams: pass\nclass Server: pass\ncommon_speculative_type = 0"


@rows(
    ("raise ImportError('No module named xllamacpp')", "No module named xllamacpp"),
    (OTHER_VERSION, "'CommonParams' object has no attribute 'model'"),
)
def test_incompatible_library_ends_the_server_with_the_reason(library: str, reason: str, tmp_path: Path) -> None:
    with start(tmp_path, library) as process:
        code = process.wait(5)
        assert (code, *process.communicate()) == (1, "", f"{reason}\n")


@pytest.mark.skipif(find_spec("xllamacpp") is None, reason="the extra `local` is not installed")
def test_real_server_answers_only_below_its_own_path(tmp_path: Path) -> None:
    server = start_local_server(str(write_tiny_model(tmp_path / "tiny.gguf")), context_tokens=512)
    assert isinstance(server, LocalServer), server
    body = json.dumps({"messages": [{"role": "user", "content": "a"}], "max_tokens": 2})
    foreign = {"host": "evil.test", "origin": "http://evil.test", "content-type": "text/plain"}
    origin = server.base_url.rsplit("/", 2)[0]
    try:
        with httpx.Client(headers=foreign, timeout=60) as client:
            answers = {
                url: client.post(f"{url}/chat/completions", content=body) for url in (server.base_url, f"{origin}/v1")
            }
            other = [
                client.get(origin + path).status_code for path in ("/", "/health", "/props", "/slots", "/v1/models")
            ]
    finally:
        server.stop()
    assert [answer.status_code for answer in answers.values()] == [200, 404]
    assert other == [404] * 5
