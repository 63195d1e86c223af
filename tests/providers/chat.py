"""The chat completions that OpenAI, its likes and its imitators speak; each of them adds its own rules."""

from abc import abstractmethod
from typing import Any, ClassVar

from tests.providers.provider_server import ProviderServer
from tests.providers.script import Reply, Request, State, Turn
from tests.providers.wire import CREATED, JsonMap, RefusedError, dumps, pieces, sse, tokens


class ChatServer(ProviderServer):
    """POST .../chat/completions with a bearer token."""

    paths: ClassVar[tuple[str, ...]] = ("/v1/chat/completions",)
    models: ClassVar[tuple[str, ...]] = ()
    """Further models than `model`."""
    calls_in_pieces: ClassVar[bool] = True

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._handed: dict[str, tuple[Reply, State]] = {}

    @abstractmethod
    def check_request(self, request: Request) -> None:
        """The rules of the family, once the way in is found."""

    def check(self, request: Request) -> None:
        self.check_path(request)
        self.check_key(request)
        self.check_model(request)
        self.check_request(request)

    def check_path(self, request: Request) -> None:
        if request.path not in self.paths:
            raise RefusedError(404, self.error(404, f"Invalid URL (POST {request.path})"), "path")

    def check_key(self, request: Request) -> None:
        if request.headers.get("authorization") != f"Bearer {self.key}":
            raise RefusedError(401, self.wrong_key(request), "key")

    def check_model(self, request: Request) -> None:
        if request.body.get("model") not in (self.model, *self.models):
            status, body = self.wrong_model(str(request.body.get("model")))
            raise RefusedError(status, body, "model")

    def wrong_key(self, request: Request) -> JsonMap:
        return self.error(401, f"no such key: {request.headers.get('authorization', '')}")

    def wrong_model(self, name: str) -> tuple[int, JsonMap]:
        return 404, self.error(404, f"no such model: {name}")

    def answered(self, body: JsonMap) -> int:
        return sum(message["role"] == "assistant" for message in body["messages"])

    def handed(self, message: JsonMap) -> tuple[Reply, State] | None:
        """The reply that an assistant message brings back, known by its calls."""
        calls = message.get("tool_calls") or [{}]
        return self._handed.get(calls[0].get("id", ""))

    # What a reply looks like

    def call_id(self, state: State, position: int) -> str:
        return f"call_{state.letters(f'call {position}', 24)}"

    def thoughts(self, turn: Turn) -> JsonMap:  # noqa: ARG002 - families that show their thoughts look at the turn
        return {}

    def thought_deltas(self, turn: Turn) -> list[JsonMap]:
        return [{name: piece} for name, text in self.thoughts(turn).items() for piece in pieces(text)]

    def finish_reason(self, reply: Reply) -> str:
        return "length" if reply.finish == "length" else "tool_calls" if reply.calls else "stop"

    def usage(self, request: Request, reply: Reply, state: State) -> JsonMap:
        prompt = dumps([request.body.get("tools"), request.body["messages"]])
        reasoning = tokens(state.thinking) if reply.thinks else 0
        completion = tokens(reply.text + "".join(call.arguments for call in reply.calls)) + reasoning
        return {
            "prompt_tokens": tokens(prompt),
            "completion_tokens": completion,
            "total_tokens": tokens(prompt) + completion,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": reasoning},
        }

    def message(self, turn: Turn) -> JsonMap:
        message: JsonMap = {"role": "assistant", "content": turn.reply.text or (None if turn.reply.calls else "")}
        message |= self.thoughts(turn)
        if turn.reply.calls:
            message["tool_calls"] = [self.call(turn, position) for position in range(len(turn.reply.calls))]
        return message

    def call(self, turn: Turn, position: int) -> JsonMap:
        call = turn.reply.calls[position]
        name = self.call_id(turn.state, position)
        self._handed[name] = (turn.reply, turn.state)
        return {"id": name, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}

    def document(self, turn: Turn) -> JsonMap:
        choice = {"index": 0, "message": self.message(turn), "finish_reason": self.finish_reason(turn.reply)}
        return self.frame(turn) | {"object": "chat.completion", "choices": [choice], "usage": turn.usage}

    def events(self, turn: Turn) -> list[bytes]:
        deltas: list[JsonMap] = [{"role": "assistant", "content": ""}, *self.thought_deltas(turn)]
        deltas += [{"content": piece} for piece in pieces(turn.reply.text)]
        for position in range(len(turn.reply.calls)):
            deltas += self.call_deltas(turn, position)
        choices: list[list[JsonMap]] = [[{"index": 0, "delta": delta, "finish_reason": None}] for delta in deltas]
        choices.append([{"index": 0, "delta": {}, "finish_reason": self.finish_reason(turn.reply)}])
        return [*self.chunks(turn, choices), sse("[DONE]")]

    def chunks(self, turn: Turn, choices: list[list[JsonMap]]) -> list[bytes]:
        """Usage is told where it is asked for: in a last chunk that has no choices, and as null in all others."""
        include_usage = (turn.request.body.get("stream_options") or {}).get("include_usage") is True
        frame = self.frame(turn) | {"object": "chat.completion.chunk"} | ({"usage": None} if include_usage else {})
        last = [sse(frame | {"choices": [], "usage": turn.usage})] if include_usage else []
        return [sse(frame | {"choices": one}) for one in choices] + last

    def call_deltas(self, turn: Turn, position: int) -> list[JsonMap]:
        call: JsonMap = {"index": position} | self.call(turn, position)
        if not self.calls_in_pieces:
            return [{"tool_calls": [call]}]
        arguments = call["function"]["arguments"]
        call["function"] = call["function"] | {"arguments": ""}
        parts = [{"index": position, "function": {"arguments": piece}} for piece in pieces(arguments)]
        return [{"tool_calls": [part]} for part in [call, *parts]]

    def frame(self, turn: Turn) -> JsonMap:
        name = f"chatcmpl-{turn.state.letters('reply', 29)}"
        model = turn.request.body.get("model", self.model)
        return {"id": name, "created": CREATED, "model": model, "system_fingerprint": None}


def current_turn(messages: list[JsonMap]) -> list[tuple[int, JsonMap]]:
    """The messages, with their indexes, since the user's last message."""
    start = max((place for place, message in enumerate(messages) if message["role"] == "user"), default=-1)
    return list(enumerate(messages))[start + 1 :]
