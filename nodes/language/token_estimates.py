"""Estimates of the number of tokens from the length of a text."""

from math import ceil
from typing import Final

BYTES_PER_TOKEN: Final = 3
"""English and code have 3 to 4 bytes a token, so this estimate is high."""

TOKENS_PER_MESSAGE: Final = 4  # what a chat template puts around a message


def estimate_tokens(size: int, messages: int) -> int:
    """Estimate the number of tokens; `size` in bytes of UTF-8 (or characters of ASCII)."""
    return ceil(size / BYTES_PER_TOKEN) + TOKENS_PER_MESSAGE * messages
