"""Spec 1's self-healing extraction (section 2.3), made of the parts of the node `heal`."""

from collections.abc import Callable
from typing import Any

from mendgraph.nodes.heal.corrective_prompt import (
    DEFAULT_SELF_HEALING_CONFIG,
    HealingAttempt,
    HealingResult,
    SelfHealingConfig,
)
from mendgraph.nodes.heal.healing import correction_of, next_attempt
from mendgraph.nodes.language.text_protocol import extract_tool_invocations_with_errors
from mendgraph.nodes.records import Correction, ModelReply, StopCause


def attempt_extraction_with_healing(
    get_llm_response: Callable[[list[dict[str, Any]]], str | None],
    conversation: list[dict[str, Any]],
    known_tools: frozenset[str],
    config: SelfHealingConfig = DEFAULT_SELF_HEALING_CONFIG,
) -> HealingResult:
    """Call the model and extract calls, with corrective prompts until it succeeds or the retries are used up.

    A reply with any well-formed call, or a plain answer, is a success. `conversation` is not changed; exceptions of
    `get_llm_response` are raised. If it returns None, as a rate-limited caller does, the result is a failure.
    """
    messages = list(conversation)
    attempts: list[HealingAttempt] = []
    corrections: list[Correction] = []

    while True:
        response = get_llm_response(list(messages))
        if response is None:
            return HealingResult(False, [], "", tuple(attempts))

        invocations, errors = extract_tool_invocations_with_errors(response, known_tools)
        if invocations or not errors:
            return HealingResult(True, invocations, response, tuple(attempts))

        attempt = next_attempt(errors, response, corrections, attempts, config)
        if isinstance(attempt, StopCause):
            return HealingResult(False, [], response, tuple(attempts))

        attempts.append(attempt)
        corrections.append(correction_of(attempt, ModelReply(text=response)))
        messages.append(_message("assistant", response))
        messages.append(_message("user", attempt.corrective_prompt))


def _message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": text}]}
