import errno
import json
import os
import stat
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from hypothesis import given, settings, strategies as st

from mendgraph.nodes.execute_tools.store import audit_log
from mendgraph.nodes.execute_tools.store.audit_log import LOCK_NAME, LONGEST_LINE, AuditLog, audit_line
from mendgraph.nodes.records import Effect
from tests.architecture.product import ROOT

WRITER = """
import sys
from mendgraph.nodes.execute_tools.store.audit_log import AuditLog
log = AuditLog(sys.argv[1], max_bytes=int(sys.argv[3]), keep=int(sys.argv[4]))
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[5])):
    log.write({"who": sys.argv[2], "n": number, "padding": "x" * (number * 37 % 400)})
print(log.lost)
"""


@pytest.fixture(autouse=True)
def no_handle_is_left_open() -> Iterator[None]:
    before = len(os.listdir("/dev/fd"))
    yield
    assert len(os.listdir("/dev/fd")) == before


def records(path: Path) -> list[Any]:
    data = path.read_bytes()
    assert data == b"" or data.endswith(b"\n")
    return [json.loads(line) for line in data.split(b"\n")[:-1]]


def files(folder: Path) -> dict[str, list[Any]]:
    names = sorted(name for name in os.listdir(folder) if name != LOCK_NAME)
    return {name: records(folder / name) for name in names}


def test_each_event_is_a_line_in_a_private_file(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        log = AuditLog(str(tmp_path))
        log.write({"event": "one\n"})
        log.write({"event": "two"})
    finally:
        os.umask(old)
    assert (tmp_path / "audit.jsonl").read_bytes() == b'{"event":"one\\n"}\n{"event":"two"}\n'
    assert {stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()} == {0o600}
    assert log.lost == 0


@pytest.mark.parametrize(
    ("keep", "found"),
    [
        (1, {"audit.jsonl": [8]}),
        (2, {"audit.jsonl": [8], "audit.jsonl.1": [6, 7]}),
        (3, {"audit.jsonl": [8], "audit.jsonl.1": [6, 7], "audit.jsonl.2": [4, 5]}),
    ],
)
def test_files_are_turned_over_before_they_pass_their_size_and_the_oldest_goes(
    tmp_path: Path, keep: int, found: dict[str, list[int]]
) -> None:
    log = AuditLog(str(tmp_path), max_bytes=2 * len(b'{"n":0}\n'), keep=keep)
    for number in range(9):
        log.write({"n": number})
    assert {name: [each["n"] for each in lines] for name, lines in files(tmp_path).items()} == found
    assert log.lost == 0


@contextmanager
def writer(folder: Path, who: str) -> Iterator[subprocess.Popen[str]]:
    """A process that says "ready", waits for a line, writes 300 events and says how many were lost."""
    command = [sys.executable, "-c", WRITER, str(folder), who, "4000", "100", "300"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_two_processes_write_whole_lines_while_files_are_turned_over(tmp_path: Path) -> None:
    with ExitStack() as stack:
        writers = [stack.enter_context(writer(tmp_path, who)) for who in ("a", "b")]
        for each in writers:
            assert each.stdout is not None
            assert each.stdout.readline() == "ready\n"
        for each in writers:
            assert each.stdin is not None
            each.stdin.write("go\n")
            each.stdin.flush()
        assert [each.communicate(timeout=120)[0] for each in writers] == ["0\n", "0\n"]
    found = files(tmp_path)
    assert all((tmp_path / name).stat().st_size <= 4_000 for name in found)
    oldest_first = sorted(found, key=lambda name: -int(name.partition("jsonl.")[2] or 0))
    for who in ("a", "b"):
        numbers = [each["n"] for name in oldest_first for each in found[name] if each["who"] == who]
        assert numbers == list(range(300))
    assert len(found) > 10


@pytest.mark.parametrize("torn", [b'{"n":', b"\x00\x00\x00"])
def test_what_a_kill_has_torn_spoils_no_other_line(tmp_path: Path, torn: bytes) -> None:
    log = AuditLog(str(tmp_path))
    log.write({"n": 0})
    with (tmp_path / "audit.jsonl").open("ab") as file:
        file.write(torn)
    log.write({"n": 1})
    log.write({"n": 2})
    assert (tmp_path / "audit.jsonl").read_bytes() == b'{"n":0}\n' + torn + b'\n{"n":1}\n{"n":2}\n'


@pytest.mark.parametrize("function", ["open", "write", "rename", "fstat"])
def test_a_failure_anywhere_is_counted_and_nothing_else_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    log = AuditLog(str(tmp_path), max_bytes=1)
    log.write({"n": 0})
    with monkeypatch.context() as patch:
        patch.setattr(os, function, fail)
        log.write({"n": 1})
        log.write({"n": 2})
    assert log.lost == 2
    log.write({"n": 3})
    assert (log.lost, records(tmp_path / "audit.jsonl")) == (2, [{"n": 3}])


def test_a_folder_that_is_missing_or_a_link_takes_nothing(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    for name in ("missing", "link", "real/audit.jsonl/x", "nul\x00"):
        log = AuditLog(str(tmp_path / name))
        log.write({"n": 0})
        assert log.lost == 1
    assert (os.listdir(tmp_path / "real"), sorted(os.listdir(tmp_path))) == ([], ["link", "real"])


def test_a_turn_that_never_comes_costs_no_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "LONGEST_WAIT_S", 0.05)
    log = AuditLog(str(tmp_path), max_bytes=1)
    with FileLock(str(tmp_path / LOCK_NAME)):
        log.write({"n": 0})
        log.write({"n": 1})
    assert (files(tmp_path), log.lost) == ({"audit.jsonl": [{"n": 0}, {"n": 1}]}, 0)
    log.write({"n": 2})
    assert files(tmp_path) == {"audit.jsonl": [{"n": 2}], "audit.jsonl.1": [{"n": 0}, {"n": 1}]}


def test_where_the_file_system_has_no_locks_lines_are_appended_and_no_file_is_turned_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    log = AuditLog(str(tmp_path), max_bytes=1)
    monkeypatch.setattr("fcntl.flock", without)
    log.write({"n": 0})
    log.write({"n": 1})
    assert (files(tmp_path), log.lost) == ({"audit.jsonl": [{"n": 0}, {"n": 1}]}, 0)


RANGES = ((0x00, 0x1F), (0x7F, 0x9F), (0x200E, 0x200F), (0x2028, 0x202E), (0x2066, 0x2069), (0xFEFF, 0xFEFF))
HOSTILE = [chr(point) for first, last in RANGES for point in range(first, last + 1)]
SURROGATES = ["\ud800", "\udbff", "\udc00", "\udfff"]

odd_values = st.none() | st.booleans() | st.integers() | st.floats() | st.binary() | st.just(object())
texts = st.text(st.characters() | st.sampled_from([*HOSTILE, *SURROGATES]))
anything = st.recursive(
    odd_values | texts,
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(texts | st.integers(), inner),
    max_leaves=30,
)


def parsed(record: Any) -> Any:
    return json.loads(audit_line(record))


def cyclic() -> dict[str, Any]:
    record: dict[str, Any] = {"name": "cycle"}
    record["again"] = [record] * 10
    return record


class Numbered(Enum):
    ONE = 1


class Fighting(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ('a\n{"event":"forged"}', b'a\\n{\\"event\\":\\"forged\\"}'),
        ("a\r\x1b[2Jb", b"a\\r\\u001b[2Jb"),
        ("a\x7f\x9bb", b"a\\u007f\\u009bb"),
        ("gpj.\u202efdp", b"gpj.\\u202efdp"),
        ("a\u2028b\u2029", b"a\\u2028b\\u2029"),
        ("\ufeffa\u200b", b"\\ufeffa\\u200b"),
        ("a\ud83d", b"a\\ud83d"),
        ("tag\U000e0041", b"tag\\udb40\\udc41"),
        ("smile \U0001f600", "smile \U0001f600".encode()),
    ],
)
def test_no_name_forges_a_line_or_steers_a_terminal(name: str, written: bytes) -> None:
    assert audit_line({"path": name}) == b'{"path":"' + written + b'"}\n'
    assert audit_line({name: 1}) == b'{"' + written + b'":1}\n'
    assert parsed({"path": name}) == {"path": name}


@settings(max_examples=40)
@given(anything)
def test_any_value_is_one_line_of_json_without_hostile_characters(value: Any) -> None:
    for record in (value, {"value": value}):
        line = audit_line(record)
        text = line.decode()
        assert (line.count(b"\n"), line[-1:], len(line) <= LONGEST_LINE) == (1, b"\n", True)
        assert text[:-1].splitlines() == [text[:-1]]
        assert {unicodedata.category(each) for each in text[:-1]} & {"Cc", "Cf", "Cs", "Zl", "Zp"} == set()
        json.loads(text, parse_constant=_refuse)


def _refuse(constant: str) -> None:
    raise AssertionError(constant)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b"secret", "<bytes>"),
        ({1, 2}, "<set>"),
        (object(), "<object>"),
        (ValueError("x"), "<ValueError>"),
        (float("nan"), "<nan>"),
        (float("-inf"), "<-inf>"),
        (2**256, "<int of 257 bits>"),
        (2**200, 2**200),
        ((1, 2), [1, 2]),
        ({1: "a", None: "b", False: "c", b"k": "d"}, {"1": "a", "None": "b", "False": "c", "<bytes>": "d"}),
        (unicodedata, "<module>"),
        ([Effect.READ, Numbered.ONE], ["read", 1]),
    ],
)
def test_what_json_has_no_form_for_is_shown_by_its_type(value: Any, shown: Any) -> None:
    assert parsed({"v": value}) == {"v": shown}


@pytest.mark.parametrize(
    "record",
    [
        {f"key {number}": "x" * 3_000 for number in range(50)},
        {"data": "\U000e0041" * 100_000},
        {"\x00" * 100_000: "\x00" * 100_000},
        {"rows": [["\x1b" * 500] * 100] * 100},
        {f"\U000e0041{number}" * 100: "\U000e0041" * 1_000 for number in range(1_000)},
        {type("\U000e0041" * 5_000, (), {}).__name__: [type("\x01x" * 5_000, (), {})()] * 100},
        cyclic(),
        {"deep": json.loads("[" * 500 + "]" * 500)},
    ],
    ids=["wide", "astral", "key", "rows", "keys", "types", "cycle", "deep"],
)
def test_no_line_is_longer_than_its_bound(record: dict[str, Any]) -> None:
    line = audit_line(record)
    assert len(line) <= LONGEST_LINE
    assert next(iter(json.loads(line)))[:8] == next(iter(record))[:8]


def test_a_record_that_fights_back_breaks_nothing() -> None:
    assert audit_line(Fighting(a=1)) == b'{"unloggable":"RuntimeError"}\n'
    assert audit_line({"v": Fighting(a=1)}) == b'{"unloggable":"RuntimeError"}\n'
