"""The machine's calls before the first model call: read, check or search the files that a request is about.

A request that only renames a definition is carried out without the model.
"""

import builtins
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from keyword import kwlist
from math import log

from mendgraph.nodes.language.display import listed
from mendgraph.nodes.language.names import IS_TEST, TEXT_SUFFIXES, named_identifiers, split_output
from mendgraph.nodes.language.read_ahead import (
    MAX_BYTES,
    MAX_NAMED_FILES,
    MAX_SMALL_BYTES,
    MOST_LOOKED_AT,
    Files,
    files_within,
    named_files,
    preloaded_reply,
    read_ahead,
)
from mendgraph.nodes.records import ModelReply
from mendgraph.nodes.small_model.wording import (
    asks_for_a_change,
    asks_for_tests,
    is_question,
    orders_a_change,
    reports_a_problem,
    speaks_of_failing_tests,
)

MAX_FEW_BYTES = 6_000
"""About 2,000 tokens, a quarter of a small model's window."""

MAX_NAMES = 3
"""The maximum number of identifiers that are searched for."""


def few_files(files: Iterable[tuple[str, int]]) -> list[str]:
    """Return all text files of a small workspace; empty if there are too many.

    `files` yields paths and sizes in bytes, and is consumed only until the limit is reached.
    """
    text = ((path, size) for path, size in files if path.rpartition(".")[2].lower() in TEXT_SUFFIXES)
    seen = list(islice(text, MAX_NAMED_FILES + 1))
    small = len(seen) <= MAX_NAMED_FILES and sum(size for _, size in seen) <= MAX_FEW_BYTES

    return [path for path, _ in seen] if small else []


MOST_RELATED = 3
"""Files that are shown for a question that names none. Of several, a small model changes the wrong one or all."""

_NAMES = re.compile(r"[^\W\d]\w*")
_QUOTED = re.compile(r"[\"'`]([^\"'`\n]{2,60})[\"'`]")
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_STEM = 6
"""Letters that are compared: quantity and quantities are the same word."""
_FILLERS = re.compile(
    "and|any|are|but|can|does|for|from|has|have|how|instea|into|its|not|one|please|should|some|that|the|then|there"
    "|this|was|what|when|where|which|will|with|you"
)
_PROSE = (".md", ".txt", ".toml", ".json", ".cfg", ".ini", ".yaml", ".yml")


def likely_files(request: str, files: Files) -> tuple[list[str], list[str]]:
    """Return the files for a request that names none, the likeliest last, and the tests to run.

    If tests fail: all code. If tests are requested: the code and an existing test to imitate. Otherwise the files that
    share most words with the request. Empty in a large workspace.
    """
    every = list(islice(files.readable(), MOST_LOOKED_AT + 1))
    if len(every) > MOST_LOOKED_AT:
        return [], []

    text = [path for path, size in every if size and path.rpartition(".")[2].lower() in TEXT_SUFFIXES]
    tests = [path for path in text if IS_TEST.search(path)]
    code = [path for path in text if not path.endswith(_PROSE) and path not in tests]

    if speaks_of_failing_tests(request):
        return files_within(code, files.size_of, MAX_FEW_BYTES), tests[:MAX_NAMED_FILES]

    if asks_for_tests(request) and (tested := _related(request, code, files)[-1:]):
        stem = tested[0].rpartition("/")[2].partition(".")[0]
        likely = sorted(tests, key=lambda path: stem not in path.rpartition("/")[2])
        return [*files_within(likely, files.size_of, MAX_FEW_BYTES)[:1], *tested], []

    related = (_related(request, paths, files) for paths in (code, tests, text))
    return next(filter(None, related), []), []


def _related(request: str, paths: Sequence[str], files: Files) -> list[str]:
    """Return the files that share most words with a request, the best one last.

    Rare words weigh more; words in a file's name count twice, and so do quoted strings.
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
    return files_within(best, files.size_of, MAX_FEW_BYTES)[:most][::-1]


def _words(text: str) -> list[str]:
    """Return the words of a text or a name, without stop words."""
    stems = (word.lower()[:_STEM] for word in _WORD.findall(text))
    return [word for word in stems if len(word) > 2 and not _FILLERS.fullmatch(word)]


def preload(
    request: str,
    files: Files,
    *,
    most_bytes: int = MAX_SMALL_BYTES,
    checked: bool = False,
    before: Sequence[str] = (),
) -> ModelReply:
    """Return the calls before the first model call, as a reply.

    Files that the request names are read, and with `checked` their code is checked. If it names none, the files of the
    previous turn (`before`) are read, or those that share most words with it; else its identifiers are searched for, or
    the workspace is listed. A request that only renames a definition is carried out.
    """
    renaming = _renamed(request, files)
    if renaming:
        return renaming

    words, output = split_output(request)
    paths = named_files(request, files, most_bytes)
    tests: list[str] = []
    is_asked = is_question(words)
    is_work = bool(output) or asks_for_a_change(request) or reports_a_problem(request)
    earlier = files_within([path for path in before if files.exists(path)], files.size_of, MAX_FEW_BYTES)

    # A new order may be about other files than the turn before.
    goes_on = bool(output) or not orders_a_change(words)
    if is_work and not is_asked and goes_on and all(IS_TEST.search(path) for path in paths):
        paths += earlier

    if is_asked or (not paths and is_work):
        meant = few_files(files.readable())
        if not meant and not paths:
            meant, tests = likely_files(request, files)

        others = [path for path in meant if path not in paths]
        paths = [*others, *paths][-MAX_NAMED_FILES:] or earlier

    names = [] if paths else named_identifiers(request)[:MAX_NAMES]
    if not checked:
        return read_ahead(paths, names=names)

    code = [path for path in paths if path.endswith((".py", ".pyi"))]
    if is_asked:
        code = []

    return read_ahead(paths, [*code, *tests], names)


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
"""Characters beside an identifier in code."""


def _renamed(request: str, files: Files) -> ModelReply | None:
    """Return the calls that rename a definition in all files; None if the request asks more, or a name is ambiguous."""
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
    return preloaded_reply([("apply_patch", patched), ("final_answer", {"answer": answer})])


def _may_be_another(name: str, text: str, owners: frozenset[str]) -> bool:
    """Return whether the name may mean something else: an attribute, an import, a variable, a string, a word.

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
