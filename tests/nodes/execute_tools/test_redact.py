import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from nodes.execute_tools.redact import is_secret_key, redact
from nodes.records import ToolError, ToolErrorCode

_KEYS = """password db_password PASSWD passphrase secret client_secret clientSecret token access_token accessToken
refresh_tokens auth_token api_key apikey apiKey API-KEY OPENAI_API_KEY authorization Authorization bearer credentials
private_key aws_secret_access_key cookie Set-Cookie x-api-key db.password my.token"""
SECRET_KEYS = _KEYS.split()

_HARMLESS = """max_tokens maxTokens min_tokens input_tokens output_tokens total_tokens cached_tokens tokens tokens_used
prompt_tokens token_count tokenCount token_limit token_type token_ids tokenizer tokenize max_token keys key monkey path
author passed compass arguments tool_name sha256 src/secrets.py token.py docs/api_key.md"""
HARMLESS_KEYS = _HARMLESS.split()


@pytest.mark.parametrize("key", SECRET_KEYS)
def test_values_under_these_keys_are_secret(key: str) -> None:
    assert is_secret_key(key) is True
    assert redact({key: "hunter2"}) == {key: "***"}


@pytest.mark.parametrize("key", HARMLESS_KEYS)
def test_values_under_these_keys_are_not(key: str) -> None:
    assert is_secret_key(key) is False
    assert redact({key: "hunter2"}) == {key: "hunter2"}


JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTYifQ.abcdefghijk_-lmnop"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("use sk-abcdefghijkl1234mnop now", "use *** now"),
        ("sk-proj-abc_DEF-0123456789abcdef", "***"),
        ("sk-ant-api03-abcdefghij0123456789", "***"),
        ("sk_live_abcdefghij0123456789", "***"),
        ("ghp_abcdefghijklmnopqrst0123456789", "***"),
        ("github_pat_11ABCDEFG0123456789_abc", "***"),
        ("id=AKIAIOSFODNN7EXAMPLE.", "id=***."),
        ("AIzaSyA-abcdefghijklmnopqrstuvwxyz012345", "***"),
        ("xoxb-1234567890-abcdefghij", "***"),
        ("hf_abcdefghijklmnopqrstuvwx", "***"),
        (JWT, "***"),
        ("Authorization: Bearer abcdef0123456789", "Authorization: Bearer ***"),
        ("Authorization: Basic dXNlcjpwYXNzd29yZA==", "Authorization: Basic ***"),
        ("https://me:hunter2@example.org/x", "https://***@example.org/x"),
        ("postgres://me:hunter2@db:5432/x", "postgres://***@db:5432/x"),
        ("redis://:hunter2@host", "redis://***@host"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY-----\nx", "***\nx"),
        ("-----BEGIN PRIVATE KEY-----\ncut off", "***"),
        ("OPENAI_API_KEY=abcdefgh12 next", "OPENAI_API_KEY=*** next"),
        ('{"password": "hunter2hunter2"}', '{"password": "***"}'),
        (r"{\"password\": \"hunter2hunter2\"}", r"{\"password\": \"***\"}"),
        ("db_password: hunter2hunter2", "db_password: ***"),
    ],
)
def test_known_shapes_are_taken_out_of_text(text: str, shown: str) -> None:
    assert redact(text) == shown
    assert redact({"a": [text]}) == {"a": [shown]}
    assert list(redact({text: 1})) == [shown]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "d14a58bae804a2b80b5b76a010239c88ffca1fc7951a90f8e9131beda1e23c1b",
        "123e4567-e89b-12d3-a456-426614174000",
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==",
        '{"max_tokens": 1234567890, "tokenizer": "cl100k_base"}',
        "token = get_token(request)",
        "password = passwords[index]",
        "def reset_password(user): ...",
        "secret: str",
        "task-oriented-programming-language",
        "sk-learn-is-a-library-of-python",
        "https://example.org:8080/a@b",
        "git@github.com:me/project.git",
        "the bearer of news",
        "a.b.c",
    ],
)
def test_harmless_text_is_left_alone(text: str) -> None:
    assert redact(text) == text


@dataclasses.dataclass(frozen=True)
class Login:
    user: str
    password: str


class Opaque:
    def __repr__(self) -> str:
        return "sk-abcdefghijkl1234mnop"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, None),
        (True, True),
        (1.5, 1.5),
        ((1, "a"), [1, "a"]),
        ({1: 2}, {"1": 2}),
        ({"password": 1234}, {"password": "***"}),
        ({"password": None, "secret": True}, {"password": None, "secret": True}),
        ({"credentials": {"user": "me", "list": ["x", 1]}}, {"credentials": {"user": "***", "list": ["***", "***"]}}),
        ({"input_tokens": 12}, {"input_tokens": 12}),
        (Login("me", "hunter2"), {"user": "me", "password": "***"}),
        (
            ToolError(code=ToolErrorCode.IO_ERROR, message="sk-abcdefghijkl1234mnop"),
            {"code": "io_error", "message": "***", "suggestions": [], "fatal": False},
        ),
        (b"sk-abcdefghijkl1234mnop", "<23 bytes>"),
        (Opaque(), "<Opaque>"),
        (Login, "<type>"),
    ],
)
def test_every_value_becomes_a_plain_copy(value: Any, shown: Any) -> None:
    assert redact(value) == shown


def test_what_cannot_be_looked_through_is_not_shown() -> None:
    class Broken(dict[str, str]):
        def items(self) -> Any:
            raise ZeroDivisionError

    endless: list[Any] = []
    endless.append(endless)
    assert redact(Broken()) == "***"
    assert redact({"a": endless}) == "***"


def test_hostile_text_takes_linear_time() -> None:
    for piece in ("eyJ", "eyJ-", "abc=", "sk-a", "a-", "https://a:", "-----BEGIN ", "bearer ", "token: x(", "'\\"):
        redact(piece * 50_000)


CANARY = "canary0123456789"
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=8), children, max_size=4),
    max_leaves=10,
)


@given(value=PLAIN, key=st.sampled_from(SECRET_KEYS), path=st.lists(st.sampled_from(["list", "map"]), max_size=5))
def test_no_secret_survives_at_any_depth(value: Any, key: str, path: list[str]) -> None:
    planted: Any = {key: CANARY, "other": value}
    for step in path:
        planted = [value, planted] if step == "list" else {"x": planted, "y": value}
    assert CANARY not in json.dumps(redact(planted))


@given(value=PLAIN)
def test_redacting_twice_changes_nothing_more(value: Any) -> None:
    once = redact(value)
    assert redact(once) == once
