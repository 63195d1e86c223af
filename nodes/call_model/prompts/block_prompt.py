"""The request of the block form: one clean message made anew from what the turn has brought to light.

It holds the task, the files as they are, and what failed in words. A small model that sees its own failed try repeats
it, and a form that is described is not imitated, so the form is shown in examples as real chat turns.
Source: 551 logged replies of a 1.5B model.
"""

import ast
import json
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from pydantic import Field

from mendgraph.nodes.call_model.prompts.estimates import BYTES_PER_TOKEN, TOKENS_PER_MESSAGE, estimate_tokens
from mendgraph.nodes.call_model.prompts.profiles import owes_a_value
from mendgraph.nodes.call_model.prompts.prompt import Prompt, as_map, describe_tool, message_of, native_tool, text_size
from mendgraph.nodes.language.dialects import EXAMPLE_EDITS, render_file
from mendgraph.nodes.language.documents import parse_quietly
from mendgraph.nodes.language.history import RESULT_MESSAGE_NAME, begins_work, is_request, last_request
from mendgraph.nodes.language.names import (
    IS_TEST,
    TEXT_SUFFIXES,
    asks_for_a_change,
    asks_for_tests,
    is_question,
    named_paths,
    orders_a_change,
    reports_a_problem,
    told_paths,
    without_output,
)
from mendgraph.nodes.language.text_protocol import parse_text_results
from mendgraph.nodes.records import Correction, JsonMap, Record, ToolErrorCode, ToolSpec

# --- The current turn as facts, read back from the settled messages: it needs no channel, and survives a resume

EARLIER_LIMIT = 6_000  # bytes of earlier requests, about 1,700 tokens: they may say what is to be made
LABEL_TOKENS = 15  # what stands around it
FOUND_LIMIT = 2_000  # characters of one result that is not a file (a listing, search hits) in a rebuilt request
_REFUSALS = frozenset({ToolErrorCode.PERMISSION_DENIED, ToolErrorCode.APPROVAL_REQUIRED})
"""Codes of what was not allowed: by a rule, by a person, or because there was nobody to ask."""


class TurnView(Record):
    """What this turn has brought to light.

    `files` maps paths to their newest known content: a file that was changed and not read since is not among them.
    `failures` are those of the last step that failed, until something was changed; a file that was read once more for
    nothing is one of them. `failed_steps` counts such steps since then. `evidence` is what pasted output says, and what
    checks found before anything was done. `refused` says that something was not allowed.
    """

    files: dict[str, str] = Field(default_factory=dict)
    found: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    failed_steps: int = 0
    refused: bool = False


def view_turn(history: Sequence[AnyMessage]) -> TurnView:
    """Sum up the messages after the last request of a person, and the output that was pasted into it."""
    files: dict[str, str] = {}
    found: list[str] = []
    changed: dict[str, None] = {}
    failures: list[str] = []
    evidence = [output] if (output := _parted(last_request(history))[1]) else []
    failed_steps, refused = 0, False
    for number, every in enumerate(_steps(history)):
        first = [result for result in every if number == 0 and _is_evidence(result)]
        results = [result for result in every if result not in first]
        evidence += map(_failure, first)
        done = [data for result in results if (data := _data(result))]
        refused = refused or any(_code(result) in _REFUSALS for result in results)
        step_failures = [message for result in results if (message := _failure(result))]
        step_failures += [f"{data['path']} is shown above, as it is now." for data in done if _is_known(data, files)]
        # What was searched for in vain is told: at temperature 0 the same request would have the same reply.
        step_failures += ["The search has found nothing." for data in done if number and data.get("matches") == []]
        # A file that was shown instead of being edited, as it had not been read.
        unedited = (data["path"] for data in done if data.get("changed") is False)
        step_failures += [f"{path} is shown above: make the edit again." for path in unedited]
        step_failures += [f"{data['path']} {data['syntax']}." for data in done if "path" in data and data.get("syntax")]
        progress = any(map(_is_change, done)) and not step_failures
        failures = step_failures or ([] if progress else failures)
        failed_steps = 0 if progress else failed_steps + bool(step_failures)
        for data in done:
            path, content = data.get("path"), data.get("content")
            if _is_change(data):
                changed[str(path)] = None
                files.pop(str(path), None)
            if isinstance(path, str) and isinstance(content, str):
                files[path] = content
            elif not _is_change(data) and "checks" not in data and data.get("matches") != []:
                found.append(_in_words(data)[:FOUND_LIMIT])
    return TurnView(
        files=files,
        found=(*(f"Said since: {text[:FOUND_LIMIT]}" for text in said_since(history)[:1]), *found[-2:]),
        changed=tuple(changed),
        evidence=tuple(evidence),
        failures=tuple(failures),
        failed_steps=failed_steps,
        refused=refused,
    )


def _parted(request: str) -> tuple[str, str]:
    """The words of a request that is no question, and as much of the output that was pasted into it as is told."""
    words, output = without_output(request)
    if not output or is_question(request) or is_question(words):
        return request, ""
    failures = output.partition(" short test summary info ")[0].rstrip("=\n")  # the summary says them once more
    return words or "Fix this.", _first_lines(failures if told_paths(failures) else output, FOUND_LIMIT)


def _first_lines(text: str, most: int) -> str:
    """Its first lines that fit into so many bytes."""
    data = text.encode(errors="replace")
    return text if len(data) <= most else data[: max(0, most)].decode(errors="ignore").rpartition("\n")[0]


def said_since(history: Sequence[AnyMessage]) -> list[str]:
    """What other agents have said between the last request and the message that handed it on, the latest first."""
    said: list[str] | None = None
    for message in reversed(history):
        if is_request(message):
            break
        if said is None and begins_work(message):
            said = []
        elif said is not None and isinstance(message, AIMessage) and not message.tool_calls and message.text.strip():
            said.append(message.text)
    return said or []


def used_tools(history: Sequence[AnyMessage]) -> set[str]:
    """The names of the tools of which a call in this turn did not fail."""
    return {str(result.get("tool")) for every in _steps(history) for result in every if result.get("ok")}


def _steps(history: Sequence[AnyMessage]) -> Iterator[list[JsonMap]]:
    start = max((index for index, message in enumerate(history) if begins_work(message)), default=0)
    native: list[JsonMap] = []
    for message in history[start:]:
        if isinstance(message, ToolMessage):
            native += [{"ok": message.status != "error", **_loads(message.text), "tool": message.name}]
            continue
        if native:
            yield native
            native = []
        if isinstance(message, HumanMessage) and message.name == RESULT_MESSAGE_NAME:
            yield parse_text_results(message.text)
    if native:
        yield native


def _loads(text: str) -> JsonMap:
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _data(result: JsonMap) -> JsonMap:
    data = result.get("data")
    return data if result.get("ok") and isinstance(data, dict) else {}


def _in_words(data: JsonMap) -> str:
    entries, matches = data.get("entries"), data.get("matches")
    if isinstance(entries, list):
        return "The workspace has: " + ", ".join(map(str, entries))
    if isinstance(matches, list) and matches and all(isinstance(match, dict) for match in matches):
        return "\n".join(f"{m.get('path')}, line {m.get('line')}: {str(m.get('text', '')).strip()}" for m in matches)
    return json.dumps(data, ensure_ascii=False)


def _failure(result: JsonMap) -> str:
    """What the model has to know of a failed call; a cancelled call failed for the sake of another that is told."""
    error = result.get("error")
    if not isinstance(error, dict) or error.get("code") == ToolErrorCode.CANCELLED:
        return ""
    if error.get("code") == ToolErrorCode.LOOP_OVERRIDE:  # whose advice, to do something else, is for the other forms
        return "This was tried before."
    return str(error.get("message") or "")


def _is_evidence(result: JsonMap) -> bool:
    """Whether checks found something by themselves: in a turn's first step nothing was done yet that failed them."""
    return result.get("tool") == "run_checks" and _code(result) == ToolErrorCode.CHECK_FAILED


def _code(result: JsonMap) -> str:
    error = result.get("error")
    return str(error.get("code")) if isinstance(error, dict) else ""


def _is_known(data: JsonMap, files: Mapping[str, str]) -> bool:
    """Whether this is a file that was read once more, and came out as it is already shown."""
    path = data.get("path")
    return isinstance(path, str) and path in files and files[path] == data.get("content") and not _is_change(data)


def _is_change(data: JsonMap) -> bool:
    return "path" in data and not data.keys().isdisjoint({"action", "replacements"})


# --- The request

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
"""For a request that only asks: the examples of edits make a small model show the file again.

Source: measured with the embedded model, three of thirteen everyday requests.
"""
ANEW_SYSTEM = "You are an expert programmer. Answer with nothing but code in a fenced block."
"""For a function that is written anew: the examples of edits, and the body that is there, are repeated otherwise.

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
"""A question, a repair, a file that is no code, a new file: request, file shown with it, the reply to imitate."""

_SENTENCE = re.compile(r"\b\w++(?:,? \w++){4}")


def foreign_lines(known: str) -> frozenset[str]:
    """The lines of the examples that an edit has from there and not by chance, without the marks around them.

    They are sentences: five words in a row. Code is anybody's. What is said in `known`, the task and its files, is not
    foreign to it.
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
"""What a small model does not have to be told of in the block form: each line of a tool list is one to imitate."""

NATIVE_TOOLS = frozenset({"read_file", "search_files"})
"""What an endpoint is told of natively beside tools of the user's own: edits are blocks, in either protocol."""

RETRY_TEMPERATURE = 0.8
"""At its last try a small model is sampled: at temperature 0 it would repeat what it has seen.

Source: measured on a 1.5B model, fresh retries at 0.7 to 0.9.
"""


LAST_TRY = 3
"""So often a turn is asked for what failed, each time in other words; then they are used up.

Source: 43 replies to a request that was sent before, none of which solved anything.
"""

MAX_MISSING = 3  # files that a request names and that are not there, of which the model is told


class Focus(NamedTuple):
    """The one definition that the work is about, and its file."""

    path: str
    name: str


def block_request(
    specs: Sequence[ToolSpec],
    history: Sequence[AnyMessage],
    corrections: Sequence[Correction],
    *,
    native: bool,
    asked: int = 0,
    most_tokens: int | None = None,
) -> Prompt:
    """Make the request anew from the turn's history: earlier turns as they were said, this one as facts.

    `asked` counts the corrections of the whole turn, of which some may be settled. Where the request would be larger
    than `most_tokens`, earlier turns are dropped, oldest first, then files and what was found.
    """
    own = [spec for spec in specs if spec.name not in UNTOLD_TOOLS or owes_a_value(spec)]
    view = view_turn(history)
    start = max(index for index, message in enumerate(history) if is_request(message))
    earlier, since = _earlier_turns(history[:start], history[start].text)
    asks = is_question(history[start].text)
    examples = [
        message
        for task, file, reply in (() if asks else EXAMPLES)
        for message in (message_of("user", f"{task}\n\n{file}"), message_of("assistant", reply))
    ]
    failures = view.failed_steps + max(asked, len(corrections))
    hidden = asked_anew(history[start].text, view, failures)
    if hidden and hidden.alone:
        alone = _ask_alone(hidden, history[start].text, view, since)
        if most_tokens is None or estimated_tokens(alone) <= most_tokens:
            return Prompt(tuple(alone), failed_tries=failures)
    more = ["More tools, called in the same way:", *map(describe_tool, own)] if own else []
    front = NATIVE_BLOCKS_SYSTEM if native else BLOCKS_SYSTEM
    if asks:
        front = QUESTION_SYSTEM if native or view.files else f"{QUESTION_SYSTEM}{_TOOLS}"
    system = message_of("system", front if native else "\n".join([front, *more]))
    reading = [spec for spec in specs if spec.name in NATIVE_TOOLS]
    tools = [native_tool(spec) for spec in (*reading, *own)] if native else []
    task, _ = _parted(history[start].text)
    told = partial(_request_text, task, corrections=corrections, failures=failures)
    if most_tokens is None:
        request = told(view)
    else:
        left = most_tokens - estimated_tokens([system, *examples], tools)
        request = bounded_request(task, view, told, left - TOKENS_PER_MESSAGE)
        left -= estimated_tokens([message_of("user", request)])
        since = _first_lines(since, (left - LABEL_TOKENS) * BYTES_PER_TOKEN)
        earlier = latest_turns(earlier, left - estimate_tokens(text_size(since), 0))
    if since:
        request = f"This was asked before:\n\n{since}\n\nNow:\n\n{request}"
    messages = [system, *examples, *earlier, message_of("user", request)]
    return Prompt(tuple(messages), tuple(tools), failed_tries=failures)


_MADE = re.compile(r"(?:Changed \S+(?:, \S+)*(?: and [\d,]+ more)?\.|Done\.)\Z|(?:BUDGET_STOP|SYSTEM_ERROR) \(")


def _earlier_turns(history: Sequence[AnyMessage], task: str) -> tuple[list[JsonMap], str]:
    """Earlier requests with what a model has answered, and what was asked since, where the `task` goes on with it.

    An answer that the machine has made, or a reply that results follow, is none to imitate. The roles alternate: chat
    templates refuse two messages of a person. A report of what fails belongs to the order before it.
    """
    told, waiting = list[JsonMap](), list[str]()
    for message, following in zip_longest(history, history[1:]):
        if is_request(message):
            words, output = without_output(message.text)
            waiting = [*(waiting if output or not orders_a_change(words) else ()), words]
        elif isinstance(message, AIMessage) and not (
            message.tool_calls or _MADE.match(message.text) or getattr(following, "name", "") == RESULT_MESSAGE_NAME
        ):
            asked = _first_lines("\n\n".join(waiting), EARLIER_LIMIT)
            told += [*([message_of("user", asked)] if waiting else ()), as_map(message, native=False)]
            waiting = []
    since, (words, output) = "\n\n".join(waiting), without_output(task)
    goes_on = output or not orders_a_change(words) or {*named_paths(since)}.issuperset(named_paths(words))
    return told, _first_lines(since.strip(), EARLIER_LIMIT) if goes_on else ""


def _request_text(
    task: str, view: TurnView, left_out: Sequence[str] = (), *, corrections: Sequence[Correction], failures: int
) -> str:
    """The task, the files as they are now, what was found, and what failed: in words, never as failed text.

    Files that are `left_out` are not in the view any more, as the request would be too large.
    """
    missing = [path for path in _missing(task, view) if path not in left_out]
    missing += _new_tests(task, view)
    told = [failure for failure in view.failures[-2:] if not any(f"'{path}'" in failure for path in missing)]
    failed = [*told, *(correction.prompt for correction in corrections[-1:])]
    focus, hidden = _focus(task, view), asked_anew(task, view, failures)
    files, ending = dict(view.files), "\n".join(failed or view.evidence)
    if focus and view.evidence:  # what checks speak of is all that it needs to see, and comes last
        last = files.pop(focus.path)
        files = {path: text for path, text in files.items() if path in named_paths(task)} | {focus.path: last}
    first = failed if failures == LAST_TRY else []
    if hidden:
        files.pop(hidden.path)
        files[hidden.path], ending = hidden.text, "\n".join([*_right(view), f"Write {hidden.name} anew."])
    elif failures or _new_tests(task, view):
        last_line = _how_to_answer(task, view, missing, focus, failures)
        ending = "\n".join([*([] if first else [ending] if ending else []), last_line])
    shown = [render_file(path, content) for path, content in files.items()]
    parts = [*first, *([*shown, task.strip()] if is_question(task) else [task.strip(), *shown])]
    if left_out:
        parts.append(f"Not shown, for want of room: {', '.join(left_out)}.")
    if view.found:
        parts.append("\n".join(view.found))
    if missing:
        parts.append(f"There is no {' and no '.join(missing[:MAX_MISSING])} yet.")
    if view.changed:
        parts.append("Already changed: " + ", ".join(view.changed))
    return "\n\n".join([*parts, ending] if ending else parts)


class Hidden(NamedTuple):
    """A function that is to be written anew, and its file without its body; `alone` where nothing else is shown."""

    path: str
    name: str
    text: str
    alone: bool


def asked_anew(request: str, view: TurnView, failures: int) -> Hidden | None:
    """What the next request asks to be written anew, to mend something; None where it shows what is there.

    A small model repeats a body that it sees.
    """
    task, _ = _parted(request)
    if not 0 < failures < LAST_TRY or is_question(task) or _missing(task, view):
        return None
    focus = _focus(task, view) if view.evidence or reports_a_problem(task) else None
    text = without_body(view.files[focus.path], focus.name) if focus else None
    return Hidden(*focus, text, alone=failures > 1) if focus and text else None


def _ask_alone(hidden: Hidden, request: str, view: TurnView, since: str) -> list[JsonMap]:
    """Without the examples of edits, as one asks for a program: what is wanted, its beginning, what must come out."""
    right = _right(view)
    first = [since, *([] if right else [_parted(request)[0].strip()])]
    told = [*first, render_file(hidden.path, hidden.text), *right, f"Write the function {hidden.name}."]
    return [message_of("system", ANEW_SYSTEM), message_of("user", "\n\n".join(filter(None, told)))]


def _right(view: TurnView) -> list[str]:
    """What was found, for a request without the code that it was found in: only the right value says something."""
    return [_EXAMPLE_FOUND.sub(r"\1 must \2 \3", each) for each in view.evidence]


def _focus(task: str, view: TurnView) -> Focus | None:
    return find_focus([*view.evidence, task, *view.failures], view.files)


def _missing(task: str, view: TurnView) -> list[str]:
    if is_question(task):
        return []
    known, named = {*view.files, *view.changed}, named_paths(task)
    meant = [f"/{path}" for path in known if path not in named]
    new = (path for path in named if path not in known and not any(each.endswith(f"/{path}") for each in meant))
    return [path for path in new if path.rpartition(".")[2] in TEXT_SUFFIXES and not path.startswith("/")]


def _new_tests(task: str, view: TurnView) -> list[str]:
    """The file for the tests that are asked for, beside those that are shown; nothing where it is there."""
    shown = [path for path in view.files if IS_TEST.search(path)]
    code = [path for path in view.files if path not in shown and path.endswith(".py")]
    if view.changed or not (asks_for_tests(task) and len(code) == len(shown) == 1) or named_paths(task):
        return []
    path = posixpath.join(posixpath.dirname(shown[0]), f"test_{posixpath.basename(code[0])}")
    return [path] if path not in shown else []


def _how_to_answer(task: str, view: TurnView, missing: Sequence[str], focus: Focus | None, failures: int) -> str:
    """The last line of a request after a failure: what is said last is followed first, and never said twice."""
    if is_question(task) or not (asks_for_a_change(task) or reports_a_problem(task) or view.evidence):
        return "Answer in words." if failures < LAST_TRY - 1 else "Answer in one sentence."
    if missing:
        return f"Answer with {missing[0]} and its whole text{', and nothing else' if failures == LAST_TRY - 1 else ''}."
    what = f"Some line{f' of {focus.name}' if focus else ''} has to change.\n" if failures > 1 else ""
    if focus:
        return f"{what}Answer with {focus.path} and the new text of {focus.name}."
    if len(view.files) == 1:
        return f"{what}Answer with {next(iter(view.files))} and the new text of what changes."
    return f"{what}Answer with the path of the file and the new text of what changes."


def estimated_tokens(messages: Sequence[JsonMap], tools: Sequence[JsonMap] = ()) -> int:
    """The tokens of messages that hold nothing but text, and of native tools."""
    told = sum(estimate_tokens(text_size(message["content"]), 1) for message in messages)
    return told + (estimate_tokens(text_size(json.dumps(tools)), 0) if tools else 0)


def latest_turns(earlier: Sequence[JsonMap], most_tokens: int) -> list[JsonMap]:
    """The last of these messages that fit; what has lost its beginning goes on with a person's."""
    left, first = estimated_tokens(earlier), 0
    while first < len(earlier) and (left > most_tokens or (first and earlier[first]["role"] != "user")):
        left -= estimated_tokens([earlier[first]])
        first += 1
    return list(earlier[first:])


def bounded_request(task: str, view: TurnView, told: Callable[[TurnView, Sequence[str]], str], most_tokens: int) -> str:
    """`told(view, left_out)` with as much of the view as fits.

    Files that the task does not name are left out first, oldest first, then what was found, then the file that was
    read last, then those that the task names.
    """
    named = frozenset(named_paths(task))
    others = [path for path in view.files if path not in named]
    order: list[str | None] = [*others[:-1], None, *others[-1:], *(path for path in view.files if path in named)]
    text, left_out = told(view, ()), list[str]()
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


_WORD = re.compile(r"\w+")
_EXAMPLE_FOUND = re.compile(r"^(?>(.*?) (?:gives|raises) ).*, but must (give|raise) (.*)$", re.MULTILINE)
_ELISION = "..."


def find_focus(words: Sequence[str], files: Mapping[str, str]) -> Focus | None:
    """The definition that these texts speak of, the earlier ones first; None where it is none or not the only one.

    A text that begins with a call speaks of what is called.
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
            return Focus(places[0], named[0]) if certain and len(places) == 1 else None
    return None


def without_body(text: str, name: str) -> str | None:
    """The file with `...` in place of this function's body, its documentation kept; None where it has no one body."""
    found = [node for node in _nodes(text) if node.name == name]
    if len(found) != 1:
        return None
    whole, body, lines = found[0], found[0].body, text.split("\n")
    documented = ast.get_docstring(whole) is not None
    if documented and len(body) == 1:
        return None
    code = body[documented]
    starts = min([code.lineno, *(each.lineno for each in getattr(code, "decorator_list", ()))])
    kept, ends = (body[0].end_lineno or 0) if documented else starts - 1, whole.end_lineno or starts
    if not whole.lineno <= kept < starts or ends > len(lines):
        return None
    indent = re.match(r"\s*", lines[starts - 1])
    hidden = "\n".join([*lines[:kept], f"{indent[0] if indent else ''}{_ELISION}", *lines[ends:]])
    return hidden if any(node.name == name for node in _nodes(hidden)) else None


def _nodes(text: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    try:
        tree = parse_quietly(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
