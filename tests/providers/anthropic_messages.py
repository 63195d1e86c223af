"""Anthropic's Messages API, with extended thinking and a cache that bills what was marked.

The documentation of today merges messages of one role in a row. What is demanded here is what older endpoints want.
Bodies: haystack-core-integrations#2146 (thinking first), claude-code#63574 (thinking changed), claude-code#8210 and
#18947 (tool results), baibot#13 (roles), Anthropic.SDK#50 (breakpoints), inspect_ai#3721 (temperature of Opus 4.7),
llm.js#30 (budget). Those of `tools`, `max_tokens` and `temperature` with thinking are from memory.
"""

from itertools import pairwise
from typing import Any, Final, NoReturn

from tests.providers.openrouter import EXPECTED_THINKING
from tests.providers.provider_server import ProviderServer
from tests.providers.script import Reply, Request, State, Turn
from tests.providers.wire import JsonMap, RefusedError, arguments_of, dumps, names, pieces, sse, tokens

DOCS: Final = "Please consult our documentation at https://docs.claude.com/en/docs/build-with-claude/extended-thinking"
KNOWN: Final = names("""
    model messages max_tokens system temperature top_k top_p stop_sequences stream tools tool_choice thinking
    metadata service_tier container context_management mcp_servers output_config output_format cache_control
    inference_geo speed betas diagnostics
    user_profile_id workspace_id
""")


def anthropic_error(message: str, kind: str = "invalid_request_error") -> JsonMap:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_011CTWFpbkpKZzpBJezq7xnK"}


def refuse(message: str, why: str, status: int = 400, kind: str = "invalid_request_error") -> NoReturn:
    raise RefusedError(status, anthropic_error(message, kind), why)


def blocks_of(message: JsonMap, kind: str) -> list[JsonMap]:
    content = message["content"]
    return [block for block in content if block["type"] == kind] if isinstance(content, list) else []


def check_parameters(body: JsonMap) -> None:
    for name in sorted(body.keys() - KNOWN):
        refuse(f"{name}: Extra inputs are not permitted", "extra fields")
    for name in ("max_tokens", "messages"):
        if body.get(name) is None:
            refuse(f"{name}: Field required", name)
    if (blocks := dumps(body).count('"cache_control"')) > 4:
        refuse(f"A maximum of 4 blocks with cache_control may be provided. Found {blocks}.", "cache_control")
    if any(blocks_of(message, "tool_use") for message in body["messages"]) and not body.get("tools"):
        refuse("Requests which include `tool_use` or `tool_result` blocks must define tools", "tools")


def check_thinking(body: JsonMap) -> bool:
    """Whether the model thinks; if it does, the parameters that do not go with it."""
    thinking = body.get("thinking") or {}
    if thinking.get("type") not in ("enabled", "adaptive"):
        return False
    if body.get("temperature") not in (None, 1):
        refuse(f"`temperature` may only be set to 1 when thinking is enabled. {DOCS}", "temperature")
    if (body.get("tool_choice") or {}).get("type") in ("any", "tool"):
        refuse("Thinking may not be enabled when tool_choice forces tool use.", "tool_choice")
    if thinking["type"] == "enabled":
        budget = thinking.get("budget_tokens")
        if budget is None:
            refuse("thinking.enabled.budget_tokens: Field required", "budget_tokens")
        if budget < 1024:
            refuse("thinking.enabled.budget_tokens: Input should be greater than or equal to 1024", "budget_tokens")
        if body["max_tokens"] <= budget:
            anchor = "#max-tokens-and-context-window-size"
            refuse(f"`max_tokens` must be greater than `thinking.budget_tokens`. {DOCS}{anchor}", "max_tokens")
    return True


def check_messages(messages: list[JsonMap]) -> None:
    """Roles, empty content, and each tool use with its result."""
    if not messages:
        refuse("messages: at least one message is required", "messages")
    for place, message in enumerate(messages):
        if message["role"] not in ("user", "assistant", "system"):
            refuse(f'messages: Unexpected role "{message["role"]}".', "roles")
        if not message["content"] and (place < len(messages) - 1 or message["role"] == "user"):
            text = "all messages must have non-empty content except for the optional final assistant message"
            refuse(f"messages.{place}: {text}", "empty content")
        if any(not block["text"] for block in blocks_of(message, "text")):
            refuse("messages: text content blocks must be non-empty", "empty content")
    roles = [message["role"] for message in messages if message["role"] != "system"]
    if roles[:1] != ["user"]:
        refuse('messages: first message must use the "user" role', "roles")
    for before_role, role in pairwise(roles):
        if before_role == role:
            text = f'but found multiple "{role}" roles in a row'
            refuse(f'messages: roles must alternate between "user" and "assistant", {text}', "roles")
    nothing: JsonMap = {"role": "", "content": []}
    for place, (before, after) in enumerate(pairwise([nothing, *messages, nothing])):
        _check_results(place, before, after)


def _check_results(place: int, before: JsonMap, after: JsonMap) -> None:
    call_ids = [block["id"] for block in blocks_of(before, "tool_use")] if before["role"] == "assistant" else []
    first: list[Any] = after["content"] if isinstance(after["content"], list) else []
    results = [block.get("tool_use_id") for block in first[: len(call_ids)]]
    missing = [name for name in call_ids if name not in results]
    if missing:
        text = f"`tool_use` ids were found without `tool_result` blocks immediately after: {', '.join(missing)}. "
        text += "Each `tool_use` block must have a corresponding `tool_result` block in the next message."
        refuse(f"messages.{place - 1}: {text}", "tool_result is missing")
    for position, block in enumerate(first):
        if block["type"] == "tool_result" and block["tool_use_id"] not in call_ids:
            text = f"unexpected `tool_use_id` found in `tool_result` blocks: {block['tool_use_id']}. "
            text += "Each `tool_result` block must have a corresponding `tool_use` block in the previous message."
            refuse(f"messages.{place}.content.{position}: {text}", "tool_result without tool_use")


def refuse_first_block(place: int, block_type: str) -> NoReturn:
    refuse(EXPECTED_THINKING.format(place).replace("found `tool_use`", f"found `{block_type}`"), "thinking is missing")


def refuse_changed(place: int, position: int) -> NoReturn:
    text = "`thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified. "
    text += "These blocks must remain as they were in the original response."
    refuse(f"messages.{place}.content.{position}: {text}", "thinking was changed")


def refuse_signature(place: int, position: int) -> NoReturn:
    refuse(f"messages.{place}.content.{position}: Invalid `signature` in `thinking` block", "signature")


BEARER_SINCE = "2026-10-21"


class Anthropic(ProviderServer):
    family = "anthropic"
    key = "sk-ant-loopback-key"
    model = "claude-sonnet-4-6"
    root = ""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._cached_tokens = 0
        self._handed: dict[str, tuple[Reply, State, bool]] = {}

    def check(self, request: Request) -> None:
        body = request.body
        if request.path != "/v1/messages":
            refuse("Not found", "path", 404, "not_found_error")
        self._check_headers(request.headers)
        if body.get("model") != self.model:
            refuse(f"model: {body.get('model')}", "model", 404, "not_found_error")
        check_parameters(body)
        thinks = check_thinking(body)
        check_messages(body["messages"])
        self._check_thoughts(body["messages"], thinks=thinks)

    def _check_headers(self, headers: dict[str, str]) -> None:
        """The key is in `x-api-key`, or a bearer token as of the version that anthropic 2.11 speaks."""
        if "anthropic-version" not in headers:
            refuse("anthropic-version: header is required", "anthropic-version")
        bearer = headers.get("authorization") if headers["anthropic-version"] >= BEARER_SINCE else None
        if self.key not in (headers.get("x-api-key"), (bearer or "").removeprefix("Bearer ")):
            text = "invalid x-api-key" if bearer or "x-api-key" in headers else "x-api-key header is required"
            refuse(text, "key", 401, "authentication_error")

    def _check_thoughts(self, messages: list[JsonMap], *, thinks: bool) -> None:
        """In a running tool loop the last assistant message starts with its thinking; what is there is unchanged."""
        if not blocks_of(messages[-1], "tool_result"):
            return
        start = max((place for place, one in enumerate(messages) if _is_word(one)), default=-1)
        loop = [(place, one) for place, one in enumerate(messages) if place > start and one["role"] == "assistant"]
        for place, message in loop:
            self._check_blocks(message, place)
        if loop and thinks:
            place, message = loop[-1]
            handed = self._handed_of(message)
            kind = message["content"][0]["type"]
            if (handed is None or handed[2]) and kind not in ("thinking", "redacted_thinking"):
                refuse_first_block(place, kind)

    def _check_blocks(self, message: JsonMap, place: int) -> None:
        handed = self._handed_of(message)
        for position, block in enumerate(message["content"]):
            if block["type"] == "thinking":
                if block.get("signature") not in self.secrets_of_state:
                    refuse_signature(place, position)
                if handed is None or block != self._thinking(handed[1]):
                    refuse_changed(place, position)

    def _handed_of(self, message: JsonMap) -> tuple[Reply, State, bool] | None:
        uses = blocks_of(message, "tool_use")
        return self._handed.get(uses[0]["id"]) if uses else None

    def _thinking(self, state: State) -> JsonMap:
        return {"type": "thinking", "thinking": state.thinking, "signature": state.signature}

    def answered(self, body: JsonMap) -> int:
        return sum(message["role"] == "assistant" for message in body["messages"])

    def usage(self, request: Request, reply: Reply, state: State) -> JsonMap:
        size, marked = tokens(request.body), "cache_control" in dumps(request.body)
        plain, read, written = (0, self._cached_tokens, max(0, size - self._cached_tokens)) if marked else (size, 0, 0)
        self._cached_tokens = size if marked else self._cached_tokens
        output_tokens = tokens(reply.text + "".join(call.arguments for call in reply.calls))
        thought = tokens(state.thinking) if reply.thinks and self._does_think(request) else 0
        return {
            "input_tokens": plain,
            "cache_creation_input_tokens": written,
            "cache_read_input_tokens": read,
            "cache_creation": {"ephemeral_5m_input_tokens": written, "ephemeral_1h_input_tokens": 0},
            "output_tokens": output_tokens + thought,
            "service_tier": "standard",
        }

    def _does_think(self, request: Request) -> bool:
        return (request.body.get("thinking") or {}).get("type") in ("enabled", "adaptive")

    def content(self, turn: Turn) -> list[JsonMap]:
        thinks = turn.reply.thinks and self._does_think(turn.request)
        content: list[JsonMap] = []
        if thinks:
            self.hand_out(turn.state.thinking, turn.state.signature)
            content.append(self._thinking(turn.state))
        if turn.reply.text:
            content.append({"type": "text", "text": turn.reply.text})
        for position, call in enumerate(turn.reply.calls):
            name = f"toolu_01{turn.state.letters(f'call {position}', 22)}"
            self._handed[name] = (turn.reply, turn.state, thinks)
            content.append({"type": "tool_use", "id": name, "name": call.name, "input": call.arguments})
        return content

    def document(self, turn: Turn) -> JsonMap:
        content = self.content(turn)
        for block in content:
            if block["type"] == "tool_use":
                block["input"] = arguments_of(block["input"]) or {}
        return self._frame(turn) | {"content": content, "stop_reason": _stop_reason(turn.reply), "usage": turn.usage}

    def _frame(self, turn: Turn) -> JsonMap:
        frame = {"id": f"msg_01{turn.state.letters('reply', 22)}", "type": "message", "role": "assistant"}
        return frame | {"model": self.model, "content": [], "stop_reason": None, "stop_sequence": None}

    def events(self, turn: Turn) -> list[bytes]:
        start = self._frame(turn) | {"usage": turn.usage | {"output_tokens": 1}}
        documents: list[JsonMap] = [{"type": "message_start", "message": start}]
        for index, block in enumerate(self.content(turn)):
            documents.append({"type": "content_block_start", "index": index, "content_block": _emptied(block)})
            documents += [{"type": "ping"}] if index == 0 else []
            documents += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in _deltas(block)]
            documents.append({"type": "content_block_stop", "index": index})
        names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
        usage = {name: turn.usage[name] for name in names}
        end = {"stop_reason": _stop_reason(turn.reply), "stop_sequence": None}
        documents += [{"type": "message_delta", "delta": end, "usage": usage}, {"type": "message_stop"}]
        return [sse(document, document["type"]) for document in documents]

    def error(self, status: int, message: str) -> JsonMap:  # noqa: ARG002 - the body does not repeat the status
        return anthropic_error(message)


def _is_word(message: JsonMap) -> bool:
    """Whether the user speaks for himself: no result of a tool among it."""
    return message["role"] == "user" and not blocks_of(message, "tool_result")


def _stop_reason(reply: Reply) -> str:
    return "max_tokens" if reply.finish == "length" else "tool_use" if reply.calls else "end_turn"


def _emptied(block: JsonMap) -> JsonMap:
    empty = {"thinking": "", "signature": "", "text": "", "input": {}}
    return {name: empty.get(name, value) for name, value in block.items()}


def _deltas(block: JsonMap) -> list[JsonMap]:
    if block["type"] == "thinking":
        deltas: list[JsonMap] = [{"type": "thinking_delta", "thinking": part} for part in pieces(block["thinking"], 17)]
        return [*deltas, {"type": "signature_delta", "signature": block["signature"]}]
    if block["type"] == "text":
        return [{"type": "text_delta", "text": part} for part in pieces(block["text"])]
    return [{"type": "input_json_delta", "partial_json": part} for part in ["", *pieces(block["input"])]]
