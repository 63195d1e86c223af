"""A request that breaks a rule gets its provider's status and words; without the change it gets through."""

from dataclasses import dataclass
from typing import Any

import pytest

from tests.providers import raw
from tests.providers.gemini import SKIP, Gemini
from tests.providers.raw import DROP, changed
from tests.providers.servers import FAMILIES, ProviderServer, say, use

MESSAGE = ("messages", 1)
EPHEMERAL = {"type": "ephemeral"}


@dataclass(frozen=True)
class Case:
    """One change to the second request of a conversation, and what it is answered."""

    family: str
    path: tuple[str | int, ...]
    value: Any
    status: int
    words: str


CHAT_CASES = [
    Case(
        "openai_gpt5",
        ("temperature",),
        0.0,
        400,
        "'temperature' does not support 0.0 with this model. Only the default",
    ),
    Case("openai_gpt5", ("max_tokens",), 9, 400, "Use 'max_completion_tokens' instead."),
    Case("openai_gpt5", ("stop",), ["x"], 400, "Unsupported parameter: 'stop' is not supported with this model."),
    Case("openai_gpt5", ("top_k",), 1, 400, "Unrecognized request argument supplied: top_k"),
    Case("openai_gpt5", ("stream_options",), {}, 400, "only allowed when 'stream' is enabled"),
    Case("openai_gpt5", ("model",), "gpt-6", 404, "model_not_found"),
    Case(
        "openai_gpt5", ("messages", 2), DROP, 400, "must be followed by tool messages responding to each 'tool_call_id'"
    ),
    Case(
        "openai_gpt5", (*MESSAGE, "tool_calls"), DROP, 400, "Invalid value for 'content': expected a string, got null."
    ),
    Case("openai_gpt5", MESSAGE, DROP, 400, "must be a response to a preceeding message with 'tool_calls'."),
    Case("openai_gpt5", ("messages", 2, "tool_call_id"), "x", 400, "not found in 'tool_calls' of previous message"),
    Case("azure", ("max_tokens",), 9, 400, "Use 'max_completion_tokens' instead."),
    Case("no_streaming", ("stream",), True, 400, "Your organization must be verified to stream this model."),
    Case("deepseek", (*MESSAGE, "reasoning_content"), DROP, 400, "must be passed back to the API."),
    Case("deepseek", (*MESSAGE, "reasoning_content"), "other", 400, "must be passed back to the API."),
    Case("deepseek", ("model",), "deepseek", 400, "Model Not Exist"),
    Case("openrouter", (*MESSAGE, "reasoning_details"), DROP, 400, "Expected `thinking` or `redacted_thinking`"),
    Case("openrouter", (*MESSAGE, "reasoning_details", 1), DROP, 400, "Invalid `signature` in `thinking` block"),
    Case("openrouter", (*MESSAGE, "reasoning_details", 0, "text"), "x", 400, "Provider returned error"),
    Case("openrouter", ("model",), "meta-llama/llama-guard-4-12b", 404, "No endpoints found that support tool use."),
    Case("openrouter", ("model",), "x/y", 400, "x/y is not a valid model ID"),
    Case(
        "mistral",
        ("stream_options",),
        {"include_usage": True},
        422,
        '"loc": ["body", "stream_options", "include_usage"]',
    ),
    Case("mistral", ("max_completion_tokens",), 9, 422, '"loc": ["body", "max_completion_tokens"]'),
    Case(
        "mistral",
        (*MESSAGE, "reasoning_content"),
        "x",
        422,
        '["body", "messages", 1, "assistant", "reasoning_content"]',
    ),
    Case(
        "mistral", (*MESSAGE, "tool_calls", 0, "id"), "call_1", 400, "Tool call id was call_1 but must be a-z, A-Z, 0-9"
    ),
    Case("mistral", ("messages", 2), {"role": "user", "content": "x"}, 400, "Not the same number of function calls"),
    Case("mistral", ("model",), "x", 400, "Invalid model: x"),
    Case("ollama", (*MESSAGE, "tool_calls", 0, "function", "arguments"), "{}", 400, "cannot unmarshal string"),
    Case("ollama", ("model",), "gemma3:4b", 400, "registry.ollama.ai/library/gemma3:4b does not support tools"),
    Case("ollama", ("model",), "x", 404, "model 'x' not found"),
]
BLOCKS = (*MESSAGE, "content")
OTHER_CASES = [
    Case("openai_responses", ("input", 1), DROP, 400, "was provided without its required 'reasoning' item: 'rs_"),
    Case(
        "openai_responses", ("input", 2), DROP, 400, "of type 'reasoning' was provided without its required following"
    ),
    Case("openai_responses", ("input", 3), DROP, 400, "No tool output found for function call call_"),
    Case("openai_responses", ("input", 1, "encrypted_content"), "x", 400, "invalid_encrypted_content"),
    Case(
        "openai_responses", ("input", 1, "encrypted_content"), DROP, 404, "Items are not persisted when `store` is set"
    ),
    Case("openai_responses", ("stop",), ["x"], 400, "Unknown parameter: 'stop'."),
    Case("openai_responses", ("temperature",), 0, 400, "Unsupported parameter: 'temperature'"),
    Case("openai_responses", ("previous_response_id",), "resp_x", 400, "previous_response_not_found"),
    Case("anthropic", (*BLOCKS, 0), DROP, 400, "Expected `thinking` or `redacted_thinking`, but found `tool_use`."),
    Case("anthropic", (*BLOCKS, 0, "thinking"), "x", 400, "blocks in the latest assistant message cannot be modified."),
    Case(
        "anthropic",
        (*BLOCKS, 0, "signature"),
        "x",
        400,
        "messages.1.content.0: Invalid `signature` in `thinking` block",
    ),
    Case("anthropic", ("temperature",), 0.5, 400, "`temperature` may only be set to 1 when thinking is enabled."),
    Case("anthropic", ("max_tokens",), 1024, 400, "`max_tokens` must be greater than `thinking.budget_tokens`."),
    Case("anthropic", ("max_tokens",), DROP, 400, "max_tokens: Field required"),
    Case("anthropic", ("tools",), DROP, 400, "must define tools"),
    Case("anthropic", ("stop",), ["x"], 400, "stop: Extra inputs are not permitted"),
    Case(
        "anthropic",
        ("messages", 2),
        DROP,
        400,
        "`tool_use` ids were found without `tool_result` blocks immediately after",
    ),
    Case("anthropic", ("messages", 2, "content", 0, "tool_use_id"), "x", 400, "ids were found without `tool_result`"),
    Case("anthropic", MESSAGE, DROP, 400, 'found multiple \\"user\\" roles in a row'),
    Case("anthropic", ("messages", 0), DROP, 400, 'first message must use the \\"user\\" role'),
    Case("anthropic", ("messages", 0, "content"), "", 400, "all messages must have non-empty content"),
    Case("anthropic", ("tool_choice",), {"type": "any"}, 400, "Thinking may not be enabled when tool_choice forces"),
    Case("anthropic", ("model",), "x", 404, "not_found_error"),
    Case(
        "gemini",
        ("contents", 1, "parts", 0, "thoughtSignature"),
        DROP,
        400,
        "Function call is missing a thought_signature",
    ),
    Case("gemini", ("contents", 1, "parts", 0, "thoughtSignature"), "AAAA", 400, "Corrupted thought signature."),
    Case("gemini", ("contents", 2, "parts", 0), {"text": "x"}, 400, "number of function response parts is equal"),
    Case("gemini", ("stop",), ["x"], 400, 'Unknown name \\"stop\\": Cannot find field.'),
]


def server_of(family: str) -> ProviderServer:
    return FAMILIES[family]([use(("read_file", '{"path": "a.py"}')), say("Done.")])


@pytest.mark.parametrize("case", CHAT_CASES + OTHER_CASES, ids=lambda case: f"{case.family}-{case.words[:40]}")
def test_a_rule(case: Case) -> None:
    with server_of(case.family) as server:
        body = raw.second(server)
        refused = raw.post(server, changed(body, case.path, case.value))
        assert (refused.status_code, case.words in refused.text) == (case.status, True), refused.text
        assert server.refusals[-1].status == case.status
        assert len(server.requests) == 1
        assert raw.post(server, body).status_code == 200, server.refusals[-1]


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - {"ollama"}))
def test_a_wrong_key(family: str) -> None:
    with server_of(family) as server:
        headers = {name: f"{value[:9]}x" for name, value in raw.headers_of(server).items()}
        refused = raw.post(server, raw.first(server), headers)
        assert refused.status_code == (400 if family == "gemini" else 401)
        assert server.refusals[0].why == "key"


def test_the_ways_into_azure() -> None:
    with server_of("azure") as server:
        body = raw.first(server)
        path = raw.path_of(server)
        bearer = raw.post(server, body, {"Authorization": f"Bearer {server.key}"})
        unversioned = raw.post(server, body, path=path.partition("?")[0])
        elsewhere = raw.post(server, body, path=path.replace(server.model, "theirs"))
        assert (bearer.status_code, "invalid subscription key" in bearer.text) == (401, True)
        assert unversioned.json() == {"error": {"code": "404", "message": "Resource not found"}}
        assert (elsewhere.status_code, elsewhere.json()["error"]["code"]) == (404, "DeploymentNotFound")


def test_vllm_without_a_parser_takes_tools_that_are_not_to_be_called() -> None:
    with FAMILIES["no_tools"]([say("Hello.")]) as server:
        body = raw.first(server) | {"tools": [{"type": "function", "function": raw.FUNCTION}]}
        text = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
        error = {"message": text, "type": "BadRequestError", "param": None, "code": 400}
        assert raw.post(server, body).json() == {"error": error}
        assert raw.post(server, body | {"tool_choice": "none"}).status_code == 200


def test_mistral_wants_an_answer_between_a_tool_and_a_user() -> None:
    with server_of("mistral") as server:
        body = raw.second(server)
        body["messages"].append({"role": "user", "content": "Go on."})
        refused = raw.post(server, body)
        assert (refused.status_code, refused.json()["code"]) == (400, "3230")
        assert refused.json()["message"] == "Unexpected role 'user' after role 'tool'"


def test_five_breakpoints_are_one_too_many() -> None:
    with server_of("anthropic") as server:
        body = raw.first(server)
        body["system"] = [{"type": "text", "text": "x", "cache_control": EPHEMERAL} for _ in range(4)]
        assert raw.post(server, body).status_code == 200
        refused = raw.post(server, body | {"cache_control": EPHEMERAL})
        text = "A maximum of 4 blocks with cache_control may be provided. Found 5."
        assert refused.json()["error"] == {"type": "invalid_request_error", "message": text}


def test_gemini_takes_what_skips_the_check_and_the_other_alphabet() -> None:
    with server_of("gemini") as server:
        assert isinstance(server, Gemini)
        body = raw.second(server)
        place = ("contents", 1, "parts", 0, "thoughtSignature")
        signature = server.secrets_of_state[0]
        other = changed(body, place, signature.replace("+", "-").replace("/", "_"))
        assert raw.post(server, other).status_code == 200
        assert server.returned(server.requests[-1]) == [signature]
        assert raw.post(server, changed(body, place, SKIP)).status_code == 200
        assert server.skipped == 1


def test_what_openai_stored_is_known_by_its_id() -> None:
    with server_of("openai_responses") as server:
        body = raw.first(server) | {"store": True}
        reply = raw.post(server, body).json()
        output = {"type": "function_call_output", "call_id": reply["output"][1]["call_id"], "output": "x"}
        after = body | {"previous_response_id": reply["id"], "input": [output]}
        assert raw.post(server, after).json()["output"][0]["content"][0]["text"] == "Done."
