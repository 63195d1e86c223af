"""What Anthropic's Messages API refuses, in its own words.

Bodies: haystack-core-integrations#2146 (thinking first), claude-code#63574 (thinking changed), claude-code#8210 and
#18947 (tool results), baibot#13 (roles), Anthropic.SDK#50 (breakpoints), inspect_ai#3721 (temperature of Opus 4.7),
llm.js#30 (budget). Those of `tools`, `max_tokens` and `temperature` with thinking are from memory.
"""

from itertools import pairwise
from typing import Any, Final, NoReturn

from mendgraph.nodes.records import JsonMap
from tests.providers.openrouter import EXPECTED_THINKING
from tests.providers.wire import RefusedError, dumps, names

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
    if (found := dumps(body).count('"cache_control"')) > 4:
        refuse(f"A maximum of 4 blocks with cache_control may be provided. Found {found}.", "cache_control")
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
    used = [block["id"] for block in blocks_of(before, "tool_use")] if before["role"] == "assistant" else []
    first: list[Any] = after["content"] if isinstance(after["content"], list) else []
    results = [block.get("tool_use_id") for block in first[: len(used)]]
    missing = [name for name in used if name not in results]
    if missing:
        text = f"`tool_use` ids were found without `tool_result` blocks immediately after: {', '.join(missing)}. "
        text += "Each `tool_use` block must have a corresponding `tool_result` block in the next message."
        refuse(f"messages.{place - 1}: {text}", "tool_result is missing")
    for position, block in enumerate(first):
        if block["type"] == "tool_result" and block["tool_use_id"] not in used:
            text = f"unexpected `tool_use_id` found in `tool_result` blocks: {block['tool_use_id']}. "
            text += "Each `tool_result` block must have a corresponding `tool_use` block in the previous message."
            refuse(f"messages.{place}.content.{position}: {text}", "tool_result without tool_use")


def refuse_first_block(place: int, found: str) -> NoReturn:
    refuse(EXPECTED_THINKING.format(place).replace("found `tool_use`", f"found `{found}`"), "thinking is missing")


def refuse_changed(place: int, position: int) -> NoReturn:
    text = "`thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified. "
    text += "These blocks must remain as they were in the original response."
    refuse(f"messages.{place}.content.{position}: {text}", "thinking was changed")


def refuse_signature(place: int, position: int) -> NoReturn:
    refuse(f"messages.{place}.content.{position}: Invalid `signature` in `thinking` block", "signature")
