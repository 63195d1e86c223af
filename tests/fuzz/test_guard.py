"""The redactor and the resolution of paths."""

import atexit
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any, Final

from hypothesis import example, strategies as st

from mendgraph.nodes.execute_tools.secrets.redact import _CONTENT, MARK, Redactor, _is_json
from mendgraph.nodes.guard.file_rules import check_file_guardrails, folded, folded_parts
from mendgraph.nodes.guard.policy import workspace_relative
from mendgraph.nodes.records import ToolError, ToolErrorCode
from mendgraph.nodes.workspace.files.handles import closing, handle_name, open_beneath, open_root
from mendgraph.nodes.workspace.files.sandbox import PathAccess, PathSandbox, Place
from tests.extent import slow
from tests.fuzz.inputs import JSON_WORDS, as_bytes, byte_text, files, fuzz, mutated, reply_texts
from tests.rules.secrets.samples import BLOCKS, KEYS, PARTS

KNOWN: Final = "-".join(("plum", "51", 'orch"ard', "ü42"))
REDACTOR: Final = Redactor((KNOWN,))
SECRETS: Final = (KNOWN, *REDACTOR.forms, *KEYS, *("".join(part) for part in PARTS), *BLOCKS)
GLUED: Final = ("NRA" + "K-A3D5F7H9K1M3P5R7T9V1X3Z4B6D") * 5
SECRET_WORDS: Final = (
    *SECRETS,
    *JSON_WORDS,
    *('{"password": "', 'api_key="', "TOKEN=", "Bearer ", "-----BEGIN ", MARK, MARK[:9], "***", "\\\\"),
)


# --- Secrets


def _secrets() -> st.SearchStrategy[str]:
    return mutated(
        [*files(), *reply_texts()[:40], *SECRETS, json.dumps({"a": [KNOWN, {"password": KNOWN}]})], SECRET_WORDS
    )


@slow
@example(GLUED)
@fuzz(_secrets)
def test_redacted_text_contains_no_secret(text: str) -> None:
    try:
        redacted = REDACTOR._document(text, _CONTENT)
    except RecursionError:  # a JSON document of a thousand levels is shown as one mark
        redacted = MARK
    assert REDACTOR.text(text) == redacted
    for safe in (redacted, REDACTOR.unnamed(text), str(REDACTOR.value(text))):
        assert not [form for form in REDACTOR.forms if form in safe]
        assert len(safe) <= 12 * len(text) + 200
    assert REDACTOR.text(redacted) == redacted
    assert not any(KNOWN in leaf for leaf in _leaves_of(redacted))
    spans = REDACTOR.spans(text)
    assert all(0 <= start < end <= len(text) for start, end in spans)
    assert all(before[1] < after[0] for before, after in pairwise(spans))


def _leaves_of(text: str) -> list[str]:
    """The strings of a JSON document."""
    try:
        return list(_strings(json.loads(text)))
    except (ValueError, RecursionError):
        return []


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


@slow
@example(GLUED)
@fuzz(lambda: _secrets().map(lambda text: byte_text(text.encode("utf-8", "replace"))))
def test_redacted_bytes_contain_no_secret(text: str) -> None:
    """The output has none of the known values, and a JSON document stays one."""
    data = as_bytes(text)
    written = REDACTOR.final(data)
    assert not [form for form in REDACTOR.forms if form.encode() in written]
    assert REDACTOR.final(written) == written
    assert len(written) <= 12 * len(data) + 200
    was = data.decode("utf-8", "surrogateescape")
    assert not _is_json(was) or _is_json(written.decode("utf-8", "surrogateescape"))


# --- Names of files

INVISIBLE: Final = "\u200b"
ACCESSES: Final = tuple(PathAccess)
NAMES: Final = (
    *("a.py", "sub/b.py", "sub/in", "sub/up/a.py", "sub/out/canary", "loop", "abs/passwd", "ä.py", ".env"),
    *("sub/.env.local",),
    *("../outside/canary", "../root-evil/x", "sub/../../outside/canary", "/etc/passwd", "~/x", "./~", ".git/config"),
    *("key.pem",),
    *("{root}/a.py", "{root}/../outside/canary", "/proc/self/root/etc/passwd", "/dev/fd/0", "nothing/here.py"),
    *("sub/up/sub/up/.env",),
)
NAME_WORDS: Final = (
    *("/", "//", "..", "../", "./", ".", "~", "{root}", "{root}/", "sub/", "up/", "out/", "\\", INVISIBLE, ".env"),
    *(".ENV", "a" * 60, " "),
)
CANARY: Final = b"canary 7f3a"


@cache
def playground() -> str:
    """A root with files and links in it, and what must not be reached beside it."""
    base = Path(os.path.realpath(tempfile.mkdtemp(prefix="mendgraph-names-")))
    atexit.register(shutil.rmtree, base, ignore_errors=True)
    for folder in ("root/sub", "root/.git", "outside", "root-evil"):
        (base / folder).mkdir(parents=True)
    for file in ("root/a.py", "root/sub/b.py", "root/ä.py", "root/.env", "root/.git/config"):
        (base / file).write_bytes(b"inside")
    for file in ("outside/canary", "root-evil/x"):
        (base / file).write_bytes(CANARY)
    for link, target in (
        ("sub/in", "../a.py"),
        ("sub/up", ".."),
        ("sub/out", "../../outside"),
        ("loop", "loop"),
        ("abs", "/etc"),
    ):
        (base / "root" / link).symlink_to(target)
    return str(base / "root")


def _names() -> st.SearchStrategy[Any]:
    return st.tuples(mutated(NAMES, NAME_WORDS), st.integers(0, len(ACCESSES) - 1))


@example(("a/y", 0))
@fuzz(_names)
def test_path_stays_inside_the_workspace(path_and_access: tuple[str, int]) -> None:
    root = playground()
    path, access = path_and_access[0].replace("{root}", root), ACCESSES[path_and_access[1]]
    sandbox = PathSandbox(root)
    place, resolved, requested = (
        sandbox.locate(path, access),
        sandbox.resolve(path, access),
        sandbox.requested_name(path),
    )
    for answer in (place, resolved):
        if isinstance(answer, ToolError):
            assert len(answer.message) <= 4_000
            assert answer.message.isprintable()
            assert answer.code is not ToolErrorCode.NOT_FOUND or all(
                _is_inside(f"{root}/{name}", root) for name in answer.suggestions
            )
    if isinstance(resolved, str):
        assert _is_inside(resolved, root)
    lexical = workspace_relative(path, root)
    assert requested is None or lexical is None or requested == lexical
    if isinstance(place, Place):
        assert _is_inside(os.path.join(root, place.real), root)
        _read(root, place)


def _is_inside(path: str, root: str) -> bool:
    real = os.path.realpath(path)
    return real == root or real.startswith(f"{root}/")


def _read(root: str, place: Place) -> None:
    """Whatever can be opened there is inside, and has no content from outside."""
    try:
        with closing(open_root(root)) as top, closing(open_beneath(top, place.parts, os.O_RDONLY)) as handle:
            name = handle_name(handle)
            assert name is not None
            assert _is_inside(name, root)
            assert os.path.isdir(name) or CANARY not in os.read(handle, 100)
    except OSError:
        pass


@fuzz(lambda: mutated(NAMES, NAME_WORDS))
def test_rule_ignores_case_and_invisible_characters(path: str) -> None:
    """Rules ignore case and invisible characters."""
    name = PurePosixPath(path)
    verdict = check_file_guardrails(Path(f"w/{name}"))
    parts = folded_parts(name)
    assert all(folded(part) == part for part in parts)
    last = name.name
    if not last.strip("./\\ ") or "\\" in last or "\0" in path:
        return
    for spelled in (
        last.swapcase() if last.isascii() else last,
        f"{INVISIBLE}{last}",
        f"{last[:1]}{INVISIBLE}{last[1:]}",
        f"{last}{INVISIBLE}",
    ):
        again = check_file_guardrails(Path(f"w/{name.parent}") / spelled)
        assert [violation.rule_name for violation in again.violations] == [
            violation.rule_name for violation in verdict.violations
        ], spelled
