"""What a program printed, as text for a model: its head and its tail where it is too much."""

from typing import Final

from mendgraph.nodes.execute_tools.processes.processes import Ends

LONGEST_LAST_WORDS: Final = 1_500
"""Characters of an output that an error message repeats."""


def output_text(ends: Ends) -> str:
    """The output as text; where bytes are left out, a line of its own says how many.

    Bytes that are no UTF-8 become U+FFFD, and NUL characters, which JSON and databases dislike, are dropped. A
    character that was cut in half is left out whole.
    """
    if not ends.left_out:
        return _decoded(ends.head + ends.tail)
    head = _decoded(_without_cut_end(ends.head))
    tail = _decoded(_without_cut_start(ends.tail))
    return f"{head}\n[... {ends.left_out} of {ends.size} bytes left out ...]\n{tail}"


def last_words(*outputs: Ends) -> str:
    """The ends of the outputs that have something to say, one below the other."""
    texts = (_decoded(_without_cut_start((ends.head if not ends.left_out else b"") + ends.tail)) for ends in outputs)
    return "\n".join(text.strip()[-LONGEST_LAST_WORDS:] for text in texts if text.strip())


def _decoded(data: bytes) -> str:
    return data.decode(errors="replace").replace("\0", "")


def _without_cut_end(data: bytes) -> bytes:
    """Without the first bytes of a character whose last ones are missing."""
    for length in range(1, min(4, len(data)) + 1):
        lead = data[-length]
        if lead & 0b1100_0000 != 0b1000_0000:
            return data[:-length] if _bytes_of_character(lead) > length else data
    return data


def _without_cut_start(data: bytes) -> bytes:
    """Without the last bytes of a character whose first ones are missing."""
    torn = next((each for each, byte in enumerate(data[:4]) if byte & 0b1100_0000 != 0b1000_0000), min(4, len(data)))
    return data[torn:] if torn < 4 else data


def _bytes_of_character(lead: int) -> int:
    """How many bytes a character has in UTF-8 that starts with this one."""
    return 4 if lead >= 0b1111_0000 else 3 if lead >= 0b1110_0000 else 2 if lead >= 0b1100_0000 else 1
