"""The system prompts of the block form, and the examples that show it as chat messages."""

import re

from mendgraph.nodes.small_model.blocks import EXAMPLE_EDITS, render_file

_INSTRUCTIONS = """\
You are a coding agent. You change the files of one workspace.
To change a file, answer with its path on one line, then a fenced block with the new text of the functions or classes \
that change. Leave the rest out.
"""
_ANSWER_INSTRUCTION = "If nothing is to be changed, answer in plain text."

TOOL_INSTRUCTIONS = """\
To look at a file that is not shown, answer with one line: tool: read_file({"path": "PATH"})
To find something, answer with one line: tool: search_files({"pattern": "TEXT"})
"""

BLOCKS_SYSTEM = f"{_INSTRUCTIONS}{TOOL_INSTRUCTIONS}{_ANSWER_INSTRUCTION}"
QUESTION_SYSTEM = """\
You are an expert programmer. Answer questions about the files of one workspace: precisely, in a few sentences, with \
the names, values and errors that the code has.
"""
"""For questions: with examples of edits a small model prints the file again.

Source: measured with the embedded model, 3 of 13 everyday requests.
"""
REWRITE_SYSTEM = "You are an expert programmer. Answer with nothing but code in a fenced block."
"""For a function that is rewritten: otherwise the model repeats the examples and the existing body.

Source: 17 repairs of HumanEvalFix on the embedded model, each with one greedy request: 5 with the body in sight, 9 with
the body hidden, 11 with this.
"""
NATIVE_BLOCKS_SYSTEM = f"""\
{_INSTRUCTIONS}To look at a file that is not shown, call read_file; to find something, call search_files.
{_ANSWER_INSTRUCTION}"""

_WORDS_PY = """\
def whisper(text):
    return text.lower()


def shout(text):
    return text.lower()
"""
_NAMES_PY = '''\
"""Names as people write them."""

import re


def shorten(name, width):
    """The name, cut to a width.

    >>> shorten("Ada Lovelace", 3)
    'Ada'
    """
    return name[:width]


def initials(name):
    """The first letters of all words, in upper case.

    >>> initials("Ada Lovelace")
    'AL'
    >>> initials("ada lovelace")
    'AL'
    """
    words = re.findall(r"\\w+", name)
    return "".join(word[0] for word in words)


def greeting(name):
    """What a letter begins with."""
    return f"Dear {shorten(name, 20)},"
'''
_CHECK_RESULT = "initials(\"ada lovelace\") gives 'al', but must give 'AL'."
_LIMITS_JSON = """\
{
  "depth": 2,
  "width": 8
}
"""
EXAMPLES = (
    (
        "What does words.py do?",
        render_file("words.py", _WORDS_PY),
        "It changes the case of a text: whisper lowers it, shout raises it.",
    ),
    (
        "initials in names.py is wrong for lower case names. Please fix it.",
        f"{render_file('names.py', _NAMES_PY)}\n\n{_CHECK_RESULT}",
        render_file("names.py", EXAMPLE_EDITS["names.py"]),
    ),
    (
        "Set depth to 3 in limits.json.",
        render_file("limits.json", _LIMITS_JSON),
        render_file("limits.json", EXAMPLE_EDITS["limits.json"]),
    ),
    (
        "Create colors.md with red and blue in it.",
        render_file("words.py", _WORDS_PY),
        render_file("colors.md", EXAMPLE_EDITS["colors.md"]),
    ),
)
"""A question, a repair, a file without code, a new file: each the request, the file, and the reply to imitate."""

_SENTENCE = re.compile(r"\b\w++(?:,? \w++){4}")


def foreign_lines(known: str) -> frozenset[str]:
    """Return the lines of the examples that an edit must not contain, without the marks around them.

    Only sentences of at least five words count, not code, and none that occur in `known`, the task and its files.
    """
    text = "\n".join("\n".join(example) for example in EXAMPLES)
    lines: set[str] = set()

    for line in text.splitlines():
        if _SENTENCE.search(line):
            sentence = line.strip(" \t\r#/*-'\"`.,;:!")
            if sentence not in known:
                lines.add(sentence)

    return frozenset(lines)
