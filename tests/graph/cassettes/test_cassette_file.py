import os
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, strategies as st

from mendgraph.graph.cassettes.cassette_file import (
    CassetteFile,
    Exchange,
    parse,
    render,
    scrubbed,
    secret_variable,
    secrets_in,
    write,
)
from mendgraph.nodes.records import ToolError, ToolErrorCode
from tests.cassettes import read
from tests.nodes.execute_tools.secrets.samples import BLOCKS, KEYS, MIXED

SECRETS = [KEYS[0], KEYS[20], BLOCKS[0], "$2b$12$" + MIXED[:53]]
REMEDY = "record it again with `pytest --mendgraph-record`, or take it back from version control"


def exchange(request: bytes = b"{}\n", response: bytes = b"", **more: Any) -> Exchange:
    fields: Any = {"method": "POST", "path": "/v1", "status": 200, "headers": {}, "request_headers": {}, **more}
    return Exchange(request=request, response=response, **fields)


def cassette(*exchanges: Exchange, **settings: str) -> CassetteFile:
    return CassetteFile(recorded_from="local model", settings=settings, exchanges=exchanges)


PAGE = """\
recorded_from: local model
settings:
  model: m
interactions:
- request:
    method: POST
    uri: http://llm.test/v1/chat
    body: |
      {
        "model": "é",
        "n": 1
      }
    headers:
      accept:
      - application/json
  response:
    status:
      code: 429
      message: Too Many Requests
    headers:
      retry-after:
      - '3'
    body:
      string: |+
        data: {}

        data: [DONE]

version: 1
"""


def test_cassette_reads_like_a_page() -> None:
    request = '{"model":"é","n":1}'.encode()
    heads: Any = {"headers": {"retry-after": "3"}, "request_headers": {"accept": "application/json"}}
    said = exchange(request, b"data: {}\n\ndata: [DONE]\n\n", path="/v1/chat", status=429, **heads)
    assert render(cassette(said, model="m")) == PAGE


def test_what_was_rendered_is_read_as_it_was() -> None:
    read = parse(PAGE)
    assert isinstance(read, CassetteFile)
    assert render(read) == PAGE
    assert (read.settings, read.exchanges[0].path, read.exchanges[0].status) == ({"model": "m"}, "/v1/chat", 429)


@given(answer=st.binary() | st.text(st.characters(exclude_categories=["Cs"])).map(str.encode), path=st.just("/v1/a"))
def test_what_was_answered_comes_back_to_the_letter(answer: bytes, path: str) -> None:
    written = cassette(exchange(b"not json", answer, path=path))
    assert parse(render(written)) == written


NONE = "is no cassette of version 1: "


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        ("a: [1", "is not YAML (line 2, column 1): did not find expected"),
        ("a: \x00", "is not YAML: unacceptable character #x0000: control characters are not allowed"),
        ("!!python/object/apply:os.getcwd []", "is not YAML (line 1, column 1): the tag tag:yaml.org,2002:python"),
        ("recorded_from: 2020-13-45", "is not YAML (line 1, column 16): month must be in 1..12"),
        ("[]", f"{NONE}Input should be a valid dictionary"),
        ("{a: 1}", f"{NONE}Field required in recorded_from"),
        (PAGE.replace("version: 1", "version: 'x'"), f"{NONE}Input should be 1 in version"),
        (PAGE.replace("version: 1", "version: 1\nx: 1"), f"{NONE}Extra inputs are not permitted in x"),
        (PAGE.replace("model: m", "model: 4"), f"{NONE}Input should be a valid string in settings.model"),
        (PAGE.replace("code: 429", "code: true"), f"{NONE}Input should be a valid integer in inter"),
        (PAGE.replace("    method: POST\n", ""), f"{NONE}Field required in interactions.0.request.me"),
        (PAGE.replace("http://llm.test/v1/chat", "http://[x"), f"{NONE}Value error, Invalid IPv6 URL"),
        ("recorded_from: a\ninteractions: [1]\nversion: 1", f"{NONE}Input should be a valid dict"),
    ],
)
def test_bad_file_is_told_with_its_name_the_place_and_the_remedy(text: str, problem: str) -> None:
    found = parse(text, "a/b.yaml")
    assert isinstance(found, ToolError)
    assert found.code is ToolErrorCode.INVALID_ARGUMENT
    assert found.message.startswith(f"a/b.yaml {problem}")
    assert found.message.endswith(f": {REMEDY}")
    assert "\n" not in found.message


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (2, f"was written by a newer mendgraph (format 2, this one knows 1): update mendgraph, or {REMEDY}"),
        (0, f"was written by an older mendgraph (format 0, this one knows 1): {REMEDY}"),
    ],
)
def test_cassette_of_other_format_is_refused_with_both_numbers(number: int, expected: str) -> None:
    refusal = parse(PAGE.replace("version: 1", f"version: {number}"), "a/b.yaml")
    assert isinstance(refusal, ToolError)
    assert (refusal.code, refusal.message) == (ToolErrorCode.INVALID_ARGUMENT, f"a/b.yaml {expected}")


def test_only_utf_8_of_a_conversations_size_is_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.yaml").write_bytes(b"a\nb\xff")
    binary = read(str(tmp_path / "a.yaml"), "a.yaml")
    monkeypatch.setattr("mendgraph.graph.cassettes.cassette_file.MOST_BYTES", 3)
    huge = read(str(tmp_path / "a.yaml"), "a.yaml")
    assert isinstance(binary, ToolError)
    assert isinstance(huge, ToolError)
    assert binary.message == f"a.yaml is not UTF-8 text (line 2): {REMEDY}"
    assert "a.yaml" in huge.message


def test_files_of_other_yaml_tools_are_read() -> None:
    document = yaml.safe_load(PAGE)
    document["interactions"][0]["request"]["body"] = None
    document["interactions"][0]["request"]["headers"] = None
    document["interactions"][0]["response"]["headers"] = {"Retry-After": "3"}
    read = parse(yaml.safe_dump(document))
    assert isinstance(read, CassetteFile)
    said = read.exchanges[0]
    assert (said.request, said.request_headers, said.headers) == (b"", {}, {"retry-after": "3"})


@pytest.mark.parametrize("secret", SECRETS)
def test_secrets_are_scrubbed_and_found(secret: str) -> None:
    assert scrubbed(f'"{secret}"'.encode()) == b'"SCRUBBED"'
    assert secrets_in(f"one\n{secret}") == [2]


ONE = CassetteFile(recorded_from="one")
TWO = CassetteFile(recorded_from="two")


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = str(tmp_path / "a" / "b.yaml")
    assert [write(path, ONE), write(path, TWO), read(path)] == [None, None, TWO]
    assert os.listdir(tmp_path / "a") == ["b.yaml"]


def test_cassette_that_is_missing_or_cannot_be_read_is_told(tmp_path: Path) -> None:
    missing, folder = read(str(tmp_path / "a.yaml"), "a.yaml"), read(str(tmp_path), "the folder")
    assert missing == ToolError(code=ToolErrorCode.NOT_FOUND, message="there is no cassette a.yaml")
    assert folder == ToolError(
        code=ToolErrorCode.INVALID_ARGUMENT,
        message="Cannot read 'the folder': it is a directory, and a file is needed.",
    )


def test_failed_write_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "a.yaml")
    write(path, ONE)

    def full(*_: object, **_named: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    failed = write(path, TWO)
    message = f"{path} cannot be written: No space left on device"
    assert failed == ToolError(code=ToolErrorCode.IO_ERROR, message=message)
    assert (read(path), os.listdir(tmp_path)) == (ONE, ["a.yaml"])


KNOWN_SECRET = "plum-42-orchard-7"  # noqa: S105 - a test's own
SECRET_ENVIRONMENT = {
    "HOME": "/plain",
    "PLAIN_TOKEN": "test",
    "SOME_API_KEY": KNOWN_SECRET,
    "OTHER": KNOWN_SECRET[::-1],
}


def said(request: bytes = b"{}", response: bytes = b"\xff") -> Exchange:
    return Exchange(method="POST", path="/v1", request=request, status=200, headers={}, response=response)


@pytest.mark.parametrize(
    ("exchanges", "told"),
    [
        ([], ""),
        ([said(b"/plain test", KNOWN_SECRET[::-1].encode())], ""),
        ([said(), said(f"a {KNOWN_SECRET} b".encode())], "the request of exchange 2 holds the value of SOME_API_KEY"),
        ([said(b"", b"\xff" + KNOWN_SECRET.encode())], "the reply of exchange 1 holds the value of SOME_API_KEY"),
        ([said(b64encode(KNOWN_SECRET.encode()))], "the request of exchange 1 holds the value of SOME_API_KEY"),
    ],
    ids=["nothing", "no secret", "request", "reply", "in base64"],
)
def test_place_and_the_variable_of_a_secret_are_told(exchanges: list[Exchange], told: str) -> None:
    assert secret_variable(exchanges, SECRET_ENVIRONMENT) == told
    assert KNOWN_SECRET not in told
