"""Estimates of tokens from the length of a text alone."""

from math import ceil
from typing import Final

BYTES_PER_TOKEN: Final = 3
"""Rate of text that nobody has counted. English and code have 3 to 4 bytes a token, so this errs on the high side."""

TOKENS_PER_MESSAGE: Final = 4  # what a chat template puts around a message


def estimate_tokens(size: int, messages: int) -> int:
    """Estimate tokens from the length alone; `size` in UTF-8 bytes (or characters, where the text is ASCII)."""
    return ceil(size / BYTES_PER_TOKEN) + TOKENS_PER_MESSAGE * messages
