"""Mistral: like OpenAI's chat completions, and strict about everything beside.

Bodies: avante.nvim#2347 and eca#231 (extra fields), crush#1590 (fields of a message), ironclaw#1241 (ids),
datapizza-ai#98 (order of roles).
"""

import re
from typing import Any, Final

from tests.providers.chat import ChatServer
from tests.providers.script import Request, State, Turn
from tests.providers.wire import JsonMap, RefusedError, names, pieces, sse

KNOWN: Final = names("""
    model messages temperature top_p max_tokens stream stop random_seed metadata response_format tools
    tool_choice presence_penalty frequency_penalty n prediction parallel_tool_calls prompt_mode safe_prompt
    reasoning_effort
""")
FIELDS: Final = {
    "system": {"role", "content"},
    "user": {"role", "content"},
    "assistant": {"role", "content", "tool_calls", "prefix"},
    "tool": {"role", "content", "tool_call_id", "name"},
}


class Mistral(ChatServer):
    family = "mistral"
    key = "loopbackMistralKey"
    model = "devstral-medium-latest"
    models = ("magistral-medium-latest",)
    calls_in_pieces = False

    def check_request(self, request: Request) -> None:
        self._check_fields(request.body)
        self._check_order(request.body["messages"])
        for message in request.body["messages"]:
            ids = [call.get("id") for call in message.get("tool_calls") or []]
            if message["role"] == "tool":
                ids.append(message.get("tool_call_id"))
            for name in ids:
                if not re.fullmatch("[a-zA-Z0-9]{9}", str(name)):
                    text = f"Tool call id was {name} but must be a-z, A-Z, 0-9, with a length of 9."
                    body = _error(text, "invalid_function_call", "3280") | {"raw_status_code": 400}
                    raise RefusedError(400, body, "tool call id")

    def _check_fields(self, body: JsonMap) -> None:
        extra: list[tuple[list[str | int], Any]] = []
        for name in sorted(body.keys() - KNOWN):
            if name == "stream_options":  # it is known by its name alone
                extra += [(["body", name, inner], value) for inner, value in body[name].items()]
            else:
                extra.append((["body", name], body[name]))
        for place, message in enumerate(body["messages"]):
            role = message["role"]
            unknown = sorted(message.keys() - FIELDS.get(role, set()))
            extra += [(["body", "messages", place, role, name], message[name]) for name in unknown]
        if extra:
            text = "Extra inputs are not permitted"
            detail = [{"type": "extra_forbidden", "loc": loc, "msg": text, "input": value} for loc, value in extra]
            document: JsonMap = {"object": "error", "message": {"detail": detail}, "type": "invalid_request_error"}
            raise RefusedError(422, document | {"param": None, "code": None}, "extra fields")

    def _check_order(self, messages: list[JsonMap]) -> None:
        calls = 0
        before = ""
        for message in messages:
            role = message["role"]
            if (before, role) in {
                ("tool", "user"),
                ("tool", "system"),
                ("user", "tool"),
                ("system", "tool"),
                ("", "tool"),
            }:
                text = f"Unexpected role '{role}' after role '{before}'"
                raise RefusedError(400, _error(text, "invalid_request_message_order", "3230"), "order of roles")
            if role == "tool":
                calls -= 1
            elif calls:
                _uneven()
            if role == "assistant":
                calls = len(message.get("tool_calls") or [])
            before = role
        if before == "assistant" and not messages[-1].get("prefix") and not calls:
            text = "Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant"
            raise RefusedError(400, _error(text, "invalid_request_message_order", "3230"), "order of roles")
        if calls:
            _uneven()

    def call_id(self, state: State, position: int) -> str:
        return state.letters(f"call {position}", 9)

    def message(self, turn: Turn) -> JsonMap:
        message = super().message(turn)
        if turn.reply.thinks and self._reasons(turn):
            text = [{"type": "text", "text": turn.reply.text}] if turn.reply.text else []
            message["content"] = [self._thought(turn, turn.state.thinking), *text]
        return message

    def thought_deltas(self, turn: Turn) -> list[JsonMap]:
        if not turn.reply.thinks or not self._reasons(turn):
            return []
        return [{"content": [self._thought(turn, piece)]} for piece in pieces(turn.state.thinking, 30)]

    def _reasons(self, turn: Turn) -> bool:
        return str(turn.request.body["model"]).startswith("magistral")

    def _thought(self, turn: Turn, text: str) -> JsonMap:
        self.hand_out(turn.state.thinking)
        return {"type": "thinking", "thinking": [{"type": "text", "text": text}]}

    def chunks(self, turn: Turn, choices: list[list[JsonMap]]) -> list[bytes]:
        frame = self.frame(turn) | {"object": "chat.completion.chunk"}
        *before, last = [frame | {"choices": one} for one in choices]
        last["choices"][0]["delta"] = {"content": ""}
        return [*map(sse, before), sse(last | {"usage": turn.usage})]

    def wrong_key(self, request: Request) -> JsonMap:  # noqa: ARG002 - Mistral says no more
        return {"detail": "Unauthorized"}

    def wrong_model(self, name: str) -> tuple[int, JsonMap]:
        return 400, _error(f"Invalid model: {name}", "invalid_model", "1500")

    def error(self, status: int, message: str) -> JsonMap:  # noqa: ARG002 - the body does not repeat the status
        return _error(message, "invalid_request_error", None)


def _uneven() -> None:
    text = "Not the same number of function calls and responses"
    raise RefusedError(400, _error(text, "invalid_request_message_order", "3230"), "tool messages")


def _error(message: str, kind: str, code: str | None) -> JsonMap:
    return {"object": "error", "message": message, "type": kind, "param": None, "code": code}
