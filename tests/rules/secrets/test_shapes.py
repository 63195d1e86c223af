import base64

from mendgraph.nodes.execute_tools.secrets.key_blocks import key_block_spans, open_block
from mendgraph.nodes.execute_tools.secrets.keys import fold
from mendgraph.nodes.execute_tools.secrets.shapes import shape_spans
from tests.row_tables import rows
from tests.rules.secrets.samples import BASE64, BLOCKS, KEYS
from tests.rules.secrets.ways import PASS, WORD


def secrets_in(text: str) -> list[str]:
    return sorted({text[start:end] for start, end in shape_spans(text, fold(text))})


@rows("|", "x = '|'", " |\n", "\\n|\\n", "\\u0022|", "\x1b[31m|\x1b[0m", "?q=%3D|&b")
def test_key_of_every_shape_is_found_in_full(around: str) -> None:
    matches = [secrets_in(around.replace("|", key)) for key in KEYS]
    assert [len(spans) for spans in matches] == [1] * len(KEYS)
    assert [key for key, spans in zip(KEYS, matches, strict=True) if not spans[0].startswith(key)] == []


def blocks_in(text: str) -> list[str]:
    return [text[start:end] for start, end in key_block_spans(text)]


def test_private_key_block_is_found_in_full() -> None:
    assert [blocks_in(f"before {block}") for block in BLOCKS] == [[block] for block in BLOCKS]


def test_list_of_lines_in_json_is_not_a_block() -> None:
    assert blocks_in(f'["-----BEGIN PRIVATE KEY-----"], {{"a": "{BASE64}"}}') == []


@rows(*BLOCKS[:5])
def test_block_is_open_until_its_last_line(block: str) -> None:
    for length in range(len(block)):
        assert open_block("a " + block[:length]) == (2 if length else None)
    assert open_block("a " + block) is None
    assert open_block(f"a {block} b") is None


def test_bot_token_starts_with_a_number_in_base64() -> None:
    tail = f".{'GhIjKl'}.{'a1B2c3D4e5F6g7H8i9J0k1L2m3N4'}"
    number = base64.b64encode(b"123456789012345678").decode()
    assert secrets_in(number + tail) == [number + tail]
    assert secrets_in("Mabcdefghijklmnopqrstuvwx" + tail) == []


OPTIONS = [
    (f"curl -u me:{WORD}\nmysql -p{PASS}\n", [f"me:{WORD}", PASS]),
    (f"sshpass -p {WORD} mysql -p{PASS}", [WORD, PASS]), (f"curl \\\n  -s \\\n  -u me:{WORD}", [f"me:{WORD}"]),
    (f"curl -H 'X: a; b' -u 'me:{WORD}'", [f"me:{WORD}"]), (f"curl -u '{WORD}:' u", [f"{WORD}:"]),
    (f"curl a | sort -u me:{WORD}", []), (f"curl a; tar -u me:{WORD}", []), (f"curl a\nsort -u me:{WORD}", []),
    (f"docker run -p {WORD}", []), (f"docker login -p {WORD}", [WORD]), (f"login -p {WORD}", []),
    (f"/usr/bin/curl -u me:{WORD}", [f"me:{WORD}"]), (f"my-curl -u me:{WORD}", []), (f"mysql -p {WORD}", []),
    ("curl -u 1000:1000", []),
]  # fmt: skip


def test_meaning_of_an_option_depends_on_the_program() -> None:
    assert [secrets_in(text) for text, _ in OPTIONS] == [sorted(secrets) for _, secrets in OPTIONS]
