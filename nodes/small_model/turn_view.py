"""The current turn as facts, derived from the history: it needs no state of its own, and survives a resume."""

import json
from collections.abc import Iterator, Mapping, Sequence

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from pydantic import Field

from mendgraph.nodes.language.history import RESULT_MESSAGE_NAME, is_request, json_map, last_request, starts_work
from mendgraph.nodes.language.names import paths_in_output, split_output
from mendgraph.nodes.language.read_ahead import MAX_SMALL_BYTES
from mendgraph.nodes.language.text_protocol import parse_text_results
from mendgraph.nodes.records import JsonMap, Record, ToolErrorCode
from mendgraph.nodes.small_model.excerpts import excerpt_of
from mendgraph.nodes.small_model.wording import is_question

FOUND_LIMIT = 2_000  # characters of one result that is not a file (a listing, search hits) in a rebuilt request
_REFUSALS = frozenset({ToolErrorCode.PERMISSION_DENIED, ToolErrorCode.APPROVAL_REQUIRED})
"""Error codes of refusals: by a rule, by a person, or because nobody could be asked."""
_UNKNOWN_FILE = frozenset({"", ToolErrorCode.NOT_FOUND, ToolErrorCode.CANCELLED, ToolErrorCode.LOOP_OVERRIDE})
"""Codes of a read that do not say that the file exists; a success has none."""


class TurnView(Record):
    """The facts of a turn.

    `files` maps paths to their newest known content, without files that were changed and not read again; `parts` says
    which lines of the large ones these are. `failures` are those of the last failed step until a change; reading a
    known file again is one of them. `failed_steps` counts such steps. `evidence` is pasted output and what checks found
    before the first change. `refused` says that something was not allowed, and `unchanged` that the last step only
    failed because it left a file as it was. `unreadable` is why files that exist were not read.
    """

    files: dict[str, str] = Field(default_factory=dict)
    parts: dict[str, str] = Field(default_factory=dict)
    found: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    failed_steps: int = 0
    refused: bool = False
    unchanged: bool = False
    unreadable: tuple[str, ...] = ()


def view_turn(history: Sequence[AnyMessage]) -> TurnView:
    """Summarise the messages after the last request of a person, and the output pasted into it."""
    request = last_request(history)
    turn = _Turn(request)
    _, output = request_parts(request)
    if output:
        turn.evidence.append(output)

    for message in other_agents_messages(history)[:1]:
        turn.messages.append(f"Said since: {message[:FOUND_LIMIT]}")

    for number, results in enumerate(_steps(history)):
        turn.add_step(number, results)

    return TurnView(
        files=turn.files,
        parts=turn.parts,
        found=(*turn.messages, *turn.search_results[-2:]),
        changed=tuple(turn.changed),
        evidence=tuple(turn.evidence),
        failures=tuple(turn.failures),
        failed_steps=turn.failed_steps,
        refused=turn.refused,
        unchanged=turn.unchanged,
        unreadable=tuple(turn.unreadable),
    )


class _Turn:
    """Collects the facts of a turn, step by step."""

    def __init__(self, request: str) -> None:
        self.request = request
        self.files: dict[str, str] = {}
        self.parts: dict[str, str] = {}
        self.messages: list[str] = []
        self.search_results: list[str] = []
        self.changed: dict[str, None] = {}
        self.evidence: list[str] = []
        self.failures: list[str] = []
        self.failed_steps = 0
        self.refused = False
        self.unchanged = False
        self.unreadable: list[str] = []

    def add_step(self, number: int, results: Sequence[JsonMap]) -> None:
        """Add the results of the calls of one reply; `number` counts from 0."""
        if number == 0:
            self.evidence += [_failure(result) for result in results if _is_evidence(result)]
            results = [result for result in results if not _is_evidence(result)]

        failures: list[str] = []
        causes: set[bool] = set()
        for result in results:
            if _code(result) in _REFUSALS:
                self.refused = True
            if result.get("tool") == "read_file" and _code(result) not in _UNKNOWN_FILE:
                self.unreadable.append(_failure(result))

            message = _failure(result)
            if message:
                failures.append(message)
                causes.add(_left_as_it_was(result))

        successes = [data for result in results if (data := _data(result))]
        for data in successes:
            failures += self._problems_of_success(number, data)

        has_changed = any(_is_change(data) for data in successes)
        self._count(failures, causes, progress=has_changed and not failures)
        for data in successes:
            self._add_result(data)

    def _problems_of_success(self, number: int, data: JsonMap) -> Iterator[str]:
        """Yield why a successful call has not moved the turn on: the next request must differ from the last one."""
        if _is_known(data, self.files):
            yield f"{data['path']} is shown above, as it is now."
        if number and data.get("matches") == []:
            yield "The search has found nothing."
        if data.get("changed") is False:
            yield f"{data['path']} is shown above: make the edit again."
        if "path" in data and data.get("syntax"):
            yield f"{data['path']} {data['syntax']}."

    def _count(self, failures: list[str], causes: set[bool], *, progress: bool) -> None:
        if progress:
            self.failures = []
            self.failed_steps = 0
        elif failures:
            self.failures = failures
            self.failed_steps += 1

        if failures:
            self.unchanged = causes == {True}

    def _add_result(self, data: JsonMap) -> None:
        path = data.get("path")
        content = data.get("content")

        if _is_change(data):
            self.changed[str(path)] = None
            self.files.pop(str(path), None)

        if isinstance(path, str) and isinstance(content, str):
            if "clipped" not in data:
                self._add_file(path, content, data)
        elif not _is_change(data) and "checks" not in data and data.get("matches") != []:
            self.search_results.append(_in_words(data)[:FOUND_LIMIT])

    def _add_file(self, path: str, content: str, data: JsonMap) -> None:
        """Add the content of a file, or of a page of it; of a large one the part that the request is about."""
        start = int(data.get("start_line") or 1)
        last = start + len(content.splitlines()) - 1
        is_part = start > 1 or bool(data.get("has_more"))

        if len(content.encode()) > MAX_SMALL_BYTES:
            excerpt = excerpt_of(content, self.request, path)
            first = excerpt.start_line - 1
            content = "\n".join(content.split("\n")[first : first + excerpt.limit])
            start += first
            last = start + excerpt.limit - 1
            is_part = True

        self.files[path] = content
        self.parts.pop(path, None)
        if is_part:
            self.parts[path] = f"lines {start} to {last}"


def request_parts(request: str) -> tuple[str, str]:
    """Split a request that is not a question into its words and its pasted output, shortened."""
    words, output = split_output(request)
    if not output or is_question(words):
        return request, ""

    failures = output.partition(" short test summary info ")[0].rstrip("=\n")  # the summary repeats them
    if paths_in_output(failures):
        output = failures

    return words or "Fix this.", first_lines(output, FOUND_LIMIT)


def first_lines(text: str, most: int) -> str:
    """Return the first lines that fit into this number of bytes."""
    data = text.encode(errors="replace")
    if len(data) <= most:
        return text

    return data[: max(0, most)].decode(errors="ignore").rpartition("\n")[0]


def other_agents_messages(history: Sequence[AnyMessage]) -> list[str]:
    """Return what other agents said between the last request and the hand-off, the latest first."""
    lines: list[str] | None = None

    for message in reversed(history):
        if is_request(message):
            break

        if lines is None and starts_work(message):
            lines = []
        elif lines is not None and isinstance(message, AIMessage) and not message.tool_calls and message.text.strip():
            lines.append(message.text)

    return lines or []


def used_tools(history: Sequence[AnyMessage]) -> set[str]:
    """Return the names of tools with a successful call in this turn."""
    tools: set[str] = set()
    for results in _steps(history):
        tools.update(str(result.get("tool")) for result in results if result.get("ok"))

    return tools


def _steps(history: Sequence[AnyMessage]) -> Iterator[list[JsonMap]]:
    """Yield the results of each reply since the turn's request."""
    start = 0
    for index, message in enumerate(history):
        if starts_work(message):
            start = index

    native: list[JsonMap] = []
    for message in history[start:]:
        if isinstance(message, ToolMessage):
            native.append({"ok": message.status != "error", **json_map(message.text), "tool": message.name})
            continue

        if native:
            yield native
            native = []

        if isinstance(message, HumanMessage) and message.name == RESULT_MESSAGE_NAME:
            yield parse_text_results(message.text)

    if native:
        yield native


def _data(result: JsonMap) -> JsonMap:
    data = result.get("data")
    if result.get("ok") and isinstance(data, dict):
        return data
    return {}


def _in_words(data: JsonMap) -> str:
    entries = data.get("entries")
    matches = data.get("matches")
    if isinstance(entries, list):
        return "The workspace has: " + ", ".join(map(str, entries))
    if isinstance(matches, list) and matches and all(isinstance(match, dict) for match in matches):
        return "\n".join(f"{m.get('path')}, line {m.get('line')}: {str(m.get('text', '')).strip()}" for m in matches)

    return json.dumps(data, ensure_ascii=False)


def _failure(result: JsonMap) -> str:
    """Return what the model must know of a failed call; nothing for a call cancelled because of another."""
    error = result.get("error")
    if not isinstance(error, dict) or error.get("code") == ToolErrorCode.CANCELLED:
        return ""
    if error.get("code") == ToolErrorCode.LOOP_OVERRIDE:  # whose advice, to do something else, is for the other forms
        return "This was tried before."

    return str(error.get("message") or "")


def _left_as_it_was(result: JsonMap) -> bool:
    failed_answer = result.get("tool") == "final_answer" and _code(result) == ToolErrorCode.CHECK_FAILED
    return failed_answer or _code(result) == ToolErrorCode.UNCHANGED


def _is_evidence(result: JsonMap) -> bool:
    """Return whether checks found something before the turn changed anything."""
    return result.get("tool") == "run_checks" and _code(result) == ToolErrorCode.CHECK_FAILED


def _code(result: JsonMap) -> str:
    error = result.get("error")
    if isinstance(error, dict):
        return str(error.get("code"))
    return ""


def _is_known(data: JsonMap, files: Mapping[str, str]) -> bool:
    """Return whether this read a file again with the same content."""
    path = data.get("path")
    return isinstance(path, str) and path in files and files[path] == data.get("content") and not _is_change(data)


def _is_change(data: JsonMap) -> bool:
    return "path" in data and not data.keys().isdisjoint({"action", "replacements"})
