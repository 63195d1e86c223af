"""Cassettes as files: readable, exact, of limited size, without secrets."""

import os
from base64 import b64encode
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given, strategies as st

from mendgraph.graph.cassettes.cassette_file import (
    MOST_BYTES,
    CassetteFile,
    Exchange,
    find_environment_secret,
    parse,
    read,
    render,
    scrubbed,
    secrets_in,
    write,
)
from mendgraph.nodes.records import ToolError, ToolErrorCode
from tests.rules.secrets.samples import BLOCKS, KEYS, MIXED

SECRETS = [KEYS[0], KEYS[20], BLOCKS[0], "$2b$12$" + MIXED[:53]]
REMEDY = "record it again with `pytest --mendgraph-record`, or restore it from version control"


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


def test_cassette_is_readable_yaml_and_parses_back() -> None:
    request = '{"model":"é","n":1}'.encode()
    heads: Any = {"headers": {"retry-after": "3"}, "request_headers": {"accept": "application/json"}}
    recorded = exchange(request, b"data: {}\n\ndata: [DONE]\n\n", path="/v1/chat", status=429, **heads)
    assert render(cassette(recorded, model="m")) == PAGE
    again = parse(PAGE)
    assert isinstance(again, CassetteFile)
    assert (render(again), again.settings) == (PAGE, {"model": "m"})


@given(answer=st.binary() | st.text(st.characters(exclude_categories=["Cs"])).map(str.encode), path=st.just("/v1/a"))
def test_response_body_is_restored_exactly(answer: bytes, path: str) -> None:
    written = cassette(exchange(b"not json", answer, path=path))
    assert parse(render(written)) == written


NONE = "is not a cassette of version 1: "
BAD = {
    "": f"{NONE}Input should be a valid dictionary",
    "a: [1": "is not YAML (line 2, column 1): did not find expected",
    "a: \x00": "is not YAML: unacceptable character #x0000: control characters are not allowed",
    "!!python/object/apply:os.getcwd []": "is not YAML (line 1, column 1): the tag tag:yaml.org,2002:python",
    "recorded_from: 2020-13-45": "is not YAML (line 1, column 16): month must be in 1..12",
    "[]": f"{NONE}Input should be a valid dictionary",
    "{a: 1}": f"{NONE}Field required in recorded_from",
    PAGE.replace("version: 1", "version: 'x'"): f"{NONE}Input should be 1 in version",
    PAGE.replace("version: 1", "version: 1\nx: 1"): f"{NONE}Extra inputs are not permitted in x",
    PAGE.replace("model: m", "model: 4"): f"{NONE}Input should be a valid string in settings.model",
    PAGE.replace("code: 429", "code: true"): f"{NONE}Input should be a valid integer in inter",
    PAGE.replace("    method: POST\n", ""): f"{NONE}Field required in interactions.0.request.me",
    PAGE.replace("http://llm.test/v1/chat", "http://[x"): f"{NONE}Value error, Invalid IPv6 URL",
    "recorded_from: a\ninteractions: [1]\nversion: 1": f"{NONE}Input should be a valid dict",
    PAGE.replace("version: 1", "version: 2"): f"{NONE}Input should be 1 in version: {REMEDY}",
}


def test_invalid_file_is_reported_with_name_place_and_remedy() -> None:
    for text, problem in BAD.items():
        result = parse(text, "a/b.yaml")
        assert isinstance(result, ToolError)
        assert result.code is ToolErrorCode.INVALID_ARGUMENT
        assert (text, result.message[: len(problem) + 9]) == (text, f"a/b.yaml {problem}")
        assert (result.message.endswith(REMEDY), "\n" in result.message) == (True, False)


def test_binary_too_large_or_missing_file_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    missing = ToolError(code=ToolErrorCode.NOT_FOUND, message="there is no cassette a.yaml")
    assert read(str(path), "a.yaml") == missing
    path.write_bytes(b"a\nb\xff")
    binary = read(str(path), "a.yaml")
    os.truncate(path, MOST_BYTES + 1)
    huge, folder = read(str(path), "a.yaml"), read(str(tmp_path), "the folder")
    assert isinstance(binary, ToolError)
    assert isinstance(huge, ToolError)
    assert isinstance(folder, ToolError)
    assert binary.message == f"a.yaml is not UTF-8 text (line 2): {REMEDY}"
    assert "a.yaml" in huge.message
    assert folder.message == "Cannot read 'the folder': it is a directory, and a file is needed."


def test_files_of_other_yaml_tools_are_read() -> None:
    document = yaml.safe_load(PAGE)
    document["interactions"][0]["request"]["body"] = None
    document["interactions"][0]["request"]["headers"] = None
    document["interactions"][0]["response"]["headers"] = {"Retry-After": "3"}
    cassette = parse(yaml.safe_dump(document))
    assert isinstance(cassette, CassetteFile)
    recorded = cassette.exchanges[0]
    assert (recorded.request, recorded.request_headers, recorded.headers) == (b"", {}, {"retry-after": "3"})


def test_secrets_are_scrubbed_and_found() -> None:
    assert [scrubbed(f'"{secret}"'.encode()) for secret in SECRETS] == [b'"SCRUBBED"'] * len(SECRETS)
    assert [secrets_in(f"one\n{secret}") for secret in SECRETS] == [[2]] * len(SECRETS)


def test_file_is_written_completely_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.yaml"
    one, two = CassetteFile(recorded_from="one"), CassetteFile(recorded_from="two")
    assert [write(str(path), one), write(str(path), two), read(str(path))] == [None, None, two]
    assert os.listdir(path.parent) == ["b.yaml"]
    path.unlink()
    path.mkdir()
    failed = write(str(path), two)
    message = f"{path} cannot be written: Is a directory"
    assert failed == ToolError(code=ToolErrorCode.IO_ERROR, message=message)
    assert os.listdir(path.parent) == ["b.yaml"]


KNOWN_SECRET = "plum-42-orchard-7"  # noqa: S105 - a test's own
ENVIRONMENT = {"HOME": "/plain", "PLAIN_TOKEN": "test", "SOME_API_KEY": KNOWN_SECRET, "OTHER": KNOWN_SECRET[::-1]}
OF_THE_KEY = "holds the value of SOME_API_KEY"
FINDINGS: tuple[tuple[list[Exchange], str], ...] = (
    ([], ""),
    ([exchange(b"/plain test", KNOWN_SECRET[::-1].encode())], ""),
    ([exchange(), exchange(f"a {KNOWN_SECRET} b".encode())], f"the request of exchange 2 {OF_THE_KEY}"),
    ([exchange(b"", b"\xff" + KNOWN_SECRET.encode())], f"the reply of exchange 1 {OF_THE_KEY}"),
    ([exchange(b64encode(KNOWN_SECRET.encode()))], f"the request of exchange 1 {OF_THE_KEY}"),
)


def test_place_and_variable_of_a_secret_are_reported() -> None:
    findings = [find_environment_secret(exchanges, ENVIRONMENT) for exchanges, _ in FINDINGS]
    assert findings == [finding for _, finding in FINDINGS]
