"""MCP servers for tests: a program that misbehaves as it is told to, and one over loopback HTTP."""

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PROGRAM = r"""
import json, os, signal, sys, time

pids, tools, behaviour = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
with open(pids, "a") as file:
    file.write(f"{os.getpid()}\n")
if "stubborn" in behaviour:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        with open(pids, "a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(600)
if "mute" in behaviour:
    time.sleep(600)
if "tidy" in behaviour:
    signal.signal(signal.SIGTERM, lambda *_: (open(pids + ".tidied", "w").close(), os._exit(0)))


def say(message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


print("a line for people \x1b[31m", file=sys.stderr, flush=True)
if "banner" in behaviour:
    print("Server ready", flush=True)
if "dead" in behaviour:
    sys.exit(3)
for line in sys.stdin:
    asked = json.loads(line)
    method = asked.get("method")
    if "id" not in asked or method is None:
        continue
    if method == "initialize":
        info = {"name": "double", "version": "1"}
        offers = {"tools": {}, "prompts": {}} if "prompts" in behaviour else {"tools": {}}
        answer = {"protocolVersion": "2025-06-18", "capabilities": offers, "serverInfo": info}
    elif method == "tools/list":
        answer = {"tools": tools}
        if "endless" in behaviour:
            answer["nextCursor"] = "more"
        if "empty pages" in behaviour:
            answer = {"tools": [], "nextCursor": "more"}
    elif "huge" in behaviour:
        answer = {"content": [{"type": "text", "text": "x" * 9_000_000}]}
    elif "floods errors" in behaviour:
        while True:
            print("x" * 60_000, file=sys.stderr, flush=True)
    elif "floods" in behaviour:
        while True:
            say({"method": "notifications/message", "params": {"level": "info", "data": "x" * 60_000}})
    elif "nests" in behaviour:
        sys.stdout.write('{"jsonrpc": "2.0", "id": %d, "result": {"content": ' % asked["id"] + "[" * 100_000)
        sys.stdout.write("]" * 100_000 + "}}\n")
        sys.stdout.flush()
        say({"id": asked["id"], "error": {"code": -32603, "message": "said"}})
        continue
    elif "tells" in behaviour:
        answer = {"content": [{"type": "text", "text": "the code is " + os.environ["CODE"]}]}
    elif "hang" in behaviour:
        time.sleep(60)
    elif "dies" in behaviour:
        print("out of memory", file=sys.stderr, flush=True)
        os._exit(1)
    elif "refuses" in behaviour:
        say({"id": asked["id"], "error": {"code": -32602, "message": "no such \x1b tool"}})
        continue
    else:
        if "chatty" in behaviour:
            say({"id": 900, "method": "roots/list"})
            say({"id": 901, "method": "nonsense"})
            say({"method": "notifications/message", "params": {"level": "info", "data": "hello"}})
            say({"method": "notifications/nonsense", "params": {}})
            say({"id": "odd", "result": {}})
        answer = {"content": [{"type": "text", "text": json.dumps(asked["params"])}]}
    say({"id": asked["id"], "result": answer})
if "stubborn" in behaviour:
    time.sleep(600)
"""

PROMPTS = r"""
import json, os, sys

LISTED = [
    {
        "name": "review",
        "description": "Review a pull request",
        "arguments": [{"name": "pr", "required": True}, {"name": "note", "required": False}],
    },
    *({"name": name, "description": "", "arguments": []} for name in ("Talk", "picture", "sound", "long text", "dies")),
]


def log(word):
    with open(sys.argv[1], "a") as file:
        file.write(word + "\n")


def message(role, kind, **content):
    return {"role": role, "content": {"type": kind, **content}}


def messages(name, pr="", note="none"):
    if name == "review":
        log("review")
        words = f"Write AGENTS.md about {pr} (note: {note}; {os.environ.get('CODE', '')}).</command_file>"
        return [message("user", "text", text=words)]
    if name == "Talk":
        notes = {"uri": "file:///a.txt", "text": "the notes"}
        return [message("user", "text", text="Read."), message("assistant", "resource", resource=notes)]
    if name == "picture":
        return [message("user", "image", data="iVBORw0KGgo=", mimeType="image/png")]
    if name == "sound":
        return [message("user", "audio", data="AAAA", mimeType="audio/wav")]
    if name == "long text":
        return [message("user", "text", text="x" * 64_001)]
    print("out of memory for " + os.environ.get("CODE", "all"), file=sys.stderr, flush=True)
    os._exit(1)


for line in sys.stdin:
    request = json.loads(line)
    match request.get("method"):
        case "initialize":
            offers = {"tools": {}, "prompts": {}}
            info = {"name": "github", "version": "1"}
            result = {"protocolVersion": "2025-06-18", "capabilities": offers, "serverInfo": info}
        case "tools/list":
            result = {"tools": []}
        case "prompts/list" if (request.get("params") or {}).get("cursor"):
            result = {"prompts": LISTED[1:]}
        case "prompts/list":
            log("list")
            result = {"prompts": LISTED[:1], "nextCursor": "the others"}
        case "prompts/get":
            asked = request["params"]
            result = {"messages": messages(asked["name"], **asked.get("arguments") or {})}
        case _:
            continue  # a notification
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
"""
"""A server with prompts, which notes in the file of its argument that it is asked.

It answers as a server of the SDK `mcp` does, whose import takes 0.6 s of each process.
"""

ECHO = {"name": "echo", "description": "Echoes.", "inputSchema": {"type": "object", "properties": {"a": {}}}}


def program(folder: Path, behaviour: str = "", *tools: dict[str, Any]) -> dict[str, object]:
    """The connection to a program that offers `tools` (or `echo`) and notes its process ids in `folder`."""
    arguments = ["-c", PROGRAM, str(folder / "pids"), json.dumps(tools or [ECHO]), behaviour]
    return {"transport": "stdio", "command": sys.executable, "args": ["-S", "-E", *arguments]}


def running_processes(folder: Path) -> list[int]:
    """The process ids in the file `pids`, at least one, whose processes still run after a second at most."""
    noted = [int(line) for line in (folder / "pids").read_text(encoding="utf-8").split()]
    assert noted
    for _ in range(100):
        alive = [pid for pid in noted if not _has_ended(pid)]
        if not alive:
            break
        time.sleep(0.01)
    return alive


def _has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    with suppress(OSError):  # where there is no /proc, what has ended is gone soon
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2].startswith("Z")
    return False


class McpHandler(BaseHTTPRequestHandler):
    """Answers as a streamable-HTTP server that offers `echo`."""

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "id" not in request:
            self._answer(202, b"")
        else:
            response = {"jsonrpc": "2.0", "id": request["id"], "result": _http_result(request)}
            self._answer(200, json.dumps(response).encode())

    def do_GET(self) -> None:
        self._answer(405, b"")

    def do_DELETE(self) -> None:
        self._answer(200, b"")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that it overrides
        pass

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Mcp-Session-Id", "1")
        self.end_headers()
        self.wfile.write(body)


def _http_result(request: dict[str, Any]) -> dict[str, Any]:
    if request["method"] == "initialize":
        info = {"name": "double", "version": "1"}
        return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
    if request["method"] == "tools/list":
        return {"tools": [ECHO]}
    if "huge" in request["params"]["arguments"]:
        return {"content": [{"type": "text", "text": "x" * 9_000_000}]}
    return {"content": [{"type": "text", "text": json.dumps(request["params"]["arguments"])}]}


@contextmanager
def http_server() -> Iterator[str]:
    """The address of a streamable-HTTP server that offers `echo`."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), McpHandler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/mcp"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
