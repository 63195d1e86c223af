"""Estimates of the input tokens of a request, from the endpoint's count for the last one."""

from collections.abc import Iterable
from math import ceil
from typing import Final

from mendgraph.nodes.language.token_estimates import BYTES_PER_TOKEN, TOKENS_PER_MESSAGE, estimate_tokens
from mendgraph.nodes.records import Record

PREAMBLE_TOKENS: Final = 1_000
"""The most tokens that an endpoint adds, such as instructions for tools.

Source: docs.anthropic.com, tool use: up to 530 tokens.
"""

MOST_WORDS_PER_TOKEN: Final = 2
MOST_BYTES_PER_TOKEN: Final = 8  # ordinary text and code have fewer
SHRINK_MARGIN: Final = 1.1  # the rest of a shortened request may be denser
MOST_TOKENS: Final = 10**12  # sums of it can still be stored


class Gauge(Record):
    """The last request with reported usage: UTF-8 bytes, messages, tokens."""

    size: int = 0
    messages: int = 0
    tokens: int = 0


def estimate_input(size: int, messages: int, gauge: Gauge) -> int:
    """Estimate the input tokens of a request of `size` UTF-8 bytes in `messages` messages.

    The estimate is the endpoint's count for the last request, plus one token for every 3 new bytes, or the measured
    rate if that is higher. A request that became smaller is scaled by the measured rate, plus 10 percent. Before the
    first usage it is 3 bytes for a token.

    A byte-level tokenizer makes at most one token of a byte, so the estimate is too low by at most two thirds of the
    new bytes. A count is limited to plausible values: at least one token for 8 bytes, at most one for each byte plus
    template and `PREAMBLE_TOKENS`. So a wrong count cannot move estimates beyond these limits.
    """
    if gauge.tokens <= 0 or gauge.size <= 0:
        return estimate_tokens(size, messages)

    bounds = _possible(gauge.tokens, gauge.size, gauge.messages)
    rate = min(1.0, bounds / gauge.size)
    if size < gauge.size:
        return _possible(ceil(bounds * size / gauge.size * SHRINK_MARGIN), size, messages)

    new = ceil((size - gauge.size) * max(rate, 1 / BYTES_PER_TOKEN))
    return bounds + new + TOKENS_PER_MESSAGE * max(0, messages - gauge.messages)


def at_least(reported: int, size: int, texts: Iterable[str]) -> int:
    """Return the reported input tokens for a request of `size` UTF-8 bytes, but no fewer than it can have.

    The minimum is half of the words in its `texts`, at most one token for 8 bytes: tokenizers split at white space
    first, and the few that join across it join two words. For Chinese and Thai, without white space, the bound is low.
    Source: measured on gpt2, cl100k_base and o200k_base, 37 texts: the bound is at most half of the true count.
    """
    most = size // MOST_BYTES_PER_TOKEN
    if reported >= most:  # the usual case, in which no text is counted
        return reported

    words = sum(len(text.split()) for text in texts)
    return max(reported, min(words // MOST_WORDS_PER_TOKEN, most))


def countable(tokens: object) -> int:
    """Return a reported number of tokens as a valid count; 0 if it is none."""
    if not isinstance(tokens, int | float) or not tokens > 0:  # negative numbers and NaN
        return 0
    return int(min(tokens, MOST_TOKENS))


def _possible(tokens: int, size: int, messages: int) -> int:
    most = size + TOKENS_PER_MESSAGE * messages + PREAMBLE_TOKENS
    return min(max(tokens, ceil(size / MOST_BYTES_PER_TOKEN)), most)
