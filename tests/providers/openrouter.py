"""OpenRouter before a Claude: comments in the stream, and thoughts as `reasoning_details` that have to come back whole.

Bodies: routstr-core#554 (tools), nagobot#21 and aider-desk#513 (what the upstream says of a thinking block).
"""

from typing import Any, ClassVar

from tests.providers.chat import ChatServer
from tests.providers.openai_rules import check_tool_messages
from tests.providers.script import Reply, Request, State, Turn
from tests.providers.wire import JsonMap, RefusedError, dumps, pieces, sse

PROCESSING = b": OPENROUTER PROCESSING\n\n"
DETAIL_FORMAT = "anthropic-claude-v1"


class OpenRouter(ChatServer):
    family = "openrouter"
    key = "sk-or-v1-loopback"
    model = "anthropic/claude-sonnet-4.6"
    model_without_tools: ClassVar[str] = "meta-llama/llama-guard-4-12b"
    models = (model_without_tools,)
    root = "/api/v1"
    paths = ("/api/v1/chat/completions",)

    def check_request(self, request: Request) -> None:
        if request.body.get("tools") and request.body["model"] == self.model_without_tools:
            where = "https://openrouter.ai/docs/guides/routing/provider-selection"
            text = f"No endpoints found that support tool use. To learn more about provider routing, visit: {where}"
            raise RefusedError(404, self.error(404, text), "tools")
        check_tool_messages(request.body["messages"])
        for place, message in enumerate(request.body["messages"]):
            if message["role"] == "assistant" and message.get("tool_calls"):
                self._check_details(message, place)

    def _check_details(self, message: JsonMap, place: int) -> None:
        handed = self.handed(message)
        if handed is None or not handed[0].thinks:
            return
        details = message.get("reasoning_details")
        if not details:
            text = EXPECTED_THINKING.format(place)
            raise RefusedError(400, self._upstream(text), "reasoning_details are missing")
        if [_bare(detail) for detail in details] != [_bare(detail) for detail in self._details(handed[1])]:
            text = f"messages.{place}.content.0: Invalid `signature` in `thinking` block"
            raise RefusedError(400, self._upstream(text), "reasoning_details are not what they were")

    def _details(self, state: State) -> list[JsonMap]:
        text: JsonMap = {"type": "reasoning.text", "text": state.thinking, "signature": state.signature, "id": None}
        data: JsonMap = {"type": "reasoning.encrypted", "data": f"{state.letters('encrypted', 90)}/+=="}
        data["id"] = f"enc-{state.letters('detail', 12)}"
        return [detail | {"format": DETAIL_FORMAT, "index": place} for place, detail in enumerate([text, data])]

    def _upstream(self, text: str) -> JsonMap:
        raw = dumps({"type": "error", "error": {"type": "invalid_request_error", "message": text}})
        metadata = {"raw": raw, "provider_name": "Anthropic", "is_byok": False}
        error = {"message": "Provider returned error", "code": 400, "metadata": metadata}
        return {"error": error, "user_id": "user_loopback"}

    def thoughts(self, turn: Turn) -> JsonMap:
        if not turn.reply.thinks:
            return {}
        details = self._details(turn.state)
        self.hand_out(turn.state.thinking, turn.state.signature, details[1]["data"])
        return {"reasoning": turn.state.thinking, "reasoning_details": details}

    def thought_deltas(self, turn: Turn) -> list[JsonMap]:
        """The text in pieces, then its signature alone, then the encrypted block; all name their block's index."""
        if not (thoughts := self.thoughts(turn)):
            return []
        text, data = thoughts["reasoning_details"]
        frame: JsonMap = {"type": "reasoning.text", "format": DETAIL_FORMAT, "index": 0}
        parts: list[tuple[str | None, JsonMap]] = [(part, frame | {"text": part}) for part in pieces(text["text"], 17)]
        parts += [(None, frame | {"signature": text["signature"]}), (None, data)]
        return [{"reasoning": words, "reasoning_details": [detail]} for words, detail in parts]

    def usage(self, request: Request, reply: Reply, state: State) -> JsonMap:
        usage = super().usage(request, reply, state)
        return usage | {"cost": usage["prompt_tokens"] * 3e-6 + usage["completion_tokens"] * 15e-6, "is_byok": False}

    def chunks(self, turn: Turn, choices: list[list[JsonMap]]) -> list[bytes]:
        """Usage comes without being asked for, and comments come in between."""
        frame = self.frame(turn) | {"object": "chat.completion.chunk", "provider": "Anthropic"}
        chunks = [sse(frame | {"choices": one}) for one in choices]
        return [
            PROCESSING,
            PROCESSING,
            *chunks[:1],
            PROCESSING,
            *chunks[1:],
            sse(frame | {"choices": [], "usage": turn.usage}),
        ]

    def frame(self, turn: Turn) -> JsonMap:
        return super().frame(turn) | {"id": f"gen-1700000000-{turn.state.letters('reply', 20)}"}

    def wrong_key(self, request: Request) -> JsonMap:
        return self.error(
            401, "User not found." if request.headers.get("authorization") else "No auth credentials found"
        )

    def wrong_model(self, name: str) -> tuple[int, JsonMap]:
        return 400, self.error(400, f"{name} is not a valid model ID")

    def error(self, status: int, message: str) -> JsonMap:
        return {"error": {"message": message, "code": status}}


EXPECTED_THINKING = (
    "messages.{}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`. When `thinking` is "
    "enabled, a final `assistant` message must start with a thinking block (preceeding the lastmost set of "
    "`tool_use` and `tool_result` blocks). We recommend you include thinking blocks from previous turns. To avoid this "
    "requirement, disable `thinking`. Please consult our documentation at "
    "https://docs.claude.com/en/docs/build-with-claude/extended-thinking"
)


def _bare(detail: Any) -> JsonMap:
    """What counts of a block: null and absent are the same."""
    return {name: value for name, value in detail.items() if value is not None}
