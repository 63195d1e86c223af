"""Ollama's own API: lines of JSON, arguments as objects, calls without ids, and no key.

Bodies: ollama#14795 (tools); the others are the texts of its routes.
"""

from typing import Any, ClassVar

from tests.providers.provider_server import ProviderServer
from tests.providers.script import Reply, Request, State, Turn
from tests.providers.wire import JsonMap, RefusedError, arguments_of, dumps, pieces, tokens


class Ollama(ProviderServer):
    family = "ollama"
    key = ""
    model = "qwen3:8b"
    model_without_tools: ClassVar[str] = "gemma3:4b"
    """It does not think either."""
    root = ""
    stream_type = "application/x-ndjson"

    def check(self, request: Request) -> None:
        body = request.body
        name = body.get("model")
        if request.path != "/api/chat":
            raise RefusedError(404, "404 page not found", "path")
        if name not in (self.model, self.model_without_tools):
            raise RefusedError(404, self.error(404, f"model '{name}' not found"), "model")
        if name == self.model_without_tools and body.get("tools"):
            text = f"registry.ollama.ai/library/{name} does not support tools"
            raise RefusedError(400, self.error(400, text), "tools")
        if name == self.model_without_tools and body.get("think"):
            raise RefusedError(400, self.error(400, f'"{name}" does not support thinking'), "thinking")
        for message in body["messages"]:
            self._check_message(message)

    def _check_message(self, message: JsonMap) -> None:
        where = ""
        if isinstance(message.get("content"), list):
            where = "array into Go struct field ChatRequest.messages.content of type string"
        for call in message.get("tool_calls") or []:
            if not isinstance(call["function"].get("arguments", {}), dict):
                where = "string into Go struct field ChatRequest.messages.tool_calls.function.arguments of type "
                where += "api.ToolCallFunctionArguments"
        if where:
            raise RefusedError(400, self.error(400, f"json: cannot unmarshal {where}"), "type of a field")

    def wants_stream(self, request: Request) -> bool:
        return request.body.get("stream") is not False

    def answered(self, body: JsonMap) -> int:
        return sum(message["role"] == "assistant" for message in body["messages"])

    def usage(self, request: Request, reply: Reply, state: State) -> JsonMap:
        output = reply.text + "".join(call.arguments for call in reply.calls)
        thought = tokens(state.thinking) if self._thinks(request, reply) else 0
        prompt = tokens([request.body.get("tools"), request.body["messages"]])
        times = {"total_duration": 9, "load_duration": 1, "prompt_eval_duration": 4, "eval_duration": 4}
        return times | {"prompt_eval_count": prompt, "eval_count": tokens(output) + thought}

    def document(self, turn: Turn) -> JsonMap:
        thinking = {"thinking": self._thought(turn)} if self._thinks(turn.request, turn.reply) else {}
        calls = {"tool_calls": self._calls(turn)} if turn.reply.calls else {}
        return self._line(turn, {"content": turn.reply.text} | thinking | calls) | self._end(turn)

    def events(self, turn: Turn) -> list[bytes]:
        messages: list[JsonMap] = []
        if self._thinks(turn.request, turn.reply):
            messages += [{"content": "", "thinking": piece} for piece in pieces(self._thought(turn), 30)]
        messages += [{"content": piece} for piece in pieces(turn.reply.text)]
        messages += [{"content": "", "tool_calls": [call]} for call in self._calls(turn)]
        lines = [self._line(turn, message) for message in messages]
        lines.append(self._line(turn, {"content": ""}) | self._end(turn))
        return [f"{dumps(line)}\n".encode() for line in lines]

    def error(self, status: int, message: str) -> JsonMap:  # noqa: ARG002 - Ollama says no more
        return {"error": message}

    def _thinks(self, request: Request, reply: Reply) -> bool:
        """A model that can think does so unless it is told not to."""
        return reply.thinks and request.body.get("think") is not False and request.body["model"] == self.model

    def _thought(self, turn: Turn) -> str:
        self.hand_out(turn.state.thinking)
        return turn.state.thinking

    def _calls(self, turn: Turn) -> list[JsonMap]:
        calls: list[JsonMap] = []
        for call in turn.reply.calls:
            arguments = arguments_of(call.arguments)
            if arguments is None:
                text = f"error parsing tool call: raw='{call.arguments}', err=unexpected end of JSON input"
                raise RefusedError(500, self.error(500, text), "arguments that the model got wrong")
            calls.append({"function": {"name": call.name, "arguments": arguments}})
        return calls

    def _line(self, turn: Turn, message: JsonMap) -> JsonMap:
        frame: dict[str, Any] = {"model": turn.request.body["model"], "created_at": "2023-11-14T22:13:20.123456789Z"}
        return frame | {"message": {"role": "assistant"} | message, "done": False}

    def _end(self, turn: Turn) -> JsonMap:
        return {"done": True, "done_reason": turn.reply.finish} | turn.usage
