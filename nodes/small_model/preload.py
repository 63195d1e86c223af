"""The machine's calls before the first model call: read, check or search the files that a request is about.

A request that only renames a definition is carried out without the model.
"""

import builtins
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set as AbstractSet
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
    all_named_files,
    files_within,
    named_files,
    preloaded_reply,
    read_ahead,
)
from mendgraph.nodes.records import ModelReply
from mendgraph.nodes.small_model.excerpts import MOST_BYTES, excerpt_of
from mendgraph.nodes.small_model.wording import (
    WORD,
    asks_for_a_change,
    asks_for_tests,
    content_words,
    is_question,
    orders_a_change,
    reports_a_problem,
    speaks_of_failing_tests,
)

MAX_FEW_BYTES = 6_000
"""About 2,000 tokens, a quarter of a small model's window."""

MAX_SEARCHED_BYTES = 1_000_000
"""The part of a large file in which the lines for a request are searched."""

MAX_NAMES = 3
"""The maximum number of identifiers that are searched for."""


def few_files(files: Iterable[tuple[str, int]]) -> list[str]:
    """Return all text files of a small workspace; empty if there are too many.

    `files` yields paths and sizes in bytes, and is consumed only until the limit is reached.
    """
    paths: list[str] = []
    total = 0

    for path, size in files:
        if not _is_text(path):
            continue

        paths.append(path)
        total += size
        if len(paths) > MAX_NAMED_FILES or total > MAX_FEW_BYTES:
            return []

    return paths


def _is_text(path: str) -> bool:
    return path.rpartition(".")[2].lower() in TEXT_SUFFIXES


MOST_RELATED = 3
"""Files that are shown for a question that names none. Of several, a small model changes the wrong one or all."""

_NAMES = re.compile(r"[^\W\d]\w*")
_QUOTED = re.compile(r"[\"'`]([^\"'`\n]{2,60})[\"'`]")
_PROSE = (".md", ".txt", ".toml", ".json", ".cfg", ".ini", ".yaml", ".yml")


def likely_files(request: str, files: Files) -> tuple[list[str], list[str]]:
    """Return the files for a request that names none, the likeliest last, and the tests to run.

    If tests fail: all code. If tests are requested: the code and an existing test to imitate. Otherwise the files that
    share most words with the request. Empty in a large workspace.
    """
    entries = list(islice(files.readable(), MOST_LOOKED_AT + 1))
    if len(entries) > MOST_LOOKED_AT:
        return [], []

    text = [path for path, size in entries if size and _is_text(path)]
    tests = [path for path in text if IS_TEST.search(path)]
    code = [path for path in text if not path.endswith(_PROSE) and path not in tests]

    if speaks_of_failing_tests(request):
        return files_within(code, files.size_of, MAX_FEW_BYTES), tests[:MAX_NAMED_FILES]

    if asks_for_tests(request):
        tested = _related(request, code, files)[-1:]
        if tested:
            return [*_test_to_imitate(tested[0], tests, files), *tested], []

    for paths in (code, tests, text):
        related = _related(request, paths, files)
        if related:
            return related, []

    return [], []


def _test_to_imitate(path: str, tests: Sequence[str], files: Files) -> list[str]:
    """Return a test file to show beside the file that is to be tested: its own, if it has one."""
    stem = path.rpartition("/")[2].partition(".")[0]
    candidates = sorted(tests, key=lambda test: stem not in test.rpartition("/")[2])
    return files_within(candidates, files.size_of, MAX_FEW_BYTES)[:1]


def _related(request: str, paths: Sequence[str], files: Files) -> list[str]:
    """Return the files that share most words with a request, the best one last.

    Rare words weigh more; words in a file's name count twice, and so do quoted strings.
    """
    quoted = _QUOTED.findall(request)
    request_words = {*content_words(request), *quoted}
    words_of: dict[str, Counter[str]] = {}
    file_count: Counter[str] = Counter()

    for path in paths:
        text = _text(files.head(path, MAX_FEW_BYTES))
        strings = [string for string in quoted if f'"{string}"' in text or f"'{string}'" in text]
        words_of[path] = Counter(content_words(f"{path} {text}") + strings)
        file_count.update(words_of[path].keys())

    weights: dict[str, tuple[float, int]] = {}
    for path in paths:
        name = content_words(path.rpartition("/")[2])
        weight = 0.0
        occurrences = 0
        for word in request_words & words_of[path].keys():
            rarity = log(1 + len(paths) / file_count[word])
            weight += rarity * (2 if word in name else 1)
            occurrences += words_of[path][word]

        if occurrences:
            weights[path] = (weight, occurrences)

    best = sorted(weights, key=lambda path: weights[path], reverse=True)
    most = MOST_RELATED if is_question(request) else 1
    return files_within(best, files.size_of, MAX_FEW_BYTES)[:most][::-1]


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
    renaming = _rename(request, files)
    if renaming:
        return renaming

    words, output = split_output(request)
    paths = named_files(request, files, most_bytes)
    pages = _pages_of_large_files(request, files, paths, most_bytes)
    paths += pages
    tests: list[str] = []
    is_asked = is_question(words)
    is_work = bool(output) or asks_for_a_change(request) or reports_a_problem(request)
    earlier = files_within([path for path in before if files.exists(path)], files.size_of, MAX_FEW_BYTES)

    # A new order may be about other files than the turn before.
    continues = bool(output) or not orders_a_change(words)
    if is_work and not is_asked and continues and all(IS_TEST.search(path) for path in paths):
        paths += earlier

    if is_asked or (not paths and is_work):
        meant = few_files(files.readable())
        if not meant and not paths:
            meant, tests = likely_files(request, files)

        others = [path for path in meant if path not in paths]
        paths = [*others, *paths][-MAX_NAMED_FILES:] or earlier

    names = [] if paths else named_identifiers(request)[:MAX_NAMES]
    if not checked:
        return read_ahead(paths, names=names, pages=pages)

    code = [path for path in paths if path.endswith((".py", ".pyi"))]
    if is_asked:
        code = []

    return read_ahead(paths, [*code, *tests], names, pages)


def _pages_of_large_files(
    request: str, files: Files, whole: Sequence[str], most_bytes: int
) -> dict[str, dict[str, int]]:
    """Return the arguments that read the parts of named files that do not fit, as far as those fit beside `whole`."""
    bytes_left = most_bytes - sum(map(files.size_of, whole))
    pages: dict[str, dict[str, int]] = {}

    for path in all_named_files(request, files):
        if path in whole or bytes_left < MOST_BYTES:
            continue

        data = files.head(path, MAX_SEARCHED_BYTES)
        if not isinstance(data, bytes) or b"\0" in data:
            continue

        excerpt = excerpt_of(_text(data), request, path)
        pages[path] = {"start_line": excerpt.start_line, "limit": excerpt.limit}
        bytes_left -= MOST_BYTES

    return pages


_NAME = r"(?:the )?(?:function |class |method )?(?!everywhere\b)[`'\"]?(?P<{}>[^\W\d]\w*)[`'\"]?(?:\(\))?"
_FILE = r"[`'\"]?(?P<{}>[\w./-]+\.\w+)[`'\"]?"
_ONLY_A_RENAME = re.compile(
    rf"(?:please[ ,]+)?rename {_NAME.format('old')}(?: in {_FILE.format('place')})? to {_NAME.format('new')},?"
    rf"(?: everywhere| in all files| in the (?:whole )?project| in {_FILE.format('also')})?(?:[ ,]+please)?[.!]?",
    re.IGNORECASE,
)
_DEFINED = re.compile(r"\b(?:def|class|function|func|fn|const|let|var|type|struct)\s+([^\W\d]\w*)")

_OWN = frozenset({"self", "cls", "this", "exports"})
_TAKEN = {*dir(builtins), *kwlist}
_BESIDE = frozenset({*kwlist, "", "const", "extends", "export", "function", "let", "new", "of", "typeof", "var"})
"""Words before or after an identifier in code; after other words it is an ordinary word."""


def _rename(request: str, files: Files) -> ModelReply | None:
    """Return the calls that rename a definition in all files; None if the request asks more, or a name is ambiguous."""
    match = _ONLY_A_RENAME.fullmatch(request.strip())
    if match is None:
        return None

    sizes = dict(islice(files.readable(), MOST_LOOKED_AT + 1))
    if len(sizes) > MOST_LOOKED_AT or sum(sizes.values()) > MAX_BYTES:
        return None

    texts = {path: _text(files.head(path, MAX_BYTES)) for path in sizes}
    old, new = match["old"], match["new"]
    places = {match["place"], match["also"]} - {None}
    paths = _files_to_rename_in(old, new, places, texts)
    if not paths:
        return None

    patch = ["*** Begin Patch"]
    for path in paths:
        patch += [f"*** Update File: {path}", "@@"]
        for line in texts[path].splitlines():
            new_line = _NAMES.sub(lambda name: new if name[0] == old else name[0], line)
            if new_line == line:
                patch.append(f" {line}")
            else:
                patch += [f"-{line}", f"+{new_line}"]

    patch.append("*** End Patch")
    answer = f"Renamed {old} to {new} in {listed(paths)}."
    return preloaded_reply([("apply_patch", {"patch": "\n".join(patch)}), ("final_answer", {"answer": answer})])


def _files_to_rename_in(old: str, new: str, places: AbstractSet[str], texts: Mapping[str, str]) -> list[str]:
    """Return the files with the name; empty unless one file, in one of the `places`, defines it and nothing else."""
    paths: list[str] = []
    holders: list[str] = []

    for path, text in texts.items():
        words = {*_NAMES.findall(text)}
        if new in words:
            return []
        if old in words:
            paths.append(path)
            holders += [path for name in _DEFINED.findall(text) if name == old]

    if len(holders) != 1 or {old, new} & _TAKEN:
        return []
    if not places <= {holders[0], holders[0].rpartition("/")[2]}:
        return []

    owners = _OWN.union(*(re.split(r"[/.]", path) for path in texts))
    if any(_may_be_another(old, texts[path], owners) for path in paths):
        return []

    return paths


def _may_be_another(name: str, text: str, owners: frozenset[str]) -> bool:
    """Return whether the name may mean something else: an attribute, an import, a variable, a string, a word.

    `owners` are modules and packages of the workspace, whose attribute or import the definition is.
    """
    without_definitions = _DEFINED.sub("", text)
    attributes = re.findall(rf"(?<!\w)(\w*)\W?\.{name}\b", text)
    imports = re.findall(rf"\bfrom[ \t]+[\w.]*?(\w+)[ \t]+import\b(?:[^\n(]*|[ \t]*\([^)]*)\b{name}\b", text)
    if not owners >= {*attributes, *imports}:
        return True

    is_variable = re.search(rf"\b{name}\s*(?:=(?!=)|:\s)", without_definitions)
    is_string = "__all__" not in text and re.search(rf"(['\"]){name}\1", text)
    if is_variable or is_string:
        return True

    if not WORD.fullmatch(name):
        return False

    neighbours = re.findall(rf"(?<!\w)(\w*) {name}\b(?: (\w*))?", without_definitions)
    return not {*chain.from_iterable(neighbours)} <= _BESIDE


def _text(data: object) -> str:
    if isinstance(data, bytes):
        return data.decode(errors="surrogateescape")
    return ""
