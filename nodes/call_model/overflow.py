"""The size of the window that an endpoint names when it refuses a conversation as too long.

Source: error texts of OpenAI, OpenRouter, vLLM, llama.cpp, LM Studio, TGI, Anthropic, Gemini, xAI, Copilot, Cohere,
Qwen, Mistral.
"""

import re
from itertools import chain

_NUMBER = r"(?<!\d)(\d[\d,_]{0,15}+)(?!\d)"
_WORDS = r"(?:(?!exceed|request)[^\d.]){0,40}?"
"""What may stand before the number: nothing that would make it the size of what was sent."""

_PHRASES = tuple(
    re.compile(phrase, re.IGNORECASE)
    for phrase in (
        rf"n_ctx\w{{0,40}}{_WORDS}{_NUMBER}",
        rf"context[ _](?:length|size|window){_WORDS}{_NUMBER}",
        rf"{_NUMBER} maximum context",
        rf"\+ *\d+ *> *{_NUMBER}",
        rf"input length should be \[\d+, *{_NUMBER}\]",
        rf"limit for this model is {_NUMBER}",
        rf"maximum{_WORDS}{_NUMBER}",
        rf"tokens? *> *{_NUMBER}",
        rf"max[ _](?:model|context|seq|prompt|input|total){_WORDS}{_NUMBER}",
        rf"(?:limit|cannot exceed|must (?:be|have) (?:<=|at most|less than))(?: of| is|:)? *{_NUMBER}",
    )
)
"""The first that is found counts: those that say most clearly that a number is the window come first."""

SMALLEST, LARGEST = 256, 100_000_000
"""A number outside of these is no window."""


def overflow_window(message: str) -> int | None:
    """The window in tokens that an error text names, or None."""
    found = chain.from_iterable(phrase.findall(message) for phrase in _PHRASES)
    numbers = (int(re.sub(r"\D", "", number)) for number in found)
    return next((number for number in numbers if SMALLEST <= number <= LARGEST), None)
