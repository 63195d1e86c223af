"""A server on loopback that accepts any request.

It speaks as Anthropic, Ollama, Mistral, Gemini and OpenAI do, each on its own path. It answers a first request with a
call of `read_file`, and a request that ends with a result with a text.
"""

import json

from mendgraph.graph.cassettes.servers import LoopbackServer, Request, Response
from mendgraph.nodes.records import JsonMap

PATH = "a.py"
ANSWER = "It has 3 lines, naïve ones."
SSE, NDJSON = "text/event-stream", "application/x-ndjson"


class LenientProvidersServer(LoopbackServer):
    """The server, as a context manager; `asked` are the requests' paths, `headers` their headers in lower case."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []

    @property
    def url(self) -> str:
        return self.base_url.removesuffix("/v1")

    def answer(self, request: Request) -> Response:
        self.asked.append(request.path)
        self.headers.append(request.headers)
        kind, parts = answer_to(request.path.partition("?")[0], json.loads(request.body))
        return Response(200, {"content-type": kind, "set-cookie": "who=asked"}, b"".join(parts))


def answer_to(path: str, body: JsonMap) -> tuple[str, list[bytes]]:
    last = body["contents" if "contents" in body else "messages"][-1]
    has_result = "tool_result" in str(last) or "functionResponse" in str(last) or last.get("role") == "tool"
    if path.endswith("/messages"):
        return SSE, [
            f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in _anthropic(has_result)
        ]
    if path.endswith("/api/chat"):
        return NDJSON, [f"{json.dumps(line)}\n".encode() for line in _ollama(has_result)]
    if "streamGenerateContent" in path:
        return SSE, [_event(_gemini(has_result))]
    return SSE, [*map(_event, _openai(has_result)), b"data: [DONE]\n\n"]


def _event(document: JsonMap) -> bytes:
    return f"data: {json.dumps(document, ensure_ascii=False)}\n\n".encode()


def _anthropic(has_result: bool) -> list[JsonMap]:
    head = {"id": "m1", "type": "message", "role": "assistant", "model": "m", "content": []}
    start = {**head, "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 7, "output_tokens": 1}}
    call = {"type": "tool_use", "id": "toolu_1", "name": "read_file", "input": {}}
    delta = (
        {"type": "text_delta", "text": ANSWER}
        if has_result
        else {"type": "input_json_delta", "partial_json": json.dumps({"path": PATH})}
    )
    end = {"stop_reason": "end_turn" if has_result else "tool_use", "stop_sequence": None}
    return [
        {"type": "message_start", "message": start},
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "text", "text": ""} if has_result else call,
        },
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": end, "usage": {"output_tokens": 5}},
        {"type": "message_stop"},
    ]


def _ollama(has_result: bool) -> list[JsonMap]:
    call = {"function": {"name": "read_file", "arguments": {"path": PATH}}}
    message = {"content": ANSWER} if has_result else {"content": "", "tool_calls": [call]}
    head = {"model": "m", "created_at": "2026-01-01T00:00:00Z"}
    counts = {"prompt_eval_count": 7, "eval_count": 5, "total_duration": 1}
    return [
        {**head, "message": {"role": "assistant", **message}, "done": False},
        {**head, "message": {"role": "assistant", "content": ""}, "done": True, "done_reason": "stop", **counts},
    ]


def _gemini(has_result: bool) -> JsonMap:
    part = {"text": ANSWER} if has_result else {"functionCall": {"name": "read_file", "args": {"path": PATH}}}
    candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
    usage = {"promptTokenCount": 7, "candidatesTokenCount": 5, "totalTokenCount": 12}
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "m"}


def _openai(has_result: bool) -> list[JsonMap]:
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    function = {"name": "read_file", "arguments": json.dumps({"path": PATH})}
    call = {"id": "abcdef123", "type": "function", "index": 0, "function": function}
    delta = {"role": "assistant", **({"content": ANSWER} if has_result else {"content": "", "tool_calls": [call]})}
    return [
        {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop" if has_result else "tool_calls"}]},
    ]
