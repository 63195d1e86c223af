"""Texts of the outputs of commands, for results and messages."""

from typing import Final

from mendgraph.nodes.workspace.processes.processes import CapturedOutput

LONGEST_LAST_WORDS: Final = 1_500
"""Characters of an output that an error message repeats."""


def output_text(output: CapturedOutput) -> str:
    """Return the output as text; a line says how many bytes are left out.

    Bytes that are not UTF-8 become U+FFFD, and NUL characters, which JSON and databases refuse, are dropped.
    """
    if not output.left_out:
        return decoded(output.head + output.tail)

    between = f"[... {output.left_out} of {output.size} bytes left out ...]"
    return f"{decoded(output.head)}\n{between}\n{decoded(output.tail)}"


def last_words(*outputs: CapturedOutput) -> str:
    """Return the last `LONGEST_LAST_WORDS` characters of each output that is not blank, one below the other."""
    texts = []

    for output in outputs:
        end = output.tail if output.left_out else output.head + output.tail
        text = decoded(end).strip()
        if text:
            texts.append(text[-LONGEST_LAST_WORDS:])

    return "\n".join(texts)


def decoded(data: bytes) -> str:
    """Return the text of an output, without NUL characters and with U+FFFD for bytes that are not UTF-8."""
    return data.decode(errors="replace").replace("\0", "")
