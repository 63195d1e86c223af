import errno
import json
import os
import stat
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from mendgraph.nodes.records import Effect
from mendgraph.nodes.workspace.store.audit_log import LONGEST_LINE, AuditLog, audit_line
from tests.doubles.system_calls import failing
from tests.extent import slow

pytestmark = pytest.mark.usefixtures("no_open_handles")


def records(path: Path) -> list[Any]:
    data = path.read_bytes()
    assert data == b"" or data.endswith(b"\n")
    return [json.loads(line) for line in data.split(b"\n")[:-1]]


def test_event_is_a_line_in_a_private_file(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        log = AuditLog(str(tmp_path))
        log.write({"event": "one\n"})
        log.write({"event": "two"})
    finally:
        os.umask(old)
    assert (tmp_path / "audit.jsonl").read_bytes() == b'{"event":"one\\n"}\n{"event":"two"}\n'
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}
    assert log.lost == 0


def test_files_are_rotated_at_their_size_limit_and_the_oldest_is_deleted(tmp_path: Path) -> None:
    for keep, expected in (
        (1, {"audit.jsonl": [8]}),
        (3, {"audit.jsonl": [8], "audit.jsonl.1": [6, 7], "audit.jsonl.2": [4, 5]}),
    ):
        (tmp_path / str(keep)).mkdir()
        log = AuditLog(str(tmp_path / str(keep)), max_bytes=2 * len(b'{"n":0}\n'), keep=keep)
        for number in range(9):
            log.write({"n": number})
        written = {path.name: [record["n"] for record in records(path)] for path in (tmp_path / str(keep)).iterdir()}
        assert written == expected
        assert log.lost == 0


def test_log_keeps_three_files_of_five_megabytes_by_default(tmp_path: Path) -> None:
    log, line = AuditLog(str(tmp_path)), b'{"event":"new"}\n'
    for name in ("audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"):
        (tmp_path / name).write_bytes(b"\n" * (5_000_000 - len(line)))

    log.write({"event": "new"})
    assert os.listdir(tmp_path).count("audit.jsonl.3") == 0
    assert (tmp_path / "audit.jsonl").stat().st_size == 5_000_000

    log.write({"event": "new"})
    assert (tmp_path / "audit.jsonl").read_bytes() == line
    assert sorted(os.listdir(tmp_path)) == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]
    assert (tmp_path / "audit.jsonl.1").stat().st_size == 5_000_000


@pytest.mark.parametrize("linked", ["file", "folder"])
def test_log_is_not_written_through_a_link(tmp_path: Path, linked: str) -> None:
    folder, outside = tmp_path / "log", tmp_path / "outside"
    outside.mkdir()
    (outside / "audit.jsonl").write_bytes(b"")
    if linked == "folder":
        folder.symlink_to(outside)
    else:
        folder.mkdir()
        (folder / "audit.jsonl").symlink_to(outside / "audit.jsonl")

    log = AuditLog(str(folder))
    log.write({"event": "one"})

    assert log.lost == 1
    assert (outside / "audit.jsonl").read_bytes() == b""


def test_line_torn_by_a_kill_damages_no_other_line(tmp_path: Path) -> None:
    torn = b'{"n":'
    log = AuditLog(str(tmp_path))
    log.write({"n": 0})
    with (tmp_path / "audit.jsonl").open("ab") as file:
        file.write(torn)
    log.write({"n": 1})
    log.write({"n": 2})
    assert (tmp_path / "audit.jsonl").read_bytes() == b'{"n":0}\n' + torn + b'\n{"n":1}\n{"n":2}\n'


def test_failed_write_is_counted_and_does_not_raise(tmp_path: Path) -> None:
    log = AuditLog(str(tmp_path), max_bytes=1)
    for lost, function in enumerate(("open", "write", "rename", "fstat")):
        log.write({"n": 0})
        with failing(function, number=errno.ENOSPC, ever_after=True):
            log.write({"n": 1})
            log.write({"n": 2})
        assert log.lost == 2 * lost + 2
        log.write({"n": 3})
        assert records(tmp_path / "audit.jsonl") == [{"n": 3}], function


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


def parse(record: Any) -> Any:
    return json.loads(audit_line(record))


FORGERIES = {
    'a\n{"event":"forged"}': b'a\\n{\\"event\\":\\"forged\\"}',
    "a\r\x1b[2Jb": b"a\\r\\u001b[2Jb",
    "gpj.\u202efdp": b"gpj.\\u202efdp",
    "a\u2028b\u2029": b"a\\u2028b\\u2029",
    "a\ud83d": b"a\\ud83d",
    "tag\U000e0041": b"tag\\udb40\\udc41",
    "delete \x7f": b"delete \\u007f",
}


def test_no_name_can_forge_a_line_or_control_a_terminal() -> None:
    for name, written in FORGERIES.items():
        assert audit_line({"path": name}) == b'{"path":"' + written + b'"}\n'
        assert audit_line({name: 1}) == b'{"' + written + b'":1}\n'
        assert parse({"path": name}) == {"path": name}


@slow
@settings(max_examples=40)
@given(anything)
def test_any_value_is_one_line_of_json_without_control_characters(value: Any) -> None:
    for record in (value, {"value": value}):
        line = audit_line(record)
        text = line.decode()
        assert (line.count(b"\n"), line[-1:], len(line) <= LONGEST_LINE) == (1, b"\n", True)
        assert text[:-1].splitlines() == [text[:-1]]
        assert {unicodedata.category(character) for character in text[:-1]} & {"Cc", "Cf", "Cs", "Zl", "Zp"} == set()
        json.loads(text, parse_constant=_refuse)


def _refuse(constant: str) -> None:
    raise AssertionError(constant)


def test_value_without_a_json_form_is_shown_by_its_type() -> None:
    rows: list[tuple[Any, Any]] = [
        (b"secret", "<bytes>"),
        (float("-inf"), "<float>"),
        (2**200, 2**200),
        ((1, 2), [1, 2]),
        ({1: "a", None: "b"}, {"1": "a", "None": "b"}),
        ([Effect.READ], ["read"]),
    ]
    for value, text in rows:
        assert parse({"v": value}) == {"v": text}
    assert audit_line({"v": 10**5_000}) == b'{"unloggable":"ValueError"}\n'


LONG: list[dict[str, Any]] = [
    {f"key {number}": "x" * 3_000 for number in range(50)},
    {"data": "\U000e0041" * 100_000},
    {"rows": [["\x1b" * 500] * 100] * 100},
    {f"\U000e0041{number}" * 100: "\U000e0041" * 1_000 for number in range(1_000)},
    {"deep": json.loads("[" * 500 + "]" * 500)},
]


@slow
def test_no_line_exceeds_its_maximum_length() -> None:
    for record in LONG:
        line = audit_line(record)
        assert len(line) <= LONGEST_LINE
        assert next(iter(json.loads(line)))[:8] == next(iter(record))[:8]
