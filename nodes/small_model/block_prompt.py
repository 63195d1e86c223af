"""The request of the block form: one message, rebuilt for each call from the facts of the turn.

It holds the task, the current files, and failures in words. A small model that sees its own failed try repeats it, and
imitates examples rather than descriptions, so the form is shown in examples that are real chat turns.

Source: 551 logged replies of a 1.5B model.
"""

import ast
import json
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import NamedTuple

from langchain_core.messages import AIMessage, AnyMessage

from mendgraph.nodes.language.block_form import BlockRequest
from mendgraph.nodes.language.chat_messages import (
    as_map,
    describe_tool,
    message_of,
    native_tool,
    requires_value,
    text_size,
)
from mendgraph.nodes.language.documents import parse_quietly
from mendgraph.nodes.language.history import RESULT_MESSAGE_NAME, is_machine_message, is_request
from mendgraph.nodes.language.names import IS_TEST, TEXT_SUFFIXES, named_paths, split_output
from mendgraph.nodes.language.token_estimates import BYTES_PER_TOKEN, TOKENS_PER_MESSAGE, estimate_tokens
from mendgraph.nodes.records import Correction, JsonMap, ToolSpec
from mendgraph.nodes.small_model.blocks import EXAMPLE_EDITS, render_file
from mendgraph.nodes.small_model.turn_view import TurnView, first_lines, request_parts, view_turn
from mendgraph.nodes.small_model.wording import (
    asks_for_a_change,
    asks_for_tests,
    is_question,
    orders_a_change,
    reports_a_problem,
)

_FRONT = """\
You are a coding agent. You change the files of one workspace.
To change a file, answer with its path on one line, then a fenced block with the new text of the functions or classes \
that change. Leave the rest out.
"""
_END = "If nothing is to be changed, answer in plain text."

_TOOLS = """\
To look at a file that is not shown, answer with one line: tool: read_file({"path": "PATH"})
To find something, answer with one line: tool: search_files({"pattern": "TEXT"})
"""

BLOCKS_SYSTEM = f"{_FRONT}{_TOOLS}{_END}"
QUESTION_SYSTEM = """\
You are an expert programmer. Answer questions about the files of one workspace: precisely, in a few sentences, with \
the names, values and errors that the code has.
"""
"""For questions: with examples of edits a small model prints the file again.

Source: measured with the embedded model, 3 of 13 everyday requests.
"""
ANEW_SYSTEM = "You are an expert programmer. Answer with nothing but code in a fenced block."
"""For a function that is rewritten: otherwise the model repeats the examples and the existing body.

Source: 17 repairs of HumanEvalFix on the embedded model, each with one greedy request: 5 with the body in sight, 9 with
the body hidden, 11 with this.
"""
NATIVE_BLOCKS_SYSTEM = f"""\
{_FRONT}To look at a file that is not shown, call read_file; to find something, call search_files.
{_END}"""

_WORDS = """\
def whisper(text):
    return text.lower()


def shout(text):
    return text.lower()
"""
_NAMES = '''\
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
_FOUND = "initials(\"ada lovelace\") gives 'al', but must give 'AL'."
_LIMITS = """\
{
  "depth": 2,
  "width": 8
}
"""
EXAMPLES = (
    (
        "What does words.py do?",
        render_file("words.py", _WORDS),
        "It changes the case of a text: whisper lowers it, shout raises it.",
    ),
    (
        "initials in names.py is wrong for lower case names. Please fix it.",
        f"{render_file('names.py', _NAMES)}\n\n{_FOUND}",
        render_file("names.py", EXAMPLE_EDITS["names.py"]),
    ),
    (
        "Set depth to 3 in limits.json.",
        render_file("limits.json", _LIMITS),
        render_file("limits.json", EXAMPLE_EDITS["limits.json"]),
    ),
    (
        "Create colors.md with red and blue in it.",
        render_file("words.py", _WORDS),
        render_file("colors.md", EXAMPLE_EDITS["colors.md"]),
    ),
)
"""A question, a repair, a file without code, a new file: each the request, the file, and the reply to imitate."""

_SENTENCE = re.compile(r"\b\w++(?:,? \w++){4}")


def foreign_lines(known: str) -> frozenset[str]:
    """Return the lines of an edit that were copied from the examples, without the marks around them.

    Only sentences of at least five words count, not code, and none that occur in `known`, the task and its files.
    """
    lines = (line for example in EXAMPLES for text in example for line in text.splitlines() if _SENTENCE.search(line))
    bare = (line.strip(" \t\r#/*-'\"`.,;:!") for line in lines)
    return frozenset(line for line in bare if line not in known)


UNTOLD_TOOLS = frozenset(
    {
        *("read_file", "list_files", "glob_files", "search_files"),
        *("edit_file", "edit_blocks", "write_file", "update_plan", "final_answer"),
    }
)
"""Tools that the block form does not list: a small model imitates each line of the list."""

NATIVE_TOOLS = frozenset({"read_file", "search_files"})
"""Tools that the endpoint gets natively beside the user's own: edits are blocks in both protocols."""


LAST_TRY = 3
"""The maximum number of requests for a failed task, each with another wording.

Source: 43 replies to a request that was sent before, none of which solved anything.
"""

_UNUSED = "The last answer could not be used."

MAX_MISSING = 3  # files that a request names and that are not there, of which the model is told


class Focus(NamedTuple):
    """The definition that the work is about, and its file."""

    path: str
    name: str


class Hidden(NamedTuple):
    """A function that is to be rewritten, and its file without its body; `alone` if nothing else is shown.

    With "" for `name` it is the whole file, unchanged.
    """

    path: str
    name: str
    text: str
    alone: bool


def block_request(
    specs: Sequence[ToolSpec],
    history: Sequence[AnyMessage],
    corrections: Sequence[Correction],
    *,
    native: bool,
    corrections_sent: int = 0,
    most_tokens: int | None = None,
) -> BlockRequest:
    """Build the request from the turn's history: earlier turns as chat messages, this one as facts.

    `corrections_sent` counts all corrections of the turn. If the request exceeds `most_tokens`, earlier turns are
    dropped, oldest first, then files and search results.
    """
    own_specs = [spec for spec in specs if spec.name not in UNTOLD_TOOLS or requires_value(spec)]
    view = view_turn(history)
    start = max(index for index, message in enumerate(history) if is_request(message))
    earlier, since = _earlier_turns(history[:start], history[start].text)
    task, _ = request_parts(history[start].text)
    asks = is_question(task)
    examples = [
        message
        for request, file, reply in (() if asks else EXAMPLES)
        for message in (message_of("user", f"{request}\n\n{file}"), message_of("assistant", reply))
    ]
    failures = view.failed_steps + max(corrections_sent, len(corrections))
    hidden = _asked_anew(task, view, failures)
    if hidden and hidden.alone:
        alone = _ask_alone(hidden, task, view, since, failures)
        if most_tokens is None or estimated_tokens(alone) <= most_tokens:
            return BlockRequest(tuple(alone), failed_tries=failures)
    if own_specs:
        more = ["More tools, called in the same way:", *map(describe_tool, own_specs)]
    else:
        more = []
    front = NATIVE_BLOCKS_SYSTEM if native else BLOCKS_SYSTEM
    if asks:
        if native or view.files:
            front = QUESTION_SYSTEM
        else:
            front = f"{QUESTION_SYSTEM}{_TOOLS}"
    system = message_of("system", front if native else "\n".join([front, *more]))
    reading = [spec for spec in specs if spec.name in NATIVE_TOOLS]
    if native:
        tools = [native_tool(spec) for spec in (*reading, *own_specs)]
    else:
        tools = []
    request_of = partial(_request_text, task, hidden=hidden, corrections=corrections, failures=failures)
    if most_tokens is None:
        request = request_of(view)
    else:
        tokens_left = most_tokens - estimated_tokens([system, *examples], tools)
        request = bounded_request(task, view, request_of, tokens_left - TOKENS_PER_MESSAGE)
        tokens_left -= estimated_tokens([message_of("user", request)])
        since = first_lines(since, (tokens_left - LABEL_TOKENS) * BYTES_PER_TOKEN)
        earlier = latest_turns(earlier, tokens_left - estimate_tokens(text_size(since), 0))
    if since:
        request = f"This was asked before:\n\n{since}\n\nNow:\n\n{request}"
    messages = [system, *examples, *earlier, message_of("user", request)]
    return BlockRequest(tuple(messages), tuple(tools), failures)


EARLIER_LIMIT = 6_000  # bytes of earlier requests, about 1,700 tokens: they may say what is to be made
LABEL_TOKENS = 15  # what stands around it


def _earlier_turns(history: Sequence[AnyMessage], task: str) -> tuple[list[JsonMap], str]:
    """Return earlier requests with the model's answers, and later requests if the `task` continues them.

    Answers by the machine and replies with tool calls are left out. Roles alternate, because chat templates refuse two
    user messages in a row. A report of a failure belongs to the order before it.
    """
    turns = list[JsonMap]()
    waiting = list[str]()

    for message, following in zip_longest(history, history[1:]):
        if is_request(message):
            words, output = split_output(message.text)
            waiting = [*(waiting if output or not orders_a_change(words) else ()), words]
        elif isinstance(message, AIMessage) and not (
            message.tool_calls or is_machine_message(message) or getattr(following, "name", "") == RESULT_MESSAGE_NAME
        ):
            first_request = first_lines("\n\n".join(waiting), EARLIER_LIMIT)
            turns += [*([message_of("user", first_request)] if waiting else ()), as_map(message, native=False)]
            waiting = []

    since = "\n\n".join(waiting)
    words, output = split_output(task)
    goes_on = output or not orders_a_change(words) or {*named_paths(since)}.issuperset(named_paths(words))

    return turns, first_lines(since.strip(), EARLIER_LIMIT) if goes_on else ""


def _request_text(
    task: str,
    view: TurnView,
    left_out: Sequence[str] = (),
    *,
    hidden: Hidden | None,
    corrections: Sequence[Correction],
    failures: int,
) -> str:
    """Return the task, the current files, the results of searches, and failures, in words.

    Files in `left_out` were removed because the request would be too large. At the last try failures come first, so
    that the request differs from all before.
    """
    missing = [path for path in _missing(task, view) if path not in left_out]
    missing += (new_tests := _new_tests(task, view))
    told = [failure for failure in view.failures[-2:] if not any(f"'{path}'" in failure for path in missing)]
    focus = _focus(task, view)
    files = dict(view.files)

    if focus and view.evidence:  # what checks speak of is all that it needs to see, and comes last
        last_file = files.pop(focus.path)
        files = {path: text for path, text in files.items() if path in named_paths(task)} | {focus.path: last_file}

    first = list[str]()
    last = [*told, *(correction.prompt for correction in corrections[-1:])] or [*view.evidence]
    if failures == LAST_TRY:
        first = last or [_UNUSED]
        last = []

    if hidden and hidden.path in files:
        files.pop(hidden.path)
        files[hidden.path], last = hidden.text, [*_right(view), f"Write {hidden.name} anew."]
    elif failures or new_tests:
        last = [*last, _how_to_answer(task, view, missing, focus, failures)]

    files_shown = [render_file(path, content) for path, content in files.items()]
    parts = [*first, *([*files_shown, task.strip()] if is_question(task) else [task.strip(), *files_shown])]
    if left_out:
        parts.append(f"Not shown, for want of room: {', '.join(left_out)}.")

    if view.found:
        parts.append("\n".join(view.found))

    if missing:
        parts.append(f"There is no {' and no '.join(missing[:MAX_MISSING])} yet.")

    if view.changed:
        parts.append("Already changed: " + ", ".join(view.changed))

    return "\n\n".join([*parts, "\n".join(last)] if last else parts)


def shown_files(request: str, view: TurnView, failures: int) -> tuple[str, ...]:
    """Return the files that the next request shows: one if a single function is requested, else those of the turn."""
    hidden = _asked_anew(request_parts(request)[0], view, failures)
    if hidden and hidden.alone:
        return (hidden.path,)

    return tuple(view.files)


def _asked_anew(task: str, view: TurnView, failures: int) -> Hidden | None:
    """Return what the next request asks to rewrite; None if it shows the current state.

    A small model repeats a body that it sees. A documented function is shown alone at first, any other in its file. If
    the request is an order, the unchanged file is shown alone.
    """
    if not 0 < failures < LAST_TRY or _missing(task, view) or is_question(task):
        return None

    mends = reports_a_problem(task) or any(map(_CALL.match, view.evidence))
    focus = _focus(task, view) if mends else None
    text = None

    if focus:
        text = without_body(view.files[focus.path], focus.name)

    if not focus or not text:
        if failures == 1 or asks_for_a_change(task):
            return _stuck_file(view)
        return None

    documented = any(ast.get_docstring(node) for node in _nodes(text) if node.name == focus.name)
    return Hidden(*focus, text, alone=(failures > 1) is not documented)


def _stuck_file(view: TurnView) -> Hidden | None:
    """Return the first Python file that the last step returned unchanged."""
    failure_text = " ".join(view.failures)
    paths = [path for path in view.files if path.endswith((".py", ".pyi"))]
    paths = paths if len(view.files) == 1 else sorted(filter(failure_text.count, paths), key=failure_text.index)

    if view.unchanged and paths:
        return Hidden(paths[0], "", view.files[paths[0]], alone=True)

    return None


def _ask_alone(hidden: Hidden, task: str, view: TurnView, since: str, failures: int) -> list[JsonMap]:
    """Return a request without examples of edits: the purpose, the start of the code, and the expected result."""
    right = _right(view)
    file = render_file(hidden.path, hidden.text)
    parts = [since, "" if right else task.strip(), file, *right, f"Write the function {hidden.name}."]

    if not hidden.name:
        parts = [since, file, task.strip(), *([*right, f"Write all of {hidden.path}."] if failures > 1 else ())]

    return [message_of("system", ANEW_SYSTEM), message_of("user", "\n\n".join(filter(None, parts)))]


def _right(view: TurnView) -> list[str]:
    """Return what was found without the code around it: only the expected value helps."""
    return [_EXAMPLE_FOUND.sub(r"\1 must \2 \3", line) for line in view.evidence]


def _focus(task: str, view: TurnView) -> Focus | None:
    return find_focus([*view.evidence, task, *view.failures], view.files)


def _missing(task: str, view: TurnView) -> list[str]:
    if is_question(task):
        return []

    known_paths = {*view.files, *view.changed}
    named = named_paths(task)
    meant = [f"/{path}" for path in known_paths if path not in named]
    new = (
        path
        for path in named
        if path not in known_paths and not any(path_meant.endswith(f"/{path}") for path_meant in meant)
    )

    return [path for path in new if path.rpartition(".")[2] in TEXT_SUFFIXES and not path.startswith("/")]


def _new_tests(task: str, view: TurnView) -> list[str]:
    """Return the new test file to write beside the shown ones; nothing if it exists."""
    tests_shown = [path for path in view.files if IS_TEST.search(path)]
    code = [path for path in view.files if path not in tests_shown and path.endswith(".py")]
    if view.changed or not (asks_for_tests(task) and len(code) == len(tests_shown) == 1) or named_paths(task):
        return []

    path = posixpath.join(posixpath.dirname(tests_shown[0]), f"test_{posixpath.basename(code[0])}")
    return [path] if path not in tests_shown else []


def _how_to_answer(task: str, view: TurnView, missing: Sequence[str], focus: Focus | None, failures: int) -> str:
    """Return the last line of a request after a failure, which the model follows first."""
    again = failures > 1
    tried = bool(view.evidence) or bool(named_paths(task) and view.failures and not view.unchanged)

    if is_question(task) or not (asks_for_a_change(task) or reports_a_problem(task) or tried):
        if again:
            return "Answer in one sentence."
        return "Answer in words."

    if missing:
        return f"Answer with {missing[0]} and its whole text{', and nothing else' if again else ''}."

    place, what = focus or (next(iter(view.files)) if len(view.files) == 1 else "the path of the file", "what changes")
    has_to = ""
    if again:
        has_to = f"Some line{f' of {focus.name}' if focus else ''} has to change.\n"

    return f"{has_to}Answer with {place} and the new text of {what}."


def estimated_tokens(messages: Sequence[JsonMap], tools: Sequence[JsonMap] = ()) -> int:
    """Estimate the tokens of text messages and native tools."""
    tokens = sum(estimate_tokens(text_size(message["content"]), 1) for message in messages)
    return tokens + (estimate_tokens(text_size(json.dumps(tools)), 0) if tools else 0)


def latest_turns(earlier: Sequence[JsonMap], most_tokens: int) -> list[JsonMap]:
    """Return the last messages that fit, starting at a user message."""
    tokens_left = estimated_tokens(earlier)
    first = 0
    while first < len(earlier) and (tokens_left > most_tokens or (first and earlier[first]["role"] != "user")):
        tokens_left -= estimated_tokens([earlier[first]])
        first += 1

    return list(earlier[first:])


def bounded_request(task: str, view: TurnView, told: Callable[[TurnView, Sequence[str]], str], most_tokens: int) -> str:
    """Return `told(view, left_out)` with as much of the view as fits.

    Files that the task does not name are removed first, oldest first, then search results, then the file that was read
    last, then the files that the task names.
    """
    named = frozenset(named_paths(task))
    others = [path for path in view.files if path not in named]
    order: list[str | None] = [*others[:-1], None, *others[-1:], *(path for path in view.files if path in named)]
    text = told(view, ())
    left_out = list[str]()

    for path in order:
        if text_size(text) <= most_tokens * BYTES_PER_TOKEN:
            break

        if path is None:
            view = view.model_copy(update={"found": ()})
        else:
            left_out.append(path)
            files = {name: content for name, content in view.files.items() if name != path}
            view = view.model_copy(update={"files": files})

        text = told(view, left_out)

    return text


_WORD, _CALL = re.compile(r"\w+"), re.compile(r"\w+\(")
_EXAMPLE_FOUND = re.compile(r"^(?>(.*?) (?:gives|raises) ).*, but must (give|raise) (.*)$", re.MULTILINE)
_ELISION = "..."


def find_focus(words: Sequence[str], files: Mapping[str, str]) -> Focus | None:
    """Return the definition that these texts are about, the earlier texts first; None if it is not unique.

    A text that starts with a call is about the called function.
    """
    defined: dict[str, list[str]] = {}
    for path, text in files.items():
        for node in _nodes(text) if path.endswith((".py", ".pyi")) else ():
            defined.setdefault(node.name, []).append(path)

    for text in words:
        named = [name for name in dict.fromkeys(_WORD.findall(text)) if name in defined]
        if named:
            places = defined[named[0]]
            certain = len(named) == 1 or text.startswith(f"{named[0]}(")
            if certain and len(places) == 1:
                return Focus(places[0], named[0])

            return None

    return None


def without_body(text: str, name: str) -> str | None:
    """Return the file with `...` as the function's body, keeping its docstring; None if it has no single body."""
    definitions = [node for node in _nodes(text) if node.name == name]
    if len(definitions) != 1:
        return None

    definition = definitions[0]
    body = definitions[0].body
    lines = text.split("\n")
    documented = ast.get_docstring(definition) is not None

    if documented and len(body) == 1:
        return None

    code = body[documented]
    starts = min([code.lineno, *(decorator.lineno for decorator in getattr(code, "decorator_list", ()))])
    last_kept = (body[0].end_lineno or 0) if documented else starts - 1
    ends = definition.end_lineno or starts

    if not definition.lineno <= last_kept < starts or ends > len(lines):
        return None

    indent = re.match(r"\s*", lines[starts - 1])
    hidden = "\n".join([*lines[:last_kept], f"{indent[0] if indent else ''}{_ELISION}", *lines[ends:]])
    if any(node.name == name for node in _nodes(hidden)):
        return hidden

    return None


def _nodes(text: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    try:
        tree = parse_quietly(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []

    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
