"""What is done before the model is asked: files that a request is about are read, checked, or searched for names.

A request that is nothing but the new name of a definition is carried out.
"""

import builtins
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from keyword import kwlist
from math import log
from typing import Any, Protocol as Interface

from mendgraph.nodes.language.display import listed
from mendgraph.nodes.language.names import (
    IS_TEST,
    TEXT_SUFFIXES,
    asks_for_a_change,
    asks_for_tests,
    is_question,
    named_identifiers,
    named_paths,
    orders_a_change,
    reports_a_problem,
    speaks_of_failing_tests,
    told_paths,
    without_output,
)
from mendgraph.nodes.records import EditForm, ModelReply, Profile, RawCall, ToolError


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
    words_by_file: dict[str, Counter[str]] = {}

    for path in paths:
        text = _text(files.head(path, MAX_FEW_BYTES))
        strings = [string for string in quoted if f'"{string}"' in text or f"'{string}'" in text]
        words_by_file[path] = Counter(_words(f"{path} {text}") + strings)

    having = Counter(chain.from_iterable(words_by_file.values()))
    sought = {*_words(request), *quoted}

    def weight(path: str) -> tuple[float, int]:
        shared = sought & words_by_file[path].keys()
        name = _words(path.rpartition("/")[2])
        worth = sum((1 + (word in name)) * log(1 + len(paths) / having[word]) for word in shared)

        return worth, sum(words_by_file[path][word] for word in shared)

    best = sorted((path for path in paths if sought & words_by_file[path].keys()), key=weight, reverse=True)
    most = MOST_RELATED if is_question(request) else 1
    return _within(best, files.size_of, MAX_FEW_BYTES)[:most][::-1]


def _words(text: str) -> list[str]:
    """The words of a text or a name, without those that say nothing."""
    stems = (word.lower()[:_STEM] for word in _WORD.findall(text))
    return [word for word in stems if len(word) > 2 and not _FILLERS.fullmatch(word)]


def located(paths: Iterable[str], files: Files) -> Iterator[str]:
    """The files that a request means by these paths: by its whole path, or else the only one of this name anywhere."""
    readable: list[str] | None = None

    for path in paths:
        if files.exists(path):
            yield path
            continue

        if readable is None:
            readable = [each for each, _ in islice(files.readable(), MOST_LOOKED_AT)]

        same = [each for each in readable if each.endswith(f"/{path}")]
        yield from same[:1] if len(same) == 1 else ()


def preload(
    request: str, profile: Profile, files: Files, *, checked: bool = False, before: Sequence[str] = ()
) -> ModelReply | None:
    """The calls that are made before the model is asked, as a reply; None where there are none.

    Files that the request names are read, and those that pasted output speaks of, and with `checked` their code is
    checked. In the block form, whose requests show files and no conversation, a request that names none is about those
    that the turn before worked on (`before`), or about those that it seems to mean. Where there are none, the names in
    code that it speaks of are searched for, or else the workspace is listed. A request that is nothing but the new name
    of a definition is carried out: there is nothing left to ask a model.
    """
    words, output = without_output(request)
    spoken = [*located(named_paths(words), files)]
    named_in_output = [*located(reversed(told_paths(output)), files)]
    named = list(dict.fromkeys([*spoken, *named_in_output]))[:MAX_NAMED_FILES]
    small_enough = _within(named, files.size_of, MAX_SMALL_BYTES if profile.small else MAX_BYTES)

    if output:
        small_enough.reverse()  # the likeliest one last

    if profile.edit_form is not EditForm.BLOCKS:
        return read_ahead(small_enough) if small_enough else None
    if renamed_file := _renamed(request, files):
        return renamed_file

    is_asked = is_question(words)
    tests = list[str]()
    is_work = bool(output) or asks_for_a_change(request) or reports_a_problem(request)
    earlier = _within([path for path in before if files.exists(path)], files.size_of, MAX_FEW_BYTES)

    if is_work and not is_asked and all(map(IS_TEST.search, small_enough)):
        small_enough += (
            earlier if output or not orders_a_change(words) else []
        )  # a new order may be about something else

    if is_asked or (not small_enough and is_work):
        few = few_files(files.readable())
        meant, tests = (few, []) if few or small_enough else meant_files(request, files)
        small_enough = [*(path for path in meant if path not in small_enough), *small_enough][
            -MAX_NAMED_FILES:
        ] or earlier

    if checked and not is_asked:
        code = [path for path in small_enough if path.endswith((".py", ".pyi"))]
    else:
        code = []

    names = [] if small_enough else named_identifiers(request)[:MAX_NAMES]
    return read_ahead(small_enough, [*code, *tests] if checked else [], names)


_NAME = r"(?:the )?(?:function |class |method )?(?!everywhere\b)[`'\"]?([^\W\d]\w*)[`'\"]?(?:\(\))?"
_FILE = r"[`'\"]?([\w./-]+\.\w+)[`'\"]?"
_ONLY_A_RENAME = re.compile(
    rf"(?:please[ ,]+)?rename {_NAME}(?: in {_FILE})? to {_NAME},?"
    rf"(?: everywhere| in all files| in the (?:whole )?project| in {_FILE})?(?:[ ,]+please)?[.!]?",
    re.IGNORECASE,
)
_DEFINED = re.compile(r"\b(?:def|class|function|func|fn|const|let|var|type|struct)\s+([^\W\d]\w*)")

_OWN = frozenset({"self", "cls", "this", "exports"})
_TAKEN = {*dir(builtins), *kwlist}
_BESIDE = frozenset({*kwlist, "", "const", "extends", "export", "function", "let", "new", "of", "typeof", "var"})
"""What stands beside a name in code; beside other words it is one of them."""


def _renamed(request: str, files: Files) -> ModelReply | None:
    """The calls that give a definition its new name in all files; None where more is asked, or a name is not clear."""
    match = _ONLY_A_RENAME.fullmatch(request.strip())
    if match:
        every = dict(islice(files.readable(), MOST_LOOKED_AT + 1))
    else:
        every = {}

    if match is None or len(every) > MOST_LOOKED_AT or sum(every.values()) > MAX_BYTES:
        return None

    old, place, new, also = match.groups()
    texts = {path: _text(files.head(path, MAX_BYTES)) for path in every}
    words = {path: {*_NAMES.findall(text)} for path, text in texts.items()}
    having = [path for path in texts if old in words[path]]
    holders = [path for path in having for name in _DEFINED.findall(texts[path]) if name == old]

    if len(holders) != 1 or any(new in word for word in words.values()) or {old, new} & _TAKEN:
        return None
    if not {place, also} - {None} <= {holders[0], holders[0].rpartition("/")[2]}:
        return None

    owners = _OWN.union(*(re.split(r"[/.]", path) for path in every))
    if any(_may_be_another(old, texts[path], owners) for path in having):
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


def _may_be_another(name: str, text: str, owners: frozenset[str]) -> bool:
    """Whether the name may be that of something else here: an attribute, an import, a variable, a string, a usual word.

    `owners` are modules and packages of the workspace, whose attribute or import the definition is.
    """
    attributes = re.findall(rf"(?<!\w)(\w*)\W?\.{name}\b", text)
    imports = re.findall(rf"\bfrom[ \t]+[\w.]*?(\w+)[ \t]+import\b(?:[^\n(]*|[ \t]*\([^)]*)\b{name}\b", text)
    set_anew = re.search(rf"\b{name}\s*(?:=(?!=)|:\s)", _DEFINED.sub("", text))
    quoted = "__all__" not in text and re.search(rf"(['\"]){name}\1", text)

    if _WORD.fullmatch(name):
        beside = re.findall(rf"(?<!\w)(\w*) {name}\b(?: (\w*))?", _DEFINED.sub("", text))
    else:
        beside = []

    usual = {*chain.from_iterable(beside)} - _BESIDE
    return not owners >= {*attributes, *imports} or bool(set_anew or quoted or usual)


def _text(data: object) -> str:
    if isinstance(data, bytes):
        return data.decode(errors="surrogateescape")
    return ""


def _within(paths: Sequence[str], size_of: Callable[[str], int], most: int) -> list[str]:
    """Those of these files that fit together into so many bytes, the first ones first; the model may ask for others."""
    parts: list[str] = []

    for path in paths:
        size = size_of(path)
        if size <= most:
            most -= size
            parts.append(path)

    return parts


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
