"""What a turn begins with: its resources, the channels that are emptied, and the history that its model is shown.

That history is without secrets and without content that the model does not take, and holds what the calls of a step
came to that was cut off before the new request. Files that a request names are read before the model is asked.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from math import log
from types import MappingProxyType
from typing import Any, Protocol as Interface

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from typing_extensions import TypedDict

from mendgraph.nodes.language.display import listed
from mendgraph.nodes.language.documents import storable
from mendgraph.nodes.language.history import (
    HANDOFF_MESSAGE_NAME,
    close_dangling_calls,
    is_request,
    media_problem,
    settle_exchange,
    without_media,
)
from mendgraph.nodes.language.names import (
    IS_TEST,
    TEXT_SUFFIXES,
    asks_for_a_change,
    asks_for_tests,
    is_question,
    named_identifiers,
    named_paths,
    reports_a_problem,
    speaks_of_failing_tests,
)
from mendgraph.nodes.language.project_notes import ProjectNotes, SkillFolder, find_notes, find_skills, remembered
from mendgraph.nodes.records import (
    CallError,
    CallResult,
    EditForm,
    JsonMap,
    LoopRecord,
    ModelReply,
    Outcome,
    Plan,
    Profile,
    RawCall,
    Reading,
    ToolCall,
    ToolError,
    ToolErrorCode,
    ToolResult,
    ToolSpec,
    Verdict,
)

FRESH_TURN: Mapping[str, Any] = MappingProxyType(
    {
        "preload": None,
        "reply": None,
        "reading": None,
        "items": [],
        "errors": [],
        "answer": None,
        "verdicts": [],
        "results": [],
        "corrections": [],
        "healing_attempts": [],
        "loop": LoopRecord(),
        "stop": None,
        "outcome": None,
    }
)
"""The channels that last as long as a turn, at their start; `changes`, to which nodes add, is replaced besides."""


class Files(Interface):
    """The workspace as far as a turn looks at it before the model is asked."""

    def exists(self, path: str) -> bool:
        """Whether there is such a file, which a model may read."""

    def size_of(self, path: str) -> int:
        """Its bytes."""

    def readable(self) -> Iterable[tuple[str, int]]:
        """All files with their sizes in bytes."""

    def head(self, path: str, most: int) -> bytes | ToolError | None:
        """The first bytes of a file; None where there is none, or why it is not read."""


Made = tuple[Mapping[int, CallResult], Mapping[str, str]]
"""What the calls of a cut-off step came to: results by their places, and the hashes of files read or written."""


@dataclass(frozen=True)
class TurnResources:
    """What a turn begins with.

    `problem` is what is wrong with the run's context; it ends the run here, as a missing request does, and then there
    need be no `files`. `replace` marks what takes a channel's place, instead of adding to it. `refused_media` says what
    a message holds that the model does not take; `calls_made` what became of the calls of a step that was cut off.
    `most_notes` are the bytes that the model is told of the project's notes, and half of it those of skills. `tell`
    gives an event to who listens.
    """

    profile: Profile
    problem: str | None
    replace: Callable[[Any], Any]
    scrub: Callable[[str], str]
    files: Files | None
    root: str = ""
    model_name: Callable[[], str] = str
    refused_media: Callable[[AnyMessage], list[str]] = lambda _: []
    calls_made: Callable[[list[ToolCall | CallError]], Made] = lambda _: ({}, {})
    specs: Mapping[str, ToolSpec] = field(default_factory=dict)
    read_ahead: bool = False
    checked: bool = False
    most_notes: int = 0
    skills: Iterable[SkillFolder] = ()
    remembered: Sequence[str] = ()
    tell: Callable[[str, JsonMap], None] = lambda _name, _payload: None


HANDED_ON = "This is handed to you now: work on the person's last request, with what was said since."
NOT_RUN = "The run was cut off before this call, which has not been made."


class BeginTurnState(TypedDict, total=False):
    """What the node reads. The `items` are empty once they are settled, the `outcome` None until a turn ends."""

    messages: list[AnyMessage]
    plan: Plan
    notes: tuple[ProjectNotes, ...]
    outcome: Outcome | None
    structured_response: Any
    reading: Reading | None
    reply: ModelReply | None
    items: list[ToolCall | CallError]
    verdicts: list[Verdict]
    results: list[CallResult]
    profile: Profile


def cut_off_items(state: BeginTurnState) -> list[ToolCall | CallError]:
    """The calls of the last turn that are in no history yet, in the order of the reply."""
    waiting = state.get("outcome") is None and state.get("reading") is Reading.CALLS
    return state.get("items", []) if waiting else []


def close_step(
    messages: Sequence[AnyMessage],
    state: BeginTurnState,
    known: Mapping[int, CallResult],
    specs: Mapping[str, ToolSpec],
    root: str,
) -> list[AnyMessage]:
    """The history with the cut-off step before the new request, which is the last message.

    `known` are the results of calls that were made, by their places; the others get a typed `cancelled` result.
    `specs` and `root` are those of `settle_exchange`.
    """
    items, settled, before = cut_off_items(state), state.get("results", []), place_of_request(messages)
    not_run = ToolResult.failure(ToolErrorCode.CANCELLED, NOT_RUN)
    results = [
        settled[place]
        if place < len(settled)
        else known.get(place) or CallResult(call_id=item.call_id, tool=item.tool, result=not_run)
        for place, item in enumerate(items)
    ]
    reply, profile = state.get("reply") or ModelReply(), state.get("profile") or Profile()
    exchange = settle_exchange(reply, items, results, profile.protocol, specs, root) if items else []
    return [*messages[:before], *exchange, *messages[before:]]


def place_of_request(messages: Sequence[AnyMessage]) -> int:
    """The place of the last person's message, which is the request; -1 where there is none."""
    return next((place for place in range(len(messages) - 1, -1, -1) if is_request(messages[place])), -1)


def is_answered(messages: Sequence[AnyMessage], outcome: Outcome | None) -> bool:
    """Whether nothing was said since the thread's last turn: its own last words are the last message."""
    if outcome is None or not messages or not isinstance(messages[-1], AIMessage):
        return False
    said = messages[-1].text
    return said == (outcome.answer or "Done.") or said.startswith(f"{outcome.kind.value} (")


def handed_on(messages: Sequence[AnyMessage]) -> list[AnyMessage] | None:
    """The history as a model can go on with it; None where it is that already.

    Each call has its result. Where others spoke last, a message says that it is our model's turn, and ends their part.
    """
    repaired = close_dangling_calls(messages)
    if is_request(messages[-1]):
        return repaired
    return [*(repaired or messages), HumanMessage(HANDED_ON, name=HANDOFF_MESSAGE_NAME)]


def without_refused_media(
    messages: Sequence[AnyMessage], using: TurnResources
) -> tuple[str | None, Sequence[AnyMessage]]:
    """Why the request cannot be shown to its model, None where it can; and the messages without such content.

    Else one image would keep a thread from ever going on.
    """
    refused = [using.refused_media(each) for each in messages]
    if not any(refused):
        return None, messages
    problem = media_problem(refused[place_of_request(messages)], using.model_name())
    return problem or None, [without_media(each, kinds) for each, kinds in zip(messages, refused, strict=True)]


def scrubbed(messages: Sequence[AnyMessage], text: Callable[[str], str]) -> list[AnyMessage] | None:
    """All messages with `text` applied to what people said, half characters replaced; None where nothing changes.

    What models and tools said was scrubbed when it came in.
    """
    clean = [_scrubbed(message, text) if isinstance(message, HumanMessage) else message for message in messages]
    return clean if any(new is not old for new, old in zip(clean, messages, strict=True)) else None


def _scrubbed(message: HumanMessage, text: Callable[[str], str]) -> HumanMessage:
    def clean(part: Any) -> Any:
        if isinstance(part, str):
            return text(storable(part))
        return {**part, "text": clean(part["text"])} if isinstance(part.get("text"), str) else part

    content = message.content
    content = clean(content) if isinstance(content, str) else [clean(part) for part in content]
    return message if content == message.content else message.model_copy(update={"content": content})


# --- Which files a request is about


MAX_NAMED_FILES = 5
"""More files than this would fill a small model's window."""

MAX_FEW_BYTES = 6_000
"""About 2,000 tokens, a quarter of a small model's window."""

MAX_SMALL_BYTES, MAX_BYTES = 12_000, 60_000
"""Of all files that are read ahead, for a small model (half of its window, about 4,000 tokens) and for others."""

MAX_NAMES = 3
"""Names in code that are searched for; each may have many hits."""


def few_files(files: Iterable[tuple[str, int]]) -> list[str]:
    """All text files of a small workspace, for a request that names none; nothing where there are too many.

    `files` gives paths and sizes in bytes; no more of it is taken than it needs to see that a workspace is not small.
    """
    text = ((path, size) for path, size in files if path.rpartition(".")[2].lower() in TEXT_SUFFIXES)
    seen = list(islice(text, MAX_NAMED_FILES + 1))
    small = len(seen) <= MAX_NAMED_FILES and sum(size for _, size in seen) <= MAX_FEW_BYTES
    return [path for path, _ in seen] if small else []


MOST_LOOKED_AT = 300
"""Files of a workspace among which those are looked for that a request does not name by their whole path."""

MOST_RELATED = 3
"""Files that are shown to a question that names none. Of several files a small model changes the wrong one or all."""

_NAMES = re.compile(r"[^\W\d]\w*")
_QUOTED = re.compile(r"[\"'`]([^\"'`\n]{2,60})[\"'`]")
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_STEM = 6
"""Letters by which words are compared: quantity and quantities are the same."""
_FILLERS = re.compile(
    "and|any|are|but|can|does|for|from|has|have|how|instea|into|its|not|one|please|should|some|that|the|then|there"
    "|this|was|what|when|where|which|will|with|you"
)
_PROSE = (".md", ".txt", ".toml", ".json", ".cfg", ".ini", ".yaml", ".yml")


def meant_files(request: str, files: Files) -> tuple[list[str], list[str]]:
    """What a request that names no file is about: files to show, the likeliest one last, and tests to run.

    Those are all code, where tests are said to fail; what is to be tested, and a test to imitate; or the files that
    speak most of what the request speaks of. Nothing in a large workspace.
    """
    every = list(islice(files.readable(), MOST_LOOKED_AT + 1))
    if len(every) > MOST_LOOKED_AT:
        return [], []
    text = [path for path, size in every if size and path.rpartition(".")[2].lower() in TEXT_SUFFIXES]
    tests = [path for path in text if IS_TEST.search(path)]
    code = [path for path in text if not path.endswith(_PROSE) and path not in tests]
    if speaks_of_failing_tests(request):
        return _within(code, files.size_of, MAX_FEW_BYTES), tests[:MAX_NAMED_FILES]
    if asks_for_tests(request) and (tested := _related(request, code, files)[-1:]):
        stem = tested[0].rpartition("/")[2].partition(".")[0]
        likely = sorted(tests, key=lambda path: stem not in path.rpartition("/")[2])
        return [*_within(likely, files.size_of, MAX_FEW_BYTES)[:1], *tested], []
    related = (_related(request, paths, files) for paths in (code, tests, text))
    return next(filter(None, related), []), []


def _related(request: str, paths: Sequence[str], files: Files) -> list[str]:
    """Those of the files that speak most of what a request speaks of, the best one last.

    A word counts the more the fewer files have it, and twice in a file's name; so does what is quoted, as a string.
    """
    quoted = _QUOTED.findall(request)
    held: dict[str, Counter[str]] = {}
    for path in paths:
        text = _text(files.head(path, MAX_FEW_BYTES))
        strings = [each for each in quoted if f'"{each}"' in text or f"'{each}'" in text]
        held[path] = Counter(_words(f"{path} {text}") + strings)
    having, asked = Counter(chain.from_iterable(held.values())), {*_words(request), *quoted}

    def weight(path: str) -> tuple[float, int]:
        shared, name = asked & held[path].keys(), _words(path.rpartition("/")[2])
        worth = sum((1 + (word in name)) * log(1 + len(paths) / having[word]) for word in shared)
        return worth, sum(held[path][word] for word in shared)

    best = sorted((path for path in paths if asked & held[path].keys()), key=weight, reverse=True)
    most = MOST_RELATED if is_question(request) else 1
    return _within(best, files.size_of, MAX_FEW_BYTES)[:most][::-1]


def _words(text: str) -> list[str]:
    """The words of a text or a name, without those that say nothing."""
    found = (word.lower()[:_STEM] for word in _WORD.findall(text))
    return [word for word in found if len(word) > 2 and not _FILLERS.fullmatch(word)]


def located(paths: Iterable[str], files: Files) -> Iterator[str]:
    """The files that a request means by these paths: by its whole path, or else the only one of this name anywhere."""
    known: list[str] | None = None
    for path in paths:
        if files.exists(path):
            yield path
            continue
        if known is None:
            known = [each for each, _ in islice(files.readable(), MOST_LOOKED_AT)]
        same = [each for each in known if each.endswith(f"/{path}")]
        yield from same[:1] if len(same) == 1 else ()


def preload(request: str, profile: Profile, files: Files, *, checked: bool = False) -> ModelReply | None:
    """The calls that are made before the model is asked, as a reply; None where there are none.

    Files that the request names are read, and with `checked` their code is checked. In the block form, whose requests
    show files and no conversation, a request that names none is about those that it seems to mean. Where there are
    none, the names in code that it speaks of are searched for, or else the workspace is listed. A request that is
    nothing but the new name of a definition is carried out: there is nothing left to ask a model.
    """
    named = list(dict.fromkeys(located(named_paths(request), files)))[:MAX_NAMED_FILES]
    shown = _within(named, files.size_of, MAX_SMALL_BYTES if profile.small else MAX_BYTES)
    if profile.edit_form is not EditForm.BLOCKS:
        return read_ahead(shown) if shown else None
    if made := _renamed(request, files):
        return made
    asked, tests = is_question(request), list[str]()
    if asked or (not shown and (asks_for_a_change(request) or reports_a_problem(request))):
        few = few_files(files.readable())
        meant, tests = (few, []) if few or shown else meant_files(request, files)
        shown = [*(path for path in meant if path not in shown), *shown][-MAX_NAMED_FILES:]
    code = [path for path in shown if path.endswith((".py", ".pyi"))] if checked and not asked else []
    names = [] if shown else named_identifiers(request)[:MAX_NAMES]
    return read_ahead(shown, [*code, *tests] if checked else [], names)


_NAME = r"(?:the )?(?:function |class |method )?[`'\"]?([^\W\d]\w*)[`'\"]?(?:\(\))?"
_ONLY_A_RENAME = re.compile(
    rf"(?:please[ ,]+)?rename {_NAME} to {_NAME},?"
    r"(?: everywhere| in all files| in the (?:whole )?project)(?:[ ,]+please)?[.!]?",
    re.IGNORECASE,
)
_DEFINED = re.compile(r"\b(?:def|class|function|func|fn|const|let|var|type|struct)\s+([^\W\d]\w*)")


def _renamed(request: str, files: Files) -> ModelReply | None:
    """The calls that give a definition its new name in all files; None where more is asked, or a name is not clear."""
    match = _ONLY_A_RENAME.fullmatch(request.strip())
    every = dict(islice(files.readable(), MOST_LOOKED_AT + 1)) if match else {}
    if match is None or len(every) > MOST_LOOKED_AT or sum(every.values()) > MAX_BYTES:
        return None
    old, new = match.groups()
    texts = {path: _text(files.head(path, MAX_BYTES)) for path in every}
    words = {path: {*_NAMES.findall(text)} for path, text in texts.items()}
    having = [path for path in texts if old in words[path]]
    defined = [name for path in having for name in _DEFINED.findall(texts[path])]
    if defined.count(old) != 1 or any(new in each for each in words.values()):
        return None
    patch = ["*** Begin Patch"]
    for path in having:
        patch += [f"*** Update File: {path}", "@@"]
        for line in texts[path].splitlines():
            now = _NAMES.sub(lambda name: new if name[0] == old else name[0], line)
            patch += [f" {line}"] if now == line else [f"-{line}", f"+{now}"]
    answer = f"Renamed {old} to {new} in {listed(having)}."
    patched = {"patch": "\n".join([*patch, "*** End Patch"])}
    return _made([("apply_patch", patched), ("final_answer", {"answer": answer})])


def _text(data: object) -> str:
    return data.decode(errors="surrogateescape") if isinstance(data, bytes) else ""


def _within(paths: Sequence[str], size_of: Callable[[str], int], most: int) -> list[str]:
    """Those of these files that fit together into so many bytes, the first ones first; the model may ask for others."""
    kept: list[str] = []
    for path in paths:
        size = size_of(path)
        if size <= most:
            most -= size
            kept.append(path)
    return kept


def read_ahead(paths: Sequence[str], checked: Sequence[str] = (), names: Sequence[str] = ()) -> ModelReply:
    """The reply that reads these files, checks some and searches for names, or lists the workspace for want of all."""
    calls: list[tuple[str, dict[str, Any]]] = [("read_file", {"path": path}) for path in paths]
    if checked:
        calls.append(("run_checks", {"paths": list(checked)}))
    if names:
        calls.append(("search_files", {"pattern": "|".join(rf"\b{name}\b" for name in names)}))
    return _made(calls or [("list_files", {"path": "."})])


def _made(calls: Iterable[tuple[str, Mapping[str, Any]]]) -> ModelReply:
    raw = [(tool, json.dumps(arguments, ensure_ascii=False)) for tool, arguments in calls]
    return ModelReply(
        calls=tuple(RawCall(call_id=f"ahead_{at}", tool=tool, arguments=text) for at, (tool, text) in enumerate(raw)),
        preloaded=True,
    )


def read_notes(known: Sequence[ProjectNotes], request: str, files: Files, using: TurnResources) -> dict[str, Any]:
    """What the project's notes say as this turn begins; nothing where they say what the turn before knows."""
    notes, unread = find_notes(request, files.head, using.scrub, using.most_notes)
    skills, left_out = find_skills(using.skills, using.scrub, using.most_notes // 2)
    notes = (*notes, *remembered([using.scrub(each) for each in using.remembered]), *skills)
    for path, reason in (*unread, *left_out):
        using.tell("notes.unread", {"path": path, "reason": reason})
    if notes == tuple(known):
        return {}
    if notes:
        using.tell(
            "notes.read", {"files": [{"path": e.path, "lines": len(e.text.splitlines()), "cut": e.cut} for e in notes]}
        )
    return {"notes": notes}
