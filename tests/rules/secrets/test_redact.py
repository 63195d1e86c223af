import base64
import dataclasses
import json
import re
from itertools import pairwise
from types import ModuleType
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, strategies as st

from mendgraph.nodes.execute_tools.engine import redacted_output
from mendgraph.nodes.execute_tools.registry import ToolOutput
from mendgraph.nodes.execute_tools.secrets import keys, shapes
from mendgraph.nodes.execute_tools.secrets.key_blocks import key_block_spans, open_block
from mendgraph.nodes.execute_tools.secrets.keys import SECRET_WORDS
from mendgraph.nodes.execute_tools.secrets.redact import MARK, PLACEHOLDER, Redactor, redact
from mendgraph.nodes.execute_tools.secrets.shapes import SHAPES, Scope
from mendgraph.nodes.execute_tools.secrets.text_parts import (
    RedactedStream,
    first_words,
    masked_blocks,
    masked_lines,
    whole_words,
)
from mendgraph.nodes.records import ToolError, ToolErrorCode
from tests.extent import slow
from tests.row_tables import rows
from tests.rules.secrets.samples import BASE64, BENIGN, BLOCKS, FILE_NAMES, HEX, KEYS, MIXED, PARTS, joined
from tests.rules.secrets.ways import HARMLESS, WAYS

NOTHING_KNOWN = Redactor()
KEY = joined("s~k-abcdefghijkl1234mnop")
HEADER = "-----BEGIN PRIVATE KEY-----"
FOOTER = "-----END PRIVATE KEY-----"


def test_only_the_secret_part_of_a_text_is_redacted() -> None:
    ways = [*PARTS, *(way for ways in WAYS.values() for way in ways)]
    assert [way for way in ways if NOTHING_KNOWN.text("".join(way)) != way[0] + MARK + way[2]] == []
    assert [way for way in PARTS if way[1] in json.dumps(redact("".join(way)))] == []


def test_harmless_text_is_returned_unchanged() -> None:
    texts = [*BENIGN, *HARMLESS, *FILE_NAMES, *(f'password = open("{name}")' for name in FILE_NAMES)]
    assert [text for text in texts if NOTHING_KNOWN.text(text) is not text] == []
    assert [text for text in texts if NOTHING_KNOWN.content([text, {"x": text}]) != [text, {"x": text}]] == []
    data = [text.encode() for text in texts]
    assert [item for item in data if NOTHING_KNOWN.final(item) is not item] == []

    keyless = [*BENIGN, f"{HEADER} is how a key begins.\n", "-----BEGIN CERTIFICATE-----\n" + BASE64]
    assert [text for text in keyless if masked_blocks(text) is not text or masked_lines(text)] == []
    assert first_words(KEY, len(KEY)) is KEY


@dataclasses.dataclass(frozen=True)
class Login:
    user: str
    password: str


def failed(message: str) -> ToolError:
    return ToolError(code=ToolErrorCode.IO_ERROR, message=message)


class Opaque:
    def __repr__(self) -> str:
        return KEY


RECORDS = [
    (None, None),
    (True, True),
    (1.5, 1.5),
    ((1, "a"), [1, "a"]),
    ({1: 2}, {"1": 2}),
    ({"password": "x"}, {"password": "***"}),
    ({"password": 1234}, {"password": "***"}),
    ({"password": None, "secret": True}, {"password": None, "secret": True}),
    ({"credentials": {"user": "me", "list": ["x", 1]}}, {"credentials": {"user": "***", "list": ["***", "***"]}}),
    ({"max_tokens": 7, "tokenizer": "x"}, {"max_tokens": 7, "tokenizer": "x"}),
    (Login("me", "hunter2"), {"user": "me", "password": "***"}),
    (failed(KEY), {"code": "io_error", "message": "***", "suggestions": [], "fatal": False}),
    (KEY.encode(), "<23 bytes>"),
    (Opaque(), "<Opaque>"),
    (Login, "<type>"),
    ('{"password": "x"}', '{"password": "***"}'),
    ('{"a":"{\\"pin_token\\":\\"x\\"}"}', '{"a":"{\\"pin_token\\":\\"***\\"}"}'),
    ('{"password": 1, "n": NaN}', '{"password": "***", "n": "NaN"}'),
    ('{"password": null}', '{"password": null}'),
    ("{password: x}", "{password: x}"),
]


def test_every_record_becomes_a_plain_copy() -> None:
    assert [redact(value) for value, _ in RECORDS] == [expected for _, expected in RECORDS]


CONTENT = [
    ({"password": "string", "n": 1}, {"password": "string", "n": 1}),
    ({"password": "hunter2hunter2", "token": 12345678}, {"password": MARK, "token": 12345678}),
    ({"credentials": {"user": "me", "value": "x8KqqP2zz1"}}, {"credentials": {"user": "me", "value": MARK}}),
    ({"tokens": 1, "api_keys": ["x8KqqP2zz1", "none"]}, {"tokens": 1, "api_keys": [MARK, "none"]}),
    ({"password": {"pattern": "^(?=.*[A-Z0-9]).{8,}$"}}, {"password": {"pattern": "^(?=.*[A-Z0-9]).{8,}$"}}),
    ({"apiKeySecurity": {"x": "x8KqqP2zz1"}}, {"apiKeySecurity": {"x": "x8KqqP2zz1"}}),
    ({"password": {"$ref": "#/x8KqqP2zz1"}}, {"password": {"$ref": "#/x8KqqP2zz1"}}),
    ({"password": {"value": 12345678}, "pin": 1234}, {"password": {"value": MARK}, "pin": 1234}),
    ({"password": [12345678, 2.5], "api_key": 123456}, {"password": [MARK, 2.5], "api_key": MARK}),
    ({"name": "DB_PASSWORD", "value": "hunter2hunter2"}, {"name": "DB_PASSWORD", "value": MARK}),
    ({"Value": ["hunter2hunter2"], "Key": "DbPassword"}, {"Value": [MARK], "Key": "DbPassword"}),
    ({"name": "secretary", "value": "hunter2hunter2"}, {"name": "secretary", "value": "hunter2hunter2"}),
    ({"name": "password", "type": "hunter2hunter2"}, {"name": "password", "type": "hunter2hunter2"}),
    ({"auth": {"user": "me", "pass": "x8KqqP2zz1"}}, {"auth": {"user": "me", "pass": MARK}}),
    ({"PWD": "/home/a1B2c3D4/x", "db_pwd": "x8KqqP2zz1"}, {"PWD": "/home/a1B2c3D4/x", "db_pwd": MARK}),
    (["curl", "-u", "me:x8KqqP2zz1", "https://a.test"], ["curl", "-u", MARK, "https://a.test"]),
    (["/usr/bin/mysql", "-px8KqqP2zz1", "db"], ["/usr/bin/mysql", f"-p{MARK}", "db"]),
    (["run", "--token", "x8KqqP2zz1"], ["run", "--token", MARK]),
    (["docker", "run", "-p", "8080:80", "x8KqqP2zz1"], ["docker", "run", "-p", "8080:80", "x8KqqP2zz1"]),
    ({"hash": f"$2b$12${MIXED[:53]}"}, {"hash": MARK}),
    ({"content": "password = 'x8KqqP2zz1'"}, {"content": f"password = '{MARK}'"}),
]


def test_content_that_does_not_look_secret_is_kept() -> None:
    assert [NOTHING_KNOWN.content(value) for value, _ in CONTENT] == [expected for _, expected in CONTENT]


DOCUMENTS = [
    ('{"api_keys": ["x8KqqP2zz1"]}', f'{{"api_keys": ["{MARK}"]}}'),
    ('{"api_keys":["x8KqqP2zz1"]}', f'{{"api_keys":["{MARK}"]}}'),
    ('{\n    "api_keys": ["x8KqqP2zz1"]\n}\n', f'{{\n  "api_keys": [\n    "{MARK}"\n  ]\n}}'),
    ('{"p\\u0061ssword": "x8KqqP2zz1"}', f'{{"password": "{MARK}"}}'),
    (f'["\\u0067{joined("hp~_")}{MIXED[:36]}", "ü"]', f'["{MARK}", "ü"]'),
    (f'["\\u0067{joined("hp~_")}{MIXED[:36]}", "\\u00fc"]', f'["{MARK}", "\\u00fc"]'),
    (json.dumps([json.dumps({"api_keys": ["x8KqqP2zz1"]})]), json.dumps([json.dumps({"api_keys": [MARK]})])),
]


def test_json_in_text_is_parsed_for_secrets() -> None:
    assert [NOTHING_KNOWN.text(text) for text, _ in DOCUMENTS] == [expected for _, expected in DOCUMENTS]


def test_name_alone_redacts_nothing_in_unnamed_text() -> None:
    text = "password = 'x8KqqP2zz1' hunter2 " + KEY
    assert REDACTOR.unnamed(text) == f"password = 'x8KqqP2zz1' {MARK} {MARK}"
    assert REDACTOR.unnamed("password = 'x8KqqP2zz1'") == "password = 'x8KqqP2zz1'"
    assert "hunter2" in REDACTOR.forms
    assert NOTHING_KNOWN.forms == ()


def test_every_entry_point_fails_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(dict[str, str]):
        def items(self) -> Any:
            raise ZeroDivisionError

    endless: list[Any] = []
    endless.append(endless)
    for value in (Broken(a="b"), {"a": endless}):
        assert redact(value) == PLACEHOLDER
        assert NOTHING_KNOWN.content(value) == MARK

    def broken(*_: object, **__: object) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(Redactor, "spans", broken)
    unread = "text that nobody has looked through yet"  # what was, is known
    assert redact(unread) == PLACEHOLDER
    assert NOTHING_KNOWN.content(unread) == MARK
    assert NOTHING_KNOWN.text(unread) == MARK
    assert NOTHING_KNOWN.unnamed(unread) == MARK
    assert NOTHING_KNOWN.final(b"text") == MARK.encode()
    assert whole_words("one two three", 4, 7) == (MARK, 4, 7)
    assert redacted_output(ToolOutput.ok(content="never seen"), NOTHING_KNOWN) == ToolOutput.ok(redacted=MARK)
    stream = RedactedStream(NOTHING_KNOWN)
    assert [stream.feed("secret words "), stream.feed("end"), stream.close()] == [MARK, "", MARK]


VALUE = 'my "own" pass/word+1 ü'
REDACTOR = Redactor([VALUE, "hunter2", "true", "abc", "password", MARK])


@rows(
        VALUE, "hunter2", quote(VALUE), quote(VALUE, safe=""), json.dumps(VALUE)[1:-1],
        json.dumps(json.dumps(VALUE))[3:-3], repr(VALUE)[1:-1], base64.b64encode(VALUE.encode()).decode(),
        VALUE.encode().hex(),)  # fmt: skip
def test_known_secret_is_redacted_in_every_encoding(form: str) -> None:
    for redacted in (
        REDACTOR.text(f"see {form}."),
        REDACTOR.final(f"see {form}.".encode()).decode(),
        REDACTOR.content([f"see {form}."])[0],
        REDACTOR.value({f"see {form}.": 1}).popitem()[0].replace(PLACEHOLDER, MARK),
    ):
        assert redacted.rstrip("=.") == f"see {MARK}"


def test_known_values_take_precedence_over_shapes_and_are_not_in_repr() -> None:
    assert "hunter2" not in repr(REDACTOR)
    assert Redactor(iter(["hunter2"])) == Redactor(("hunter2",))
    assert Redactor([KEY[:12]]).text(f"a {KEY} b") == f"a {MARK} b"
    assert Redactor([KEY + "!"]).text(f"a {KEY}! b") == f"a {MARK} b"


def test_value_that_reappears_after_redaction_redacts_the_whole_text() -> None:
    values = ["plugh-4711", *(f"xyzzy{at}{MARK}{at}xyzzy" for at in range(4))]
    text = "xyzzy3xyzzy2xyzzy1xyzzy0plugh-47110xyzzy1xyzzy2xyzzy3xyzzy"
    assert Redactor(values[:4]).text(f"a {text} b") == f"a xyzzy3{MARK}3xyzzy b"
    redactor = Redactor(values)
    assert redactor.text(f"a {text} b") == MARK
    assert redactor.unnamed(f"a {text} b") == MARK
    assert redactor.final(f"a {text} b".encode()) == MARK.encode()


@rows(
    (b"\xff hunter2 \xfe", b"\xff [redacted secret] \xfe"),
    (b'{"password": "other1word1"}', b'{"password": "other1word1"}'),
    (json.dumps({"a": VALUE}).encode(), b'{"a": "[redacted secret]"}'),
    (json.dumps([f"\n{KEY}\n"]).encode(), b'["\\n[redacted secret]\\n"]'),
    (b"postgres://me:hunter3@db", b"postgres://[redacted secret]@db"),
)
def test_final_bytes_are_redacted_by_known_values_and_shapes(data: bytes, redacted: bytes) -> None:
    assert REDACTOR.final(data) == redacted


def test_final_bytes_stay_valid_json() -> None:
    assert Redactor(['x1","y2']).final(b'{"a": ["x1","y2"]}') == b'{"a": ["[redacted secret]"]}'
    assert Redactor(['x1"],"y2']).final(b'{"a": ["x1"],"y2": 3}') == b'"[redacted secret]"'


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=8), children, max_size=4),
    max_leaves=10,
)
PLANTED = [VALUE, f"see {VALUE}", KEYS[0], f"a={KEYS[20]}", "password='x8KqqP2zz1'", f"secret: {HEX}", BLOCKS[0]]
CANARIES = ["pass/word", "pass%2Fword", KEYS[0][5:40], KEYS[20][5:30], "x8KqqP2zz1", HEX, "MIIEvQ"]


@given(
    value=PLAIN,
    planted=st.sampled_from(PLANTED),
    path=st.lists(st.sampled_from(["list", "map", "key", "json"]), max_size=5),
)
def test_no_secret_survives_at_any_depth(value: Any, planted: Any, path: list[str]) -> None:
    for step in path:
        wrapped = {"list": [value, planted], "map": {"x": planted, "y": value}, "json": json.dumps([planted, value])}
        planted = {planted: value} if step == "key" and isinstance(planted, str) else wrapped.get(step, planted)
    text = json.dumps(planted)
    redacted = [REDACTOR.value(planted), REDACTOR.content(planted), REDACTOR.text(text)]
    if "json" not in path[1:]:
        redacted.append(REDACTOR.text(repr(planted)))
    for item in redacted:
        for rendered in (json.dumps(item), json.dumps(item, ensure_ascii=False), repr(item)):
            assert not any(canary in rendered for canary in CANARIES)


FILLERS = ("=", "='", ": ", "a1B2\\")
HOSTILE = [
    *("eyJ", "abc=", "s" + "k-a", "a-", "https://a:", "-----BEGIN ", "bearer ", "token: x(", "'\\", "hunter", "{"),
    *("curl -u ", 'mysql -p "', "login ", "name: api_key ", '"value": "a1B2c3D4" ', "echo a1B2c3 | ", "$6$a1B2$"),
    *("identified by '", "MTA4NzY1NDMyMTA5ODc2NTQz.", "token:\n ", "Authorization:\r\n\t", f"{BLOCKS[0][:40]}\n{HEX}"),
    *(word + filler for word in SECRET_WORDS for filler in FILLERS),
    *(
        word + filler
        for shape in SHAPES
        if shape.scope is not Scope.TOKEN
        for word in shape.words
        for filler in FILLERS
    ),
]


@slow
def test_time_for_hostile_text_is_linear() -> None:
    """Quadratic time would take minutes here."""
    for piece in HOSTILE:
        REDACTOR.text(piece * (5_000 // len(piece)))


@rows(keys, shapes)
def test_no_pattern_uses_possessive_groups(module: ModuleType) -> None:
    """Python before 3.11.5 matches such groups wrongly (gh-106052); later versions do not show it."""
    patterns = [value for value in vars(module).values() if isinstance(value, re.Pattern)]
    patterns += [shape.pattern for shape in vars(module).get("SHAPES", ())]
    wrong = re.compile(r"\)(?:[*+?]|\{[0-9,]+\})\+|\(\?>")
    assert [pattern.pattern for pattern in patterns if wrong.search(pattern.pattern)] == []


def test_every_block_of_a_tool_message_is_redacted() -> None:
    blocks = ({"type": "text-plain", "text": "hunter2"}, {"type": "image", "url": "https://host/hunter2.png"})
    redacted = ({"type": "text-plain", "text": MARK}, {"type": "image", "url": f"https://host/{MARK}.png"})
    assert redacted_output(dataclasses.replace(ToolOutput.ok(), blocks=blocks), REDACTOR).blocks == redacted


# --- Parts of texts


@rows(
    (f"a\n{BLOCKS[0]}\nb\n", f"a\n{MARK}\n{MARK}\n{MARK}\n{MARK}\n{MARK}\nb\n"),
    (f"a = '{BLOCKS[1]}'\n", f"a = '{MARK}'\n"),
    (f"a{BLOCKS[2]}b\r\n", f"a{MARK}\r\n{MARK}\r\n{MARK}b\r\n"),
    (f"{BLOCKS[4]}\n", f"{MARK}\n{MARK}\n\n{MARK}\n{MARK}\n{MARK}\n"),
    (f"  # {HEADER}\n  #\n  # {BASE64}\n  # {FOOTER}", f"  # {MARK}\n  #\n  {MARK}\n  {MARK}"),
    (f"{BLOCKS[8]}\nb c", f"{MARK}\n{MARK}\n{MARK}\nb c"),
    (BLOCKS[0] + BLOCKS[0], f"{MARK}\n{MARK}\n{MARK}\n{MARK}\n{MARK}{MARK}\n{MARK}\n{MARK}\n{MARK}\n{MARK}"),
    (f"{BLOCKS[2]}x{BLOCKS[7]}", f"{MARK}\r\n{MARK}\r\n{MARK}x{MARK}\n{MARK}\n{MARK}"),
)
def test_private_key_block_is_masked_line_by_line(text: str, masked: str) -> None:
    assert masked_blocks(text) == masked


@rows(*BLOCKS)
def test_masked_lines_have_their_line_numbers(block: str) -> None:
    text = f"one\nKEY = {block}"
    masked = masked_blocks(text).split("\n")
    changed = [number for number, line in enumerate(text.split("\n"), start=1) if masked[number - 1] != line]
    assert masked_lines(text) == {number: masked[number - 1] for number in changed}
    assert masked_lines(text)[2].rstrip("\r") == f"KEY = {MARK}"


LINES = st.lists(
    st.sampled_from(
        [*BLOCKS, HEADER, FOOTER, BASE64, "\n", "\r\n", "\\n", "-", "----", '"', " ", "# ", "a" * 15, "word "]
    )
)


@given(LINES)
def test_masking_keeps_the_line_count_and_nothing_of_the_block(pieces: list[str]) -> None:
    text = "".join(pieces)
    masked = masked_blocks(text)
    assert masked.count("\n") == text.count("\n")
    assert masked.endswith("\n") == text.endswith("\n")
    assert list(key_block_spans(masked)) == []
    assert (masked is text) is (not list(key_block_spans(text)))


TOKEN = "".join(("gh", "p_", MIXED[:36]))
NAMED = 'password = "x8K!qP2zzz"'
ONE_LINE_KEY = BLOCKS[0].replace("\n", " ")


@rows(
        ("one two three", 0, 13, ("one two three", 0, 13)), ("one two three", 0, 3, ("one", 0, 3)),
        ("one two three", 0, 6, ("one ", 0, 4)), ("one two three", 4, 7, ("two", 4, 7)),
        ("one two three", 5, 13, (" three", 7, 13)), ("one two three", 5, 6, ("", 7, 7)),
        ("f(one,two;[x])", 3, 12, (",two;[x", 5, 12)), ('a="one two" b', 3, 9, (" ", 6, 7)),
        ("三个字和一个字", 2, 4, ("字和", 2, 4)), ("x" * 50, 0, 40, ("", 0, 0)), ("x" * 50, 10, 50, ("", 50, 50)),
        (f"a {TOKEN} b", 0, 10, (f"a {MARK}", 0, 42)), (f"a {TOKEN} b", 10, 44, (f"{MARK} b", 2, 44)),
        (f"a {TOKEN} b", 10, 20, (MARK, 2, 42)), (f"a {TOKEN} b", 0, 2, ("a ", 0, 2)),
        (f"a {TOKEN} b", 42, 44, (" b", 42, 44)), (f"{NAMED} b", 3, 25, (' = "' + MARK + '" b', 8, 25)),
        (f"{NAMED} b", 12, 25, (f'{MARK}" b', 12, 25)), (f"{NAMED} b", 15, 25, (f'{MARK}" b', 12, 25)),
        (f"a {ONE_LINE_KEY} b", 60, 120, (MARK, 2, 2 + len(ONE_LINE_KEY))),)  # fmt: skip
def test_excerpt_ends_between_words_and_around_secrets(
    text: str, start: int, end: int, piece: tuple[str, int, int]
) -> None:
    assert whole_words(text, start, end) == piece


@given(
    st.lists(
        st.sampled_from(["a", " ", "bc ", ", ", "(", ")", '"', TOKEN, f" {TOKEN} ", NAMED, f" {NAMED} "]), max_size=30
    ),
    st.integers(0, 400),
    st.integers(0, 400),
)
def test_no_part_of_a_secret_is_shown(parts: list[str], start: int, length: int) -> None:
    text = "".join(parts)
    start = min(start, len(text))
    piece, begins, ends = whole_words(text, start, min(len(text), start + length))
    assert 0 <= begins <= ends <= len(text)
    bare = piece.replace(MARK, "")
    assert TOKEN[4:10] not in bare or TOKEN[4:10] in Redactor().text(text)
    assert "8K!qP2" not in bare or "8K!qP2" in Redactor().text(text)


KNOWN_VALUE = "my own secret 42"
STREAMED = Redactor([KNOWN_VALUE, "line-1-of-the-value\nline-2-of-the-value"])
TEXTS = [
    text
    for text in [*KEYS, *("".join(part) for part in PARTS), *BLOCKS, *BENIGN, KNOWN_VALUE]
    if not text.startswith("{")
]


def streamed(text: str, cuts: list[int], redactor: Redactor = STREAMED) -> list[str]:
    stream = RedactedStream(redactor)
    bounds = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [*(stream.feed(text[a:b]) for a, b in pairwise(bounds)), stream.close()]


@given(texts=st.lists(st.sampled_from(TEXTS), max_size=5), cuts=st.lists(st.integers(0, 10_000), max_size=20))
def test_streamed_text_is_redacted_like_the_whole_text(texts: list[str], cuts: list[int]) -> None:
    document = "\n".join(texts)
    assert "".join(streamed(document, cuts)) == STREAMED.text(document)


def test_unterminated_key_is_scanned_only_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []

    def counting(text: str) -> int | None:
        looked_at.append(len(text))
        return open_block(text)

    monkeypatch.setattr("mendgraph.nodes.execute_tools.secrets.text_parts.open_block", counting)
    stream = RedactedStream(STREAMED)
    stream.feed("-----BEGIN PRIVATE KEY-----\n")
    for _ in range(1_000):
        assert stream.feed(f"{BASE64}\n") == ""
    assert stream.close() == MARK
    assert len(looked_at) < 100
