"""OpenAI's Responses API: a reply is a list of items, and what belongs together has to come back together.

Bodies: agency-swarm#367 and continue#11994 (reasoning is missing), vercel/ai#7099 (nothing follows), codex#8145
(encrypted content), GhidrAssist#78 and cline#9288 (tool outputs). OpenAI looks for a call's reasoning only where the
call brings its `id`; this server knows it by its `call_id` as well.
"""

from typing import Any, ClassVar, Final, NoReturn

from tests.providers.openai_rules import openai_error, wrong_openai_key
from tests.providers.provider_server import ProviderServer
from tests.providers.script import Reply, Request, State, Turn
from tests.providers.wire import CREATED, JsonMap, RefusedError, dumps, names, pieces, sse, tokens

KNOWN: Final = names("""
    background context_management conversation include input instructions max_output_tokens max_tool_calls
    metadata model parallel_tool_calls previous_response_id prompt prompt_cache_key prompt_cache_retention
    reasoning safety_identifier service_tier store stream stream_options temperature text tool_choice tools
    top_logprobs top_p truncation user
""")
OWN: Final = ("reasoning", "function_call", "message")


class OpenAIResponses(ProviderServer):
    family = "openai_responses"
    key = "sk-proj-loopback-responses"
    model = "gpt-5-mini"
    path: ClassVar[str] = "/v1/responses"

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._reasons: dict[str, str] = {}
        """The reasoning item before each item, by the ids of items and calls."""
        self._unstored: set[str] = set()

    def check(self, request: Request) -> None:
        body = request.body
        if request.path != self.path:
            raise RefusedError(404, openai_error(f"Invalid URL (POST {request.path})"), "path")
        if request.headers.get("authorization") != f"Bearer {self.key}":
            raise RefusedError(401, wrong_openai_key(request.headers.get("authorization", "")), "key")
        if body.get("model") != self.model:
            text = f"The requested model '{body.get('model')}' does not exist."
            _refuse(text, "model", "model_not_found")
        for name in sorted(body.keys() - KNOWN):
            _refuse(f"Unknown parameter: '{name}'.", name, "unknown_parameter")
        for name in ("temperature", "top_p"):
            if body.get(name) not in (None, 1):
                _refuse(f"Unsupported parameter: '{name}' is not supported with this model.", name, None)
        items = self.items(body)
        self._check_pairs(items)
        self._check_outputs(items)

    def items(self, body: JsonMap) -> list[JsonMap]:
        content = body["input"]
        return [{"role": "user", "content": content}] if isinstance(content, str) else list(content)

    def _check_pairs(self, items: list[JsonMap]) -> None:
        """Reasoning stands right before what it led to, and is what it was."""
        ids: list[str] = []
        for place, item in enumerate(items):
            if item.get("type") == "reasoning":
                self._check_reasoning(item)
                ids.append(item.get("id", ""))
                after = items[place + 1] if place + 1 < len(items) else {}
                if after.get("type") != "function_call" and after.get("role") != "assistant":
                    text = (
                        f"Item '{item.get('id')}' of type 'reasoning' was provided without its required following item."
                    )
                    _refuse(text, "input", None)
            elif item.get("type") == "function_call" or item.get("role") == "assistant":
                name = item.get("id") or item.get("call_id", "")
                reason = self._reasons.get(name)
                if reason is not None and reason not in ids:
                    kind = item.get("type", "message")
                    item_id = item.get("id") or f"fc_{name.removeprefix('call_')}"
                    text = f"Item '{item_id}' of type '{kind}' was provided without its required 'reasoning' item:"
                    _refuse(f"{text} '{reason}'.", "input", None)
            else:
                ids = []

    def _check_reasoning(self, item: JsonMap) -> None:
        name = item.get("id", "")
        content = item.get("encrypted_content")
        if content is None:
            if name not in self._reasons.values() or name in self._unstored:
                text = (
                    f"Item with id '{name}' not found. Items are not persisted when `store` is set to false. Try again "
                )
                text += "with `store` set to true, or remove this item from your input."
                _refuse(text, "input", None, 404)
        elif content not in self.secrets_of_state or name not in self._reasons.values():
            text = (
                f"The encrypted content for item {name} could not be verified. Reason: Encrypted content could not be "
            )
            _refuse(f"{text}decrypted or parsed.", None, "invalid_encrypted_content")

    def _check_outputs(self, items: list[JsonMap]) -> None:
        calls = [item["call_id"] for item in items if item.get("type") == "function_call"]
        outputs = [item["call_id"] for item in items if item.get("type") == "function_call_output"]
        for name in outputs:
            if name not in calls:
                _refuse(f"No tool call found for function call output with call_id {name}.", "input", None)
        for name in calls:
            if name not in outputs:
                _refuse(f"No tool output found for function call {name}.", "input", None)

    def answered(self, body: JsonMap) -> int:
        """Items of the model's own that stand together are one turn."""
        outputs = [item.get("type") in OWN[:2] or item.get("role") == "assistant" for item in self.items(body)]
        return sum(mine and not before for before, mine in zip([False, *outputs], outputs, strict=False))

    def usage(self, request: Request, reply: Reply, state: State) -> JsonMap:
        prompt = dumps([request.body.get("instructions"), request.body.get("tools"), self.items(request.body)])
        thought = tokens(state.thinking) if reply.thinks else 0
        output_tokens = tokens(reply.text + "".join(call.arguments for call in reply.calls)) + thought
        return {
            "input_tokens": tokens(prompt),
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": output_tokens,
            "output_tokens_details": {"reasoning_tokens": thought},
            "total_tokens": tokens(prompt) + output_tokens,
        }

    def output(self, turn: Turn) -> list[JsonMap]:
        state, body = turn.state, turn.request.body
        items: list[JsonMap] = []
        reason = f"rs_{state.letters('reasoning', 48)}"
        if turn.reply.thinks:
            wants_summary = (body.get("reasoning") or {}).get("summary")
            summary = [{"type": "summary_text", "text": state.thinking}] if wants_summary else []
            items.append({"id": reason, "type": "reasoning", "summary": summary})
            if "reasoning.encrypted_content" in (body.get("include") or []):
                items[0]["encrypted_content"] = state.signature
                self.hand_out(state.signature)
            if body.get("store") is False:
                self._unstored.add(reason)
        if turn.reply.text:
            content = [{"type": "output_text", "text": turn.reply.text, "annotations": [], "logprobs": []}]
            name = f"msg_{state.letters('message', 48)}"
            items.append(
                {"id": name, "type": "message", "role": "assistant", "status": "completed", "content": content}
            )
        for position, call in enumerate(turn.reply.calls):
            letters = state.letters(f"call {position}", 24)
            item = {"id": f"fc_{letters}", "type": "function_call", "status": "completed", "call_id": f"call_{letters}"}
            items.append(item | {"name": call.name, "arguments": call.arguments})
        if turn.reply.thinks:
            names = [item[field] for item in items[1:] for field in ("id", "call_id") if field in item]
            self._reasons |= dict.fromkeys(names, reason)
        return items

    def document(self, turn: Turn) -> JsonMap:
        return self._response(turn, self.output(turn))

    def events(self, turn: Turn) -> list[bytes]:
        items = self.output(turn)
        empty: JsonMap = {"status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
        response = self._response(turn, items)
        return response_events(response | empty, items, response)

    def _response(self, turn: Turn, items: list[JsonMap]) -> JsonMap:
        body = turn.request.body
        name = f"resp_{turn.state.letters('reply', 48)}"
        cut = turn.reply.finish == "length"
        return {
            "id": name,
            "object": "response",
            "created_at": CREATED,
            "status": "incomplete" if cut else "completed",
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "instructions": body.get("instructions"),
            "max_output_tokens": body.get("max_output_tokens"),
            "metadata": {},
            "model": self.model,
            "output": items,
            "parallel_tool_calls": True,
            "previous_response_id": body.get("previous_response_id"),
            "reasoning": body.get("reasoning") or {"effort": "medium", "summary": None},
            "store": body.get("store", True),
            "temperature": 1.0,
            "text": {"format": {"type": "text"}},
            "tool_choice": body.get("tool_choice", "auto"),
            "tools": body.get("tools") or [],
            "top_p": 1.0,
            "truncation": "disabled",
            "usage": turn.usage,
        }

    def error(self, status: int, message: str) -> JsonMap:  # noqa: ARG002 - the body does not repeat the status
        return openai_error(message)


def _refuse(message: str, param: str | None, code: str | None, status: int = 400) -> NoReturn:
    raise RefusedError(status, openai_error(message, param, code), param or code or message)


def response_events(initial: JsonMap, items: list[JsonMap], final: JsonMap) -> list[bytes]:
    events: list[JsonMap] = [{"type": f"response.{name}", "response": initial} for name in ("created", "in_progress")]
    for index, item in enumerate(items):
        place: JsonMap = {"item_id": item["id"], "output_index": index}
        opened, inner = _OPENED[item["type"]](place, item)
        events.append({"type": "response.output_item.added", "output_index": index, "item": opened})
        events += inner
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    events.append({"type": f"response.{final['status']}", "response": final})
    return [sse(event | {"sequence_number": number}, event["type"]) for number, event in enumerate(events)]


def _reasoning(place: JsonMap, item: JsonMap) -> tuple[JsonMap, list[JsonMap]]:
    events: list[JsonMap] = []
    for index, part in enumerate(item["summary"]):
        position = place | {"summary_index": index}
        name = "response.reasoning_summary"
        events.append(position | {"type": f"{name}_part.added", "part": part | {"text": ""}})
        events += [position | {"type": f"{name}_text.delta", "delta": piece} for piece in pieces(part["text"], 17)]
        events.append(position | {"type": f"{name}_text.done", "text": part["text"]})
        events.append(position | {"type": f"{name}_part.done", "part": part})
    return item | {"summary": []}, events


def _message(place: JsonMap, item: JsonMap) -> tuple[JsonMap, list[JsonMap]]:
    position = place | {"content_index": 0}
    part = item["content"][0]
    events = [position | {"type": "response.content_part.added", "part": part | {"text": ""}}]
    events += [
        position | {"type": "response.output_text.delta", "delta": piece, "logprobs": []}
        for piece in pieces(part["text"])
    ]
    events.append(position | {"type": "response.output_text.done", "text": part["text"], "logprobs": []})
    events.append(position | {"type": "response.content_part.done", "part": part})
    return item | {"status": "in_progress", "content": []}, events


def _function_call(place: JsonMap, item: JsonMap) -> tuple[JsonMap, list[JsonMap]]:
    name = "response.function_call_arguments"
    events = [place | {"type": f"{name}.delta", "delta": piece} for piece in pieces(item["arguments"])]
    events.append(place | {"type": f"{name}.done", "arguments": item["arguments"], "name": item["name"]})
    return item | {"status": "in_progress", "arguments": ""}, events


_OPENED = {"reasoning": _reasoning, "message": _message, "function_call": _function_call}
