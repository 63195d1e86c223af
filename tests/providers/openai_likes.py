"""DeepSeek in thinking mode, and a server of one's own that was started without a parser for tool calls.

Bodies: Newelle#404 (reasoning_content), langchain4j#3475 and vllm#30613 (tool choice).
"""

from tests.providers.chat import ChatServer, current_turn
from tests.providers.openai_rules import check_tool_messages, openai_error
from tests.providers.script import Reply, Request, State, Turn
from tests.providers.wire import JsonMap, RefusedError


class DeepSeek(ChatServer):
    family = "deepseek"
    key = "sk-loopback-deepseek"
    model = "deepseek-reasoner"
    models = ("deepseek-v4-pro", "deepseek-chat")
    paths = ("/v1/chat/completions", "/chat/completions")

    def check_request(self, request: Request) -> None:
        messages = request.body["messages"]
        check_tool_messages(messages)
        for place, message in current_turn(messages):
            if self._thinks(request) and message["role"] == "assistant" and message.get("tool_calls"):
                self._check_thoughts(message, place)

    def _check_thoughts(self, message: JsonMap, place: int) -> None:
        handed = self.handed(message)
        if handed is not None and not handed[0].thinks:
            return
        thoughts = message.get("reasoning_content")
        if not thoughts or (handed is not None and thoughts != handed[1].thinking):
            text = "The `reasoning_content` in the thinking mode must be passed back to the API."
            body = openai_error(text, code="invalid_request_error")
            raise RefusedError(400, body, f"reasoning_content of message {place}")

    def _thinks(self, request: Request) -> bool:
        thinking = (request.body.get("thinking") or {}).get("type")
        return thinking == "enabled" or (thinking is None and request.body["model"] != "deepseek-chat")

    def thoughts(self, turn: Turn) -> JsonMap:
        if not turn.reply.thinks or not self._thinks(turn.request):
            return {}
        self.hand_out(turn.state.thinking)
        return {"reasoning_content": turn.state.thinking}

    def usage(self, request: Request, reply: Reply, state: State) -> JsonMap:
        usage = super().usage(request, reply, state)
        hit = usage["prompt_tokens_details"]["cached_tokens"]
        return usage | {"prompt_cache_hit_tokens": hit, "prompt_cache_miss_tokens": usage["prompt_tokens"] - hit}

    def wrong_key(self, request: Request) -> JsonMap:
        key = request.headers.get("authorization", "").removeprefix("Bearer ")
        text = f"Authentication Fails, Your api key: ****{key[-4:]} is invalid"
        return openai_error(text, code="invalid_request_error", kind="authentication_error")

    def wrong_model(self, name: str) -> tuple[int, JsonMap]:  # noqa: ARG002 - DeepSeek does not repeat the name
        return 400, openai_error("Model Not Exist", code="invalid_request_error")

    def error(self, status: int, message: str) -> JsonMap:  # noqa: ARG002 - the body does not repeat the status
        return openai_error(message, code="invalid_request_error")


class NoTools(ChatServer):
    """vLLM without --enable-auto-tool-choice; it ignores parameters that it does not know."""

    family = "no_tools"
    key = "loopback-vllm"
    model = "Qwen/Qwen2.5-14B-Instruct"

    def check_request(self, request: Request) -> None:
        if request.body.get("tools") and request.body.get("tool_choice", "auto") == "auto":
            text = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
            raise RefusedError(400, self.error(400, text), "tools")

    def thoughts(self, turn: Turn) -> JsonMap:
        if turn.reply.thinks:
            self.hand_out(turn.state.thinking)
        return {"reasoning_content": turn.state.thinking} if turn.reply.thinks else {}

    def wrong_key(self, request: Request) -> JsonMap:  # noqa: ARG002 - vLLM says no more
        return {"error": "Unauthorized"}

    def wrong_model(self, name: str) -> tuple[int, JsonMap]:
        text = f"The model `{name}` does not exist."
        return 404, {"error": {"message": text, "type": "NotFoundError", "param": "model", "code": 404}}

    def error(self, status: int, message: str) -> JsonMap:
        return {"error": {"message": message, "type": "BadRequestError", "param": None, "code": status}}
