from hypothesis import example, given, strategies as st

from mendgraph.nodes.execute_tools.secrets.keys import (
    SECRET_WORDS,
    assignment_spans,
    fold,
    is_about,
    is_secret_key,
    looks_secret,
    names_a_literal,
)
from mendgraph.nodes.execute_tools.secrets.shapes import SHAPES, Scope, shape_spans
from tests.row_tables import rows
from tests.rules.secrets.samples import BLOCKS, KEYS

_CLEAR = """password db_password PASSWD passphrase secret client_secret clientSecret token access_token accessToken
refresh_tokens auth_token api_key apikey apiKey API-KEY OPENAI_API_KEY authorization Authorization bearer credentials
private_key aws_secret_access_key cookie Set-Cookie x-api-key db.password my.token passcode"""
_HARMLESS = """max_tokens maxTokens min_tokens input_tokens output_tokens total_tokens cached_tokens tokens tokens_used
prompt_tokens token_count tokenCount token_limit token_type token_ids tokenizer tokenize max_token keys key monkey path
author passed compass arguments tool_name sha256 src/secrets.py token.py docs/api_key.md"""
_ABOUT = """password_field tokenUrl token_endpoint PASSWORD_RESET_URL secret_name API_KEY_HEADER cookie_path
credentials_file password_hash apiKeySecurity tokenExpiresAt passwordMinLength secretRef $token"""
SECRET, HARMLESS, ABOUT = _CLEAR.split(), _HARMLESS.split(), _ABOUT.split()


def test_names_are_classified_as_secret_harmless_or_about_a_secret() -> None:
    assert [name for name in (*SECRET, *HARMLESS) if is_secret_key(name)] == SECRET
    assert [name for name in (*SECRET, *HARMLESS, *ABOUT) if names_a_literal(name)] == SECRET
    assert [name for name in ABOUT if is_about(name)] == ABOUT


SECRET_VALUES = [
    "hunter2hunter2", "canary0123456789", "Tr0ub4dor&3", "P@ssw0rd99x", "x8K!qP2z", "kJhGfDsApOiUyTrE",
    "9f86d081884c7d659a2feaa0c55ad015", "123e4567-e89b-12d3-a456-426614174000",
    "wJalrXUtnF/K7MDENG+bPxRfiCY3x9zQ2LmT5vWs", "dGhpcyBpcyBzZWNyZXQx==", "aB3[dE5}fG7!",
    "a" * 5 + "1" * 5 + "bC3" * 1362,
]  # fmt: skip
TOO_SHORT, TOO_LONG = "a1B2c3D", "a1B2" * 1025
OTHER_VALUES = [
    "", TOO_SHORT, TOO_LONG, "correcthorsebattery", "Enter-your-password", "two words 1!", "changeme", "password123",
    "my_secret_key_1", "xxxxxxxxxx1", "correct!horse", "battery?staple?", "${DB_PASSWORD}", "$DB_PASSWORD",
    "{{ token1 }}", "{password}1", "%(password)s1", "<password1>", "%PASSWORD%", "abcdef...1234",
    "https://example.org/1", "me1@example.org", "/etc/app/credentials2.json", "./secrets/v2",
    "django.contrib.auth2.TokenBackend", "access_token_v2", "caching_sha2_password", "oauth2token", "12345678",
    "2024-01-01", "192.168.100.200", "0xdeadbeef12", "#/definitions/oauth2Scopes", "[-!#$%&*+.^_`|~0-9a-zA-Z]+",
    "(?P<token>[A-Z]+)", "\\w+\\d{8}", "==abc123def", "[redacted secret]1",
]  # fmt: skip


def test_secret_looking_literals_are_recognized() -> None:
    assert [value for value in (*SECRET_VALUES, *OTHER_VALUES) if looks_secret(value)] == SECRET_VALUES


PIECES = [*KEYS, *BLOCKS, *SECRET_WORDS, *"=:,> \n\"'/@&;-_.", "aB3$efgh!", "max_tokens", "\N{KELVIN SIGN}ey", "İ"]
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=8).map("".join)


@given(TEXTS)
@example("://user:aB3$efgh!@")
def test_keyword_search_finds_every_shape(text: str) -> None:
    folded = fold(text)
    expected = set()
    for shape in SHAPES:  # each pattern is looked for whether its words are there or not
        matches = shape.pattern.finditer(folded if shape.scope is Scope.FOLDED else text)
        expected |= {span for span in (match.span("secret") for match in matches) if shape.accepts(text[slice(*span)])}
    assert expected <= set(shape_spans(text, folded))


S = "x8KqqP2zz1"
ASSIGNED = [
    f"{{}}={S}", f"{{}}={S} next", f"  {{}}: {S}\n", f"export {{}}={S}", f"{{}} = '{S}'", f'{{}}="{S}",',
    f'{{}}: str = "{S}"', f'{{}}: Optional[str] = "{S}"', f"{{}} := `{S}`", f":{{}} => '{S}'", f'"{{}}": "{S}"',
    f'\\"{{}}\\": \\"{S}\\"', f'\\\\\\"{{}}\\\\\\": \\\\\\"{S}\\\\\\"', f'os.environ["{{}}"] = "{S}"',
    f"define('{{}}', '{S}')", f"<{{}}>{S}</a>", f"run --{{}} {S} more", f"run --{{}}={S}",
    f"one\\n--{{}} {S}\\ntwo", f"?{{}}={S}&page=2", f'f(1, {{}}=b"{S}")', f'"{{}}: {S}"', f"one\\n{{}}={S}\\ntwo",
    f"12\t{{}}={S}", f"+{{}}={S}", f"{{}} == '{S}'", f"{{}} !== '{S}'", f"if ('{S}' === {{}}) x",
    f'char {{}}[25] = "{S}";', f"{{}} ::= {S}", f"{{}} .= '{S}'", f"{{}} ??= '{S}'", f'{{}} string = "{S}"',
    f'{{}}("{S}")', f'the {{}} "{S}"', f"{{}}: >-\n  {S}\n", f"{{}}:\r\n {S}\r\nnext: a",
    f"{{}} = (\n    '{S}'\n)", f"<{{}}>\n  {S}\n</a>", f'"{{}}", default="{S}"',
]  # fmt: skip
NOT_ASSIGNED = [
    f"password >= '{S}'", f"password::{S}", f"password({S})", f"password = {S}()", f"password = {S}[0]",
    f"password = a.{S}", f"password {S}", f"password, '{S}'", f"password>{S}</a>", f"<password>{S}",
    f"password_field = '{S}'", f"max_tokens = '{S}'", f"passport = '{S}'", f"password = '{S} {S}'",
    f"password = '{S}", f"password = \"{S}'", f"x = '{S}'  # password", f"password =\n'{S}'",
    f"password:\n  {S}: a", f"password:\n  - {S}\n", f"password:\n  {S} more words\n", f"['a_token',\n '{S}']",
    f"pass `{S}`", f"PWD=/home/{S}/a", f"bypass = '{S}'", f"secretary = '{S}'", f"stop_token = '{S}'",
    f"access_key_id = '{S}'",
]  # fmt: skip


def secrets_in(text: str) -> list[str]:
    return sorted({text[start:end] for start, end in assignment_spans(text, fold(text))})


@rows("password", "DB_PASSWORD", "clientSecret", "api-key", "x_access_token", "Cookie")
def test_literal_under_a_secret_name_is_found(name: str) -> None:
    texts = [text.replace("{}", name) for text in ASSIGNED]
    assert [text for text in texts if secrets_in(text) != [S]] == []


def test_text_without_an_assigned_literal_is_kept() -> None:
    assert [text for text in NOT_ASSIGNED if secrets_in(text)] == []


def test_ampersand_belongs_to_a_value_but_not_in_a_query() -> None:
    assert secrets_in("password = Tr0ub4dor&3") == ["Tr0ub4dor&3"]
    assert secrets_in(f"password={S}&page_number=2") == [S]
    assert (
        secrets_in(f"/x?token={S}&next=/home")
        == secrets_in(f"/x?a=1&token={S}#top")
        == secrets_in(f"?token={S}&2")
        == [S]
    )


def test_letters_that_grow_when_lowercased_shift_no_span() -> None:
    text = f"İİİ PASSWORD='{S}'"
    assert len(fold(text)) == len(text)
    assert secrets_in(text) == [S]
