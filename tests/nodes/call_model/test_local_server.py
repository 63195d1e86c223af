"""The child process as its parent sees it, with a double in the place of the library that serves."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from nodes.call_model import local_server
from nodes.call_model.local_model import LocalServer, start_local_server
from tests.doubles.tiny_model import write_tiny_model

LIBRARY = """
import json, os, types
class CommonParams:
    def __init__(self):
        self.model, self.cpuparams = types.SimpleNamespace(), types.SimpleNamespace()
class Server:
    def __init__(self, params):
        os.write(1, b"chatter of the library\\n")
        if params.model.path == "damaged":
            raise RuntimeError("Failed to init server")
        params.model, params.cpuparams = vars(params.model), vars(params.cpuparams)
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
    command = [sys.executable, "-P", local_server.__file__, weights, "--model", "qwen", "--context-tokens", "512"]
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


def announced_by(line: str) -> tuple[Any, str]:
    """What the double of the library was told to serve, and the path of the address that is announced."""
    url = json.loads(line)["url"]
    end = url.rindex("}") + 1
    return json.loads(url[:end]), url[end:]


def test_the_path_of_the_address_cannot_be_guessed(library: Path) -> None:
    paths = set()
    for _ in range(2):
        child = start(library, "weights.gguf")
        paths.add(announced_by(first_line(child))[1])
        child.communicate()
    assert len(paths) == 2
    assert all(re.fullmatch(r"/[A-Za-z0-9_-]{32}", path) for path in paths)


@pytest.mark.skipif(find_spec("xllamacpp") is None, reason="the extra `local` is not installed")
def test_the_real_server_answers_below_its_own_path_alone(tmp_path: Path) -> None:
    server = start_local_server(str(write_tiny_model(tmp_path / "tiny.gguf")), context_tokens=512, threads=1)
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


def test_the_only_line_on_stdout_is_the_address(child: Child) -> None:
    served, path = announced_by(first_line(child))
    assert served.pop("api_prefix") == path
    assert served == {
        "model": {"path": "weights.gguf"},
        "model_alias": ["qwen"],
        "hostnames": ["127.0.0.1"],
        "port": 0,
        "n_ctx": 512,
        "n_parallel": 1,
        "cpuparams": {"n_threads": -1},
        "cache_ram_mib": 1024,
        "verbosity": 1,
        "offline": True,
        "ui": False,
        "endpoint_slots": False,
        "cors_origins": "",
    }
    stdout, stderr = child.communicate()
    assert (stdout, stderr) == ("", "chatter of the library\n")


def test_it_ends_when_its_parent_is_gone(child: Child) -> None:
    first_line(child)
    assert child.stdin is not None
    child.stdin.close()
    assert child.wait(5) == 0


def test_sigterm_ends_it_and_ctrl_c_does_not(child: Child) -> None:
    first_line(child)
    child.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.1)
    child.terminate()
    assert child.wait(5) == -signal.SIGTERM


def test_weights_that_cannot_be_served_end_it_with_the_reason(library: Path) -> None:
    assert ended(library, "damaged") == (1, "", "chatter of the library\nFailed to init server\n")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise ImportError('No module named xllamacpp')", "No module named xllamacpp"),
        ("class CommonParams: pass\nclass Server: pass", "'CommonParams' object has no attribute 'model'"),
    ],
    ids=["not installed", "another version"],
)
def test_a_library_that_does_not_fit_ends_it_with_the_reason(library: Path, source: str, reason: str) -> None:
    (library / "xllamacpp.py").write_text(source)
    assert ended(library, "weights.gguf") == (1, "", f"{reason}\n")


# --- Its parts, in this process


class EndedError(BaseException):
    """Stands for the end of the process."""


def ends(*_: object) -> None:
    raise EndedError


def in_this_process(monkeypatch: pytest.MonkeyPatch) -> int:
    """Let the whole program run here; returns the handle on which it announces."""
    library = ModuleType("xllamacpp")
    exec(LIBRARY.replace('os.write(1, b"chatter of the library\\n")', "pass"), vars(library))  # noqa: S102 - our own
    monkeypatch.setitem(sys.modules, "xllamacpp", library)
    hears, says = os.pipe()
    monkeypatch.setattr(os, "dup", lambda _: says)
    monkeypatch.setattr(os, "dup2", lambda *_: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(signal, "pause", ends)
    monkeypatch.setattr(local_server, "_end_with_parent", lambda: None)
    return hears


def test_it_announces_itself_and_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    hears = in_this_process(monkeypatch)
    with pytest.raises(EndedError):
        local_server.main(["w.gguf", "--model", "qwen", "--context-tokens", "512", "--port", "81", "--threads", "2"])
    with os.fdopen(hears) as announced:
        served, _ = announced_by(announced.read())
    assert [served[name] for name in ("model", "port", "n_ctx", "cpuparams")] == [
        {"path": "w.gguf"},
        81,
        512,
        {"n_threads": 2},
    ]


def test_it_says_why_it_cannot_serve(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    hears = in_this_process(monkeypatch)
    says = os.dup(1)
    assert local_server.main(["damaged", "--model", "qwen", "--context-tokens", "512"]) == 1
    assert capsys.readouterr().err == "Failed to init server\n"
    os.close(says)
    with os.fdopen(hears) as announced:
        assert announced.read() == ""


def test_the_end_of_its_input_is_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    came = iter([b"x", b""])
    monkeypatch.setattr(os, "read", lambda *_: next(came))
    monkeypatch.setattr(os, "_exit", ends)
    with pytest.raises(EndedError):
        local_server._end_with_parent()
    assert list(came) == []
