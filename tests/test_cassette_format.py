from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from hypothesis import given, strategies as st

from nodes.records import JsonMap
from tests.cassette_format import (
    SECRET_SHAPES,
    BlockYaml,
    lint,
    only_headers,
    recorded_from,
    same_json,
    scrubbed,
)

SECRETS = [
    "sk-" + "a1B2" * 8,
    "hf_" + "a1B2" * 8,
    "ghp_" + "a1B2" * 9,
    "github_pat_" + "a1B2" * 9,
    "AKIA" + "A1B2" * 4,
    "AIza" + "a1B2-" * 7,
    "Bearer " + "a1B2" * 8,
    "eyJhbGciOiJIUzI1NiJ9." + "a1B2" * 5 + ".x",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
    "https://name:" + "word@host/",
]


def document(body: str, answer: str) -> JsonMap:
    request = {"method": "POST", "uri": "http://llm.test/v1", "body": body, "headers": {}}
    response = {"status": {"code": 200, "message": "OK"}, "headers": {}, "body": {"string": answer}}
    return {"version": 1, "interactions": [{"request": request, "response": response}]}


def test_a_cassette_reads_like_a_page(tmp_path: Path) -> None:
    text = BlockYaml("scripted server").serialize(document('{"model":"é","n":1}', "data: {}\n\ndata: [DONE]\n\n"))
    assert text == (
        "recorded_from: scripted server\n"
        "interactions:\n"
        "- request:\n"
        "    method: POST\n"
        "    uri: http://llm.test/v1\n"
        "    body: |\n"
        "      {\n"
        '        "model": "é",\n'
        '        "n": 1\n'
        "      }\n"
        "    headers: {}\n"
        "  response:\n"
        "    status:\n"
        "      code: 200\n"
        "      message: OK\n"
        "    headers: {}\n"
        "    body:\n"
        "      string: |+\n"
        "        data: {}\n"
        "\n"
        "        data: [DONE]\n"
        "\n"
        "version: 1\n"
    )
    (tmp_path / "a.yaml").write_text(text, encoding="utf-8")
    assert recorded_from(tmp_path / "a.yaml") == "scripted server"


@given(answer=st.text(st.characters(exclude_categories=["Cs"])))
def test_what_was_answered_comes_back_to_the_letter(answer: str) -> None:
    serializer = BlockYaml("local model")
    back = serializer.deserialize(serializer.serialize(document("{}", answer)))
    assert back["interactions"][0]["response"]["body"]["string"] == answer


def test_a_cassette_cannot_run_code() -> None:
    with pytest.raises(yaml.constructor.ConstructorError):
        BlockYaml("x").deserialize("!!python/object/apply:os.getcwd []")


@pytest.mark.parametrize("secret", SECRETS)
def test_secrets_are_scrubbed_and_found(secret: str) -> None:
    assert scrubbed(f'"{secret}"'.encode()) in (b'"SCRUBBED"', b'"https://SCRUBBED@host/"')
    assert len(lint(f"one\n{secret}")) == 1
    assert lint(f"one\n{secret}")[0].startswith("line 2 holds ")
    assert secret not in lint(secret)[0]


def test_every_shape_has_its_example() -> None:
    assert {name for name, shape in SECRET_SHAPES.items() if any(map(shape.search, SECRETS))} == set(SECRET_SHAPES)


@pytest.mark.parametrize("text", ["/home/me/a.py", "/Users/me/a.py", "/root/a.py", "/tmp/pytest-of-me/x"])
def test_paths_of_one_machine_are_found(text: str) -> None:
    assert len(lint(text)) == 1


@pytest.mark.parametrize("text", ["risk-based-approach-to-tasks", "src/home/x.py", "sk-short", "https://host:80/a"])
def test_ordinary_words_are_no_secrets(text: str) -> None:
    assert (scrubbed(text.encode()), lint(text)) == (text.encode(), [])


@pytest.mark.parametrize("body", [None, b"", b"\xff\xfe sk-aaaaaaaaaaaaaaaaaaaa"])
def test_what_is_not_text_stays_as_it_is(body: bytes | None) -> None:
    assert scrubbed(body) == body


def test_only_allowed_headers_are_kept() -> None:
    headers = {"Content-Type": "a", "Authorization": "b", "Set-Cookie": "c"}
    assert only_headers(headers, {"content-type"}) == {"content-type": "a"}


def matches(asked: bytes, recorded: bytes) -> str:
    """What the matcher says of two bodies; "" where they are the same."""
    try:
        same_json(SimpleNamespace(body=asked), SimpleNamespace(body=recorded))
    except AssertionError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("asked", "recorded", "difference"),
    [
        (b'{"a": 1, "b": 2}', b'{"b":2,"a":1}', ""),
        (b"", b"", ""),
        (b"not json", b"not json", ""),
        (b'{"a": "one two"}', b'{"a": "one six"}', 'a: asked ..."one two"... but recorded ..."one six"...'),
        (b'{"a": 1}', b"{}", "a: asked ...1... but recorded ...null..."),
        (b"[1]", b"{}", "the bodies differ"),
    ],
)
def test_bodies_match_as_json(asked: bytes, recorded: bytes, difference: str) -> None:
    assert matches(asked, recorded) == difference
