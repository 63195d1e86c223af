"""Endpoints of three providers on loopback that keep their connections open, as hosted ones do."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Final

from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from mendgraph.nodes.records import JsonMap

ANSWER: Final = "It assigns x."
PROVIDERS: Final = ("openai", "ollama", "anthropic")


class _Endpoint(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1  # type: ignore[attr-defined]

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.requests.append(self.client_address)  # type: ignore[attr-defined]
        kind, body = _reply(self.path, request)
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _reply(path: str, request: JsonMap) -> tuple[str, bytes]:
    if path.endswith("/chat/completions"):
        return _openai_reply(request)
    return _anthropic_reply(request) if path.endswith("/messages") else _ollama_reply()


def _openai_reply(request: JsonMap) -> tuple[str, bytes]:
    usage = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}
    head = {"id": "1", "created": 1, "model": "m", "usage": usage}
    message = {"role": "assistant", "content": ANSWER}
    if not request.get("stream"):
        choice: JsonMap = {"index": 0, "message": message, "finish_reason": "stop"}
        return "application/json", json.dumps({**head, "object": "chat.completion", "choices": [choice]}).encode()
    choice = {"index": 0, "delta": message, "finish_reason": "stop"}
    chunk = json.dumps({**head, "object": "chat.completion.chunk", "choices": [choice]})
    return "text/event-stream", f"data: {chunk}\n\ndata: [DONE]\n\n".encode()


def _ollama_reply() -> tuple[str, bytes]:
    message = {"role": "assistant", "content": ANSWER}
    counts = {"prompt_eval_count": 3, "eval_count": 2}
    line = {"model": "m", "created_at": "2025-01-01T00:00:00Z", "message": message, "done": True, **counts}
    return "application/x-ndjson", (json.dumps({**line, "done_reason": "stop"}) + "\n").encode()


def _anthropic_reply(request: JsonMap) -> tuple[str, bytes]:
    block, usage = {"type": "text", "text": ANSWER}, {"input_tokens": 5, "output_tokens": 2}
    message: JsonMap = {"id": "m", "type": "message", "role": "assistant", "model": "m", "stop_sequence": None}
    if not request.get("stream"):
        whole = {**message, "content": [block], "stop_reason": "end_turn", "usage": usage}
        return "application/json", json.dumps(whole).encode()
    events: list[JsonMap] = [
        {"type": "message_start", "message": {**message, "content": [], "stop_reason": None, "usage": usage}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": ANSWER}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    ]
    lines = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    return "text/event-stream", lines.encode()


class ChatServer(ThreadingHTTPServer):
    """One endpoint for all three; it counts its connections, and keeps whence each request came."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Endpoint)
        self.connections = 0
        self.requests: list[Any] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def chat(self, provider: str, *, retries: int | None = None) -> BaseChatModel:
        """A new chat model of this provider."""
        more: JsonMap = {} if retries is None else {"max_retries": retries}
        if provider == "openai":
            return ChatOpenAI(model="m", base_url=f"{self.url}/v1", api_key=SecretStr("none"), **more)
        if provider == "ollama":
            return ChatOllama(model="m", base_url=self.url)
        return ChatAnthropic(model_name="m", base_url=self.url, api_key=SecretStr("none"), **more)

    def named(self, provider: str) -> JsonMap:
        """The context's fields that name a model of this provider."""
        if provider == "openai":
            return {"model": "m", "base_url": f"{self.url}/v1"}
        return {"model": f"{provider}:m", "base_url": self.url}


@contextmanager
def chat_server() -> Iterator[ChatServer]:
    """Serve until the block is left."""
    server = ChatServer()
    thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
