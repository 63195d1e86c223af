"""LangSmith by its own variables: runs are posted if the user has set them, and otherwise nothing is sent."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.doubles.scripted_server import Calls, Say, ScriptedServer
from tests.extent import slow

WORD = "hunter2-hunter2-hunter2"
INFO = b"""{"batch_ingest_config": {"use_multipart_endpoint": true, "size_limit": 100, "size_limit_bytes": 20971520,
"scale_up_nthreads_limit": 16, "scale_up_qsize_trigger": 1000}}"""
RUN = """
import os, sys
from langchain_core.tools import tool
from mendgraph import AgentContext, default_tools, run_task
from langchain_core.tracers.langchain import wait_for_all_tracers
from langsmith.utils import get_env_var

folder, url = sys.argv[1:]

@tool
def reveal() -> str:
    "Reveal it."
    return "hunter2-hunter2-hunter2"

tools = (*default_tools(), reveal)
context = AgentContext(workspace=folder, base_url=url, model="m", protocol="native", evidence=False)
for tracing, asked in (("false", "Untold"), ("true", "Told")):
    os.environ["LANGSMITH_TRACING"] = tracing
    get_env_var.cache_clear()
    print(run_task(f"{asked}: look for hunter2-hunter2-hunter2.", context, tools=tools).outcome.answer)
    wait_for_all_tracers()
"""


@contextmanager
def ingest() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """What stands in for LangSmith: its address, and the paths and bodies that it was sent."""
    got: list[tuple[str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(b"", INFO)

        def do_POST(self) -> None:
            self.answer(self.rfile.read(int(self.headers["Content-Length"])), b"{}")

        def answer(self, body: bytes, document: bytes) -> None:
            got.append((self.path, body))
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(document)))
            self.end_headers()
            self.wfile.write(document)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", got
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@slow
def test_run_is_posted_to_langsmith_only_if_tracing_is_on_and_without_secrets(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(f"one {WORD} two\n", encoding="utf-8")
    script = [Calls([("read_file", '{"path": "a.txt"}'), ("reveal", "{}")]), Say(f"It is {WORD}.")]
    with ingest() as (url, got), ScriptedServer(script * 2) as server:
        environment = {
            **os.environ,
            "LANGSMITH_ENDPOINT": url,
            "LANGSMITH_API_KEY": f"key-{WORD}",
            "DEPLOY_TOKEN": WORD,
        }
        command = [sys.executable, "-c", RUN, str(tmp_path), server.base_url]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    sent = b"".join(body for _, body in got)
    assert ended.stdout == "It is [redacted secret].\n" * 2
    assert any(path.startswith("/runs") for path, _ in got)
    assert [word in sent for word in (b"call_model", b"[redacted secret]", b"Told", b"Untold")] == [True] * 3 + [False]
    assert WORD.encode() not in sent
