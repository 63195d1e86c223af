"""What can be the name of a program that a run may start. Pure."""

import re

_ONE_PROGRAM = re.compile(r"(?!-)[^\s*?\"'`$&;|<>()~]*[^\s*?\"'`$&;|<>()~/]")
"""A name or a path alone: without arguments, and without what only a shell understands."""

_LONGEST = 80


def program_problem(entry: str) -> str | None:
    """What is wrong with this as the name or the path of one program, None where nothing is."""
    if _ONE_PROGRAM.fullmatch(entry):
        return None
    words, shown = entry.split(), ascii(entry) if not entry.isprintable() else repr(entry)
    remedy = "give a name such as make, or a path such as .venv/bin/pytest"
    if words and _ONE_PROGRAM.fullmatch(words[0]):
        remedy = f"give the program alone, {words[0]!r}"
    cut = shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 3]}..."
    return f"{cut} is not one program: {remedy}"
