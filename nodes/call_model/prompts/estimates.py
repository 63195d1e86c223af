"""How many tokens a request will have, told before it is sent: from what the endpoint counted for the last one."""

from collections.abc import Iterable
from math import ceil
from typing import Final

from mendgraph.nodes.language.token_estimates import BYTES_PER_TOKEN, TOKENS_PER_MESSAGE, estimate_tokens
from mendgraph.nodes.records import Record

PREAMBLE_TOKENS: Final = 1_000
"""The most that an endpoint is believed to add of its own, such as its instructions on tools.

Source: docs.anthropic.com, tool use: up to 530 tokens.
"""

MOST_WORDS_PER_TOKEN: Final = 2
MOST_BYTES_PER_TOKEN: Final = 8  # ordinary text and code have fewer; an estimate of a conversation takes no more
SHRINK_MARGIN: Final = 1.1  # what is left after something was taken out may be denser than the whole was
MOST_TOKENS: Final = 10**12  # more than any request has, and few enough that sums of it can be stored


class Gauge(Record):
    """What the endpoint counted for the last request that it reported usage for: UTF-8 bytes, messages, tokens."""

    size: int = 0
    messages: int = 0
    tokens: int = 0


def estimate_input(size: int, messages: int, gauge: Gauge) -> int:
    """Estimate the input tokens of a request of `size` UTF-8 bytes in `messages` messages.

    What the endpoint counted for the last request, and what is new since at one token for 3 bytes, or at the measured
    rate where that is denser; a request that became smaller is scaled by the measured rate, with a tenth more. Before
    the first usage: 3 bytes a token.

    The bound: a byte-level tokenizer makes at most one token of a byte, so where the last count was true, an estimate
    is too low by at most two thirds of the bytes that are new since (of all, before the first usage), and by what the
    endpoint adds of its own. A count that cannot be true is replaced by the nearest that can: at least one token for 8
    bytes, at most one for each byte with the template and `PREAMBLE_TOKENS`. So no lie makes an estimate leave these
    two limits, and the next honest usage mends it.
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
    """The input tokens that an endpoint reports for a request of `size` UTF-8 bytes, but no fewer than it can have.

    The fewest are half of the words in its `texts`, and at most one token for 8 bytes. Tokenizers split a text at white
    space before they join letters, so that a token has one word; the few that join across it come to two. A long run of
    one character, which may be one token, is one word or none. Of Chinese and Thai, which have no white space, the
    bound is low.
    Source: measured on gpt2, cl100k_base and o200k_base, 37 texts: the bound is at most half of the true count.
    """
    most = size // MOST_BYTES_PER_TOKEN
    if reported >= most:  # as nearly all are, so no text is looked at
        return reported

    words = sum(len(text.split()) for text in texts)
    return max(reported, min(words // MOST_WORDS_PER_TOKEN, most))


def countable(tokens: object) -> int:
    """What an endpoint reports as a number of tokens, as one that can be charged and stored; 0 where it is none."""
    if not isinstance(tokens, int | float) or not tokens > 0:  # neither a negative one nor NaN
        return 0
    return int(min(tokens, MOST_TOKENS))


def _possible(tokens: int, size: int, messages: int) -> int:
    most = size + TOKENS_PER_MESSAGE * messages + PREAMBLE_TOKENS
    return min(max(tokens, ceil(size / MOST_BYTES_PER_TOKEN)), most)
