import pytest

from mendgraph.nodes.execute_tools.secrets.keys import fold
from mendgraph.nodes.execute_tools.secrets.shapes import key_block_spans, open_block, shape_spans, url_password
from tests.nodes.execute_tools.secrets.samples import BASE64, BLOCKS, HEX, KEYS, MIXED, joined
from tests.nodes.execute_tools.secrets.ways import PASS, WORD


def taken(text: str) -> list[str]:
    return sorted({text[start:end] for start, end in shape_spans(text, fold(text))})


@pytest.mark.parametrize("key", KEYS)
def test_each_key_is_found_as_a_whole(key: str) -> None:
    around = ["|", "x = '|'", " |\n", "\\n|\\n", "\\u0022|", "\x1b[31m|\x1b[0m", "?q=%3D|&b"]
    found = [taken(each.replace("|", key)) for each in around]
    assert [len(each) for each in found] == [1] * len(around)
    assert all(each[0].startswith(key) for each in found)


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("https://me:hunter2@example.org/x", "me:hunter2"), ("postgres://me:p@ss1@db", "me:p@ss1"),
        (f"https://{MIXED[:40]}@git.example.org", MIXED[:40]), ("Bearer abcdef0123456789", "abcdef0123456789"),
        ("bearer\tabcdef0123456789", "abcdef0123456789"), ("Basic dXNlcjpwYXNzd29yZA==", "dXNlcjpwYXNzd29yZA=="),
        (f"authorization: Token {HEX}", HEX), (f"'Authorization': 'ApiKey {MIXED[:20]}'", MIXED[:20]),
        ("Server=a;Pwd=x1!y;", "x1!y"),
        ("pwd=x1!y;server=a", "x1!y"), ("AccountKey=" + MIXED[:40] + "==", MIXED[:40] + "=="),
        (f"?x=1&sig={MIXED[:40]}%3D", f"{MIXED[:40]}%3D"), (f"&X-Amz-Signature={HEX}", HEX),
        (f"Cookie: a=b; PHPSESSID={MIXED[:26]}; c", MIXED[:26]), ("login me password s3cr3t!", "s3cr3t!"),
        (f"https://discord.com/api/webhooks/123456789012345678/{MIXED[:68]}", MIXED[:68]),
    ],
)  # fmt: skip
def test_secrets_are_known_by_what_stands_before_them(text: str, secret: str) -> None:
    assert taken(text) == [secret]


@pytest.mark.parametrize(
    ("value", "password"),
    [
        ("postgres://me:hunter2@db/x", "hunter2"), ("postgres://me:hun%40ter2@db/x", "hun%40ter2"),
        ("redis://:hunter2@host", "hunter2"), ("postgres://postgres:postgres@db/x", ""),
        ("postgres://zebra:zebra@db/x", ""), ("postgres://me@db/x", ""), (f"https://{MIXED[:40]}@db/x", ""),
        ("hunter2", ""),
    ],
)  # fmt: skip
def test_password_of_a_url(value: str, password: str) -> None:
    assert url_password(value) == password


@pytest.mark.parametrize(
    "text",
    [
        joined("gh~p_") + "x" * 36,
        joined("gl~pat-your-token-goes-here"),
        joined("s~k-ant-api03-...") + "1234567890",
        joined("s~k-your-api-key-goes-here"),
        joined("xgh~p_") + MIXED[:36],
        "Basic YToAAWJjZGVm",  # a, a colon and signs that cannot be printed
        "Basic authentication",
    ],
)
def test_placeholders_and_other_words_are_no_keys(text: str) -> None:
    assert taken(text) == []


def blocks_in(text: str) -> list[str]:
    return [text[start:end] for start, end in key_block_spans(text)]


@pytest.mark.parametrize("block", BLOCKS)
def test_block_is_found_as_a_whole(block: str) -> None:
    assert blocks_in(f"before {block}") == [block]


def test_list_of_lines_in_json_stays_json() -> None:
    assert blocks_in(f'["-----BEGIN PRIVATE KEY-----"], {{"a": "{BASE64}"}}') == []


@pytest.mark.parametrize("block", BLOCKS[:5])
def test_block_is_open_until_its_last_line(block: str) -> None:
    for length in range(len(block)):
        assert open_block("a " + block[:length]) == (2 if length else None)
    assert open_block("a " + block) is None
    assert open_block(f"a {block} b") is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"curl -u me:{WORD}\nmysql -p{PASS}\n", [f"me:{WORD}", PASS]),
        (f"sshpass -p {WORD} mysql -p{PASS}", [WORD, PASS]), (f"curl \\\n  -s \\\n  -u me:{WORD}", [f"me:{WORD}"]),
        (f"curl -H 'X: a; b' -u 'me:{WORD}'", [f"me:{WORD}"]), (f"curl -u '{WORD}:' u", [f"{WORD}:"]),
        (f"curl a | sort -u me:{WORD}", []), (f"curl a; tar -u me:{WORD}", []), (f"curl a\nsort -u me:{WORD}", []),
        (f"docker run -p {WORD}", []), (f"docker login -p {WORD}", [WORD]), (f"login -p {WORD}", []),
        (f"/usr/bin/curl -u me:{WORD}", [f"me:{WORD}"]), (f"my-curl -u me:{WORD}", []), (f"mysql -p {WORD}", []),
        ("curl -u 1000:1000", []),
    ],
)  # fmt: skip
def test_program_decides_what_an_option_means(text: str, found: list[str]) -> None:
    assert taken(text) == sorted(found)
