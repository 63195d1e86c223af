"""The request of the block form: one message, rebuilt for each call from the facts of the turn.

It holds the task, the current files, and failures in words. A small model that sees its own failed try repeats it, and
imitates examples rather than descriptions, so the form is shown in examples that are real chat turns.

Source: 551 logged replies of a 1.5B model.
"""

import json
import posixpath
from collections.abc import Callable, Sequence
from itertools import zip_longest

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
from mendgraph.nodes.language.history import RESULT_MESSAGE_NAME, is_machine_message, is_request
from mendgraph.nodes.language.names import IS_TEST, named_paths, split_output
from mendgraph.nodes.language.token_estimates import BYTES_PER_TOKEN, TOKENS_PER_MESSAGE, estimate_tokens
from mendgraph.nodes.records import Correction, JsonMap, ToolSpec
from mendgraph.nodes.small_model.blocks import render_file
from mendgraph.nodes.small_model.examples import (
    BLOCKS_SYSTEM,
    EXAMPLES,
    NATIVE_BLOCKS_SYSTEM,
    QUESTION_SYSTEM,
    TOOL_INSTRUCTIONS,
)
from mendgraph.nodes.small_model.rewriting import (
    LAST_TRY,
    Focus,
    Rewrite,
    expected_results,
    find_focus,
    find_rewrite,
    missing_files,
    rewrite_request,
)
from mendgraph.nodes.small_model.turn_view import TurnView, first_lines, request_parts, view_turn
from mendgraph.nodes.small_model.wording import (
    asks_for_a_change,
    asks_for_tests,
    is_question,
    orders_a_change,
    reports_a_problem,
)

UNLISTED_TOOLS = frozenset(
    {
        *("read_file", "list_files", "glob_files", "search_files"),
        *("edit_file", "edit_blocks", "write_file", "update_plan", "final_answer"),
    }
)
"""Tools that the block form does not list: a small model imitates each line of the list."""

NATIVE_TOOLS = frozenset({"read_file", "search_files"})
"""Tools that the endpoint gets natively beside the user's own: edits are blocks in both protocols."""

MAX_MISSING = 3
"""Missing files of a request that the model is told about."""

EARLIER_LIMIT = 6_000
"""Bytes of earlier requests, about 1,700 tokens."""

LABEL_TOKENS = 15
"""Tokens of the text around earlier requests."""

_UNUSABLE = "The last answer could not be used."


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
    view = view_turn(history)
    start = max(index for index, message in enumerate(history) if is_request(message))
    earlier, since = _earlier_turns(history[:start], history[start].text)
    task, _ = request_parts(history[start].text)
    failures = view.failed_steps + max(corrections_sent, len(corrections))

    rewrite = find_rewrite(task, view, failures)
    if rewrite and rewrite.alone:
        messages = rewrite_request(rewrite, task, view, since, failures)
        if most_tokens is None or estimated_tokens(messages) <= most_tokens:
            return BlockRequest(tuple(messages), failed_tries=failures)

    own_tools = [spec for spec in specs if spec.name not in UNLISTED_TOOLS or requires_value(spec)]
    front = [_system_message(task, view, own_tools, native=native), *_examples(task)]
    tools: list[JsonMap] = []
    if native:
        tools = [native_tool(spec) for spec in specs if spec.name in NATIVE_TOOLS]
        tools += [native_tool(spec) for spec in own_tools]

    def request_of(view: TurnView, left_out: Sequence[str]) -> str:
        return _request_text(task, view, left_out, rewrite=rewrite, corrections=corrections, failures=failures)

    if most_tokens is None:
        request = request_of(view, ())
    else:
        tokens_left = most_tokens - estimated_tokens(front, tools)
        request = bounded_request(task, view, request_of, tokens_left - TOKENS_PER_MESSAGE)
        tokens_left -= estimated_tokens([message_of("user", request)])
        since = first_lines(since, (tokens_left - LABEL_TOKENS) * BYTES_PER_TOKEN)
        earlier = latest_turns(earlier, tokens_left - estimate_tokens(text_size(since), 0))

    if since:
        request = f"This was asked before:\n\n{since}\n\nNow:\n\n{request}"

    messages = [*front, *earlier, message_of("user", request)]
    return BlockRequest(tuple(messages), tuple(tools), failures)


def _system_message(task: str, view: TurnView, own_tools: Sequence[ToolSpec], *, native: bool) -> JsonMap:
    if is_question(task):
        text = QUESTION_SYSTEM
        if not native and not view.files:
            text += TOOL_INSTRUCTIONS
    elif native:
        text = NATIVE_BLOCKS_SYSTEM
    else:
        text = BLOCKS_SYSTEM

    if own_tools and not native:
        text = "\n".join([text, "More tools, called in the same way:", *map(describe_tool, own_tools)])

    return message_of("system", text)


def _examples(task: str) -> list[JsonMap]:
    if is_question(task):
        return []

    messages: list[JsonMap] = []
    for request, file, reply in EXAMPLES:
        messages.append(message_of("user", f"{request}\n\n{file}"))
        messages.append(message_of("assistant", reply))

    return messages


def _earlier_turns(history: Sequence[AnyMessage], task: str) -> tuple[list[JsonMap], str]:
    """Return earlier requests with the model's answers, and later requests if the `task` continues them.

    Answers by the machine and replies with tool calls are left out. Roles alternate, because chat templates refuse two
    user messages in a row. A report of a failure belongs to the order before it.
    """
    turns: list[JsonMap] = []
    requests: list[str] = []

    for message, following in zip_longest(history, history[1:]):
        if is_request(message):
            words, output = split_output(message.text)
            is_new_order = not output and orders_a_change(words)
            if is_new_order:
                requests = []
            requests.append(words)
        elif isinstance(message, AIMessage) and _is_answer(message, following):
            if requests:
                turns.append(message_of("user", first_lines("\n\n".join(requests), EARLIER_LIMIT)))
            turns.append(as_map(message, native=False))
            requests = []

    since = "\n\n".join(requests)
    words, output = split_output(task)
    names_no_other_file = {*named_paths(since)}.issuperset(named_paths(words))
    if output or not orders_a_change(words) or names_no_other_file:
        return turns, first_lines(since.strip(), EARLIER_LIMIT)

    return turns, ""


def _is_answer(message: AIMessage, following: AnyMessage | None) -> bool:
    if message.tool_calls or is_machine_message(message):
        return False

    return getattr(following, "name", "") != RESULT_MESSAGE_NAME


def _request_text(
    task: str,
    view: TurnView,
    left_out: Sequence[str],
    *,
    rewrite: Rewrite | None,
    corrections: Sequence[Correction],
    failures: int,
) -> str:
    """Return the task, the current files, the results of searches, and failures, in words.

    Files in `left_out` were removed because the request would be too large. At the last try failures come first, so
    that the request differs from all before.
    """
    new_tests = _new_tests(task, view)
    missing = [path for path in missing_files(task, view) if path not in left_out] + new_tests
    focus = find_focus(task, view)
    files = _files_to_show(task, view, focus)

    first: list[str] = []
    last = _problems(view, corrections, missing)
    if failures == LAST_TRY:
        first = last or [_UNUSABLE]
        last = []

    if rewrite and rewrite.path in files:
        files.pop(rewrite.path)
        files[rewrite.path] = rewrite.text
        last = [*expected_results(view), f"Write {rewrite.name} anew."]
    elif failures or new_tests:
        last.append(_how_to_answer(task, view, missing, focus, failures))

    rendered = [render_file(path, content) for path, content in files.items()]
    if is_question(task):
        parts = [*first, *rendered, task.strip()]
    else:
        parts = [*first, task.strip(), *rendered]

    for path, lines in view.parts.items():
        if path in files:
            parts.append(f"Of {path} only {lines} are shown.")
    if left_out:
        parts.append(f"Not shown, for want of room: {', '.join(left_out)}.")
    if view.found:
        parts.append("\n".join(view.found))
    if missing:
        parts.append(f"There is no {' and no '.join(missing[:MAX_MISSING])} yet.")
    if view.changed:
        parts.append("Already changed: " + ", ".join(view.changed))
    if last:
        parts.append("\n".join(last))

    return "\n\n".join(parts)


def _files_to_show(task: str, view: TurnView, focus: Focus | None) -> dict[str, str]:
    """Return the files of the turn; after a check only those that the task names, and the one in focus last."""
    files = dict(view.files)
    if not focus or not view.evidence:
        return files

    focused = files.pop(focus.path)
    named = named_paths(task)
    files = {path: text for path, text in files.items() if path in named}
    files[focus.path] = focused
    return files


def _problems(view: TurnView, corrections: Sequence[Correction], missing: Sequence[str]) -> list[str]:
    """Return the last failures and the last correction; what checks found if there are none."""
    problems: list[str] = []
    for failure in view.failures[-2:]:
        is_about_missing = any(f"'{path}'" in failure for path in missing)
        if not is_about_missing:
            problems.append(failure)

    problems += [correction.prompt for correction in corrections[-1:]]
    return problems or list(view.evidence)


def shown_files(request: str, view: TurnView, failures: int) -> tuple[str, ...]:
    """Return the files that the next request shows: one to rewrite alone, or those of the turn."""
    task, _ = request_parts(request)
    rewrite = find_rewrite(task, view, failures)
    if rewrite and rewrite.alone:
        return (rewrite.path,)

    return tuple(view.files)


def _new_tests(task: str, view: TurnView) -> list[str]:
    """Return the new test file to write beside the shown ones; empty if it exists."""
    if view.changed or not asks_for_tests(task) or named_paths(task):
        return []

    tests = [path for path in view.files if IS_TEST.search(path)]
    code = [path for path in view.files if path not in tests and path.endswith(".py")]
    if len(code) != 1 or len(tests) != 1:
        return []

    path = posixpath.join(posixpath.dirname(tests[0]), f"test_{posixpath.basename(code[0])}")
    if path in tests:
        return []

    return [path]


def _how_to_answer(task: str, view: TurnView, missing: Sequence[str], focus: Focus | None, failures: int) -> str:
    """Return the last line of a request after a failure, which the model follows first."""
    is_repeated = failures > 1
    has_tried = bool(view.evidence) or bool(named_paths(task) and view.failures and not view.unchanged)
    is_work = asks_for_a_change(task) or reports_a_problem(task) or has_tried

    if is_question(task) or not is_work:
        return "Answer in one sentence." if is_repeated else "Answer in words."

    if missing:
        only = ", and nothing else" if is_repeated else ""
        return f"Answer with {missing[0]} and its whole text{only}."

    place = "the path of the file"
    subject = "what changes"
    if focus:
        place = focus.path
        subject = focus.name
    elif len(view.files) == 1:
        place = next(iter(view.files))

    line = f"Answer with {place} and the new text of {subject}."
    if not is_repeated:
        return line

    part = f" of {focus.name}" if focus else ""
    return f"Some line{part} has to change.\n{line}"


# --- The size of a request


def estimated_tokens(messages: Sequence[JsonMap], tools: Sequence[JsonMap] = ()) -> int:
    """Estimate the tokens of text messages and native tools."""
    tokens = sum(estimate_tokens(text_size(message["content"]), 1) for message in messages)
    if tools:
        tokens += estimate_tokens(text_size(json.dumps(tools)), 0)

    return tokens


def latest_turns(earlier: Sequence[JsonMap], most_tokens: int) -> list[JsonMap]:
    """Return the last messages that fit, starting at a user message."""
    messages = list(earlier)
    tokens = estimated_tokens(messages)
    is_cut = False

    while messages and (tokens > most_tokens or (is_cut and messages[0]["role"] != "user")):
        tokens -= estimated_tokens(messages[:1])
        messages.pop(0)
        is_cut = True

    return messages


def bounded_request(
    task: str, view: TurnView, render: Callable[[TurnView, Sequence[str]], str], most_tokens: int
) -> str:
    """Return `render(view, left_out)` with as much of the view as fits.

    Files that the task does not name are removed first, oldest first, then search results, then the file that was read
    last, then the files that the task names.
    """
    named = frozenset(named_paths(task))
    named_files = [path for path in view.files if path in named]
    other_files = [path for path in view.files if path not in named]
    removals: list[str | None] = [*other_files[:-1], None, *other_files[-1:], *named_files]
    text = render(view, ())
    left_out: list[str] = []

    for path in removals:
        if text_size(text) <= most_tokens * BYTES_PER_TOKEN:
            break

        if path is None:
            view = view.model_copy(update={"found": ()})
        else:
            left_out.append(path)
            files = {name: content for name, content in view.files.items() if name != path}
            view = view.model_copy(update={"files": files})

        text = render(view, left_out)

    return text
