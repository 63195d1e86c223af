import base64

from hypothesis import given, strategies as st

from mendgraph.nodes.execute_tools.secrets.redact import forms_of, is_findable, is_findable_key, known_values

VALUE = 'p/ss w"rd+\\ü1'


@given(before=st.binary(max_size=9), after=st.binary(max_size=9))
def test_known_value_is_found_inside_base64(before: bytes, after: bytes) -> None:
    text = base64.b64encode(before + VALUE.encode() + after).decode()
    assert any(form in text for form in forms_of([VALUE]))


def test_long_lines_of_a_known_value_are_found() -> None:
    forms = forms_of(["first-line-0123456789\nshort1\nsecond-line-0123456789\n"])
    assert {"first-line-0123456789", "second-line-0123456789"} <= set(forms)
    assert "short1" not in forms


FINDABLE = [
    "abc12!", "key-123456", "test-token-of-the-server", "hunter2", "a" * 8 + "bcdefghi", "123456789", "p@ss word",
    "/x8K+qP2/zz==",
]  # fmt: skip
_TRIVIAL = """
    true none None null password changeme secret test testing abc a1b2c secret123 my-secret postgres Postgres POSTGRES
    12345678 /run/secrets/db ./a/b ~/key test-token
"""
TRIVIAL = ["", " ", *_TRIVIAL.split(), "aaaaaaa", "1a1a1a1a1a"]


def test_trivial_values_are_not_searched_for() -> None:
    assert [value for value in (*FINDABLE, *TRIVIAL) if is_findable(value)] == FINDABLE
    assert [value for value in (*FINDABLE, *TRIVIAL) if forms_of([value])] == FINDABLE
    assert [value for value in FINDABLE if value not in forms_of([value])] == []


ENVIRONMENT = [
    ("OPENAI_API_KEY", "key-123456", ("key-123456",)), ("GITHUB_TOKEN", "abc123!", ("abc123!",)),
    ("DB_PASSWORD", " hunter2\n", ("hunter2",)), ("ENCRYPTION_KEY", "abc123!", ("abc123!",)),
    ("MY_PAT", "abc123!", ("abc123!",)), ("lower_secret", "abc123!", ("abc123!",)),
    ("DATABASE_URL", "postgres://me:hunter2@db/x", ("hunter2",)), ("REDIS_URL", "redis://:hunter2@host", ("hunter2",)),
    ("DATABASE_URL", "postgres://me:hun%40ter2@db/x", ("hun%40ter2", "hun@ter2")),
    ("DATABASE_URL", "postgres://me:password@db/x", ()), ("DATABASE_URL", "postgres://db/x", ()),
    ("DATABASE_URL", "postgres://zebra:zebra@db/x", ()), ("DATABASE_URL", "postgres://me@db/x", ()),
    ("STORE_URL", "postgresql://db/x?user=me&password=hun%40ter2", ("hun@ter2",)),
    ("STORE_URL", "postgresql://me:hunter2@db/x?sslpassword=hunter3", ("hunter3", "hunter2")),
    ("STORE_URL", "no address?password=hunter2", ()), ("DB_PASSWORD", "postgres", ()), ("API_KEY", "", ()),
    ("GITHUB_TOKEN_FILE", "/run/secrets/token1", ()), ("MAX_TOKENS", "1234567890", ()),
    ("TOKENIZERS_PARALLELISM", "abc123!", ()), ("PWD", "/home/me/abc123!", ()),
    ("OLDPWD", "/home/me/abc123!", ()), ("HOME", "/home/abc123!", ()), ("KEYBOARD", "abc123!", ()),
]  # fmt: skip


def test_secrets_in_the_environment_become_known_values() -> None:
    assert [known_values({name: value}) for name, value, _ in ENVIRONMENT] == [values for *_, values in ENVIRONMENT]


def test_placeholder_for_a_key_is_not_searched_for() -> None:
    keys, others = ["plum-42-orchard-7", "a1b2-c3d4-e5"], ["a1b2-c3d4-e", "not-needed", "aaaaaaaaaaaaaaaa"]
    assert [key for key in (*keys, *others) if is_findable_key(key)] == keys
