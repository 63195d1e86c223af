"""The replies of a stored run as exchanges with an OpenAI-compatible endpoint."""

import json
import os
from collections import deque
from collections.abc import Iterator, Sequence

from mendgraph.graph.cassettes.cassette_file import Exchange, scrubbed
from mendgraph.nodes.execute_tools.secrets.redact import known_values
from mendgraph.nodes.records import FinishReason, JsonMap, ModelReply


class Reciter:
    """Answers each request with the next reply of a run, and keeps the `exchanges` that a recording would hold."""

    def __init__(self, model: str, replies: Sequence[ModelReply]) -> None:
        """`model` is the name in replies that have none."""
        self.exchanges: list[Exchange] = []
        self._model = model
        self._remaining = deque(replies)

    def take(self, method: str, path: str, body: bytes) -> Exchange | str:
        """Return the next exchange, or that the run had no further reply."""
        if not self._remaining:
            return "the run had no further reply"

        reply = streamed_reply(self._remaining.popleft(), self._model, len(self.exchanges) + 1)
        secrets = known_values(os.environ)
        exchange = Exchange(
            method=method,
            path=path,
            request=scrubbed(body, secrets),
            status=200,
            headers={"content-type": "text/event-stream"},
            response=scrubbed(reply, secrets),
        )
        self.exchanges.append(exchange)
        return exchange


def streamed_reply(reply: ModelReply, model: str, number: int) -> bytes:
    """Return a reply as server-sent events; `number` counts the exchanges from 1."""
    head = {"id": f"chatcmpl-{number}", "object": "chat.completion.chunk", "created": 1_700_000_000}
    events = []
    for chunk in _chunks(reply):
        document = {**head, "model": reply.model or model, **chunk}
        events.append(f"data: {json.dumps(document, ensure_ascii=False)}\n\n")

    return "".join([*events, "data: [DONE]\n\n"]).encode()


def _chunks(reply: ModelReply) -> Iterator[JsonMap]:
    yield _choice({"role": "assistant", "content": ""})
    for key, text in (("reasoning_content", reply.reasoning), ("content", reply.text), ("refusal", reply.refusal)):
        if text:
            yield _choice({key: text})

    for index, call in enumerate(reply.calls):
        function = {"name": call.tool, "arguments": call.arguments}
        yield _choice({"tool_calls": [{"index": index, "id": call.call_id, "type": "function", "function": function}]})

    finish_reason = reply.finish_reason
    if finish_reason is FinishReason.REFUSAL:
        finish_reason = FinishReason.STOP

    yield _choice({}, finish_reason.value)

    if reply.input_tokens or reply.output_tokens:
        usage = {"prompt_tokens": reply.input_tokens, "completion_tokens": reply.output_tokens}
        yield {"choices": [], "usage": {**usage, "total_tokens": reply.input_tokens + reply.output_tokens}}


def _choice(delta: JsonMap, finish_reason: str | None = None) -> JsonMap:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}
