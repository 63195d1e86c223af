"""How a cassette looks on disk: YAML that a person can read, without secrets, that says where it comes from."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from nodes.records import JsonMap

SECRET_SHAPES: Mapping[str, re.Pattern[str]] = {
    "an API key": re.compile(r"\b(?:sk|pk|rk|gsk|hf|glpat|npm|pypi|xox[a-z])[-_][A-Za-z0-9_-]{16,}"),
    "a GitHub token": re.compile(r"\b(?:gh[a-z]_[A-Za-z0-9]{20,}|github_pat_\w{20,})"),
    "an AWS key": re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    "a Google key": re.compile(r"\bAIza[A-Za-z0-9_-]{35}"),
    "a bearer token": re.compile(r"(?i:\bbearer\s+)[A-Za-z0-9._~+/-]{8,}=*"),
    "a signed token": re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"),
    "a private key": re.compile(
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:.*?-----END [A-Z ]*PRIVATE KEY-----)?", re.DOTALL
    ),
    "a password in an address": re.compile(r"(?<=://)[^/\s:@\"]+:[^/\s@\"]+(?=@)"),
}
SCRUBBED = "SCRUBBED"

MACHINE_SHAPES: Mapping[str, re.Pattern[str]] = {
    "a home directory": re.compile(r"(?<![\w.])/(?:(?:home|Users)/\w|root/)"),
    "a test's own folder": re.compile(r"/pytest-of-\w+"),
}
"""What would make a recording play on one machine only."""

FOREIGN_BREAKS = re.compile("[\r\x85\u2028\u2029]")
"""What YAML takes for the end of a line, too, and would not give back as it was."""


class BlockYaml:
    """vcr's serializer for us: `recorded_from` on top, and bodies as text in block style."""

    def __init__(self, recorded_from: str) -> None:
        self.recorded_from = recorded_from

    def serialize(self, cassette: JsonMap) -> str:
        """vcr's document as the text of a cassette file."""
        interactions = [_readable(each) for each in cassette["interactions"]]
        document = {"recorded_from": self.recorded_from, "interactions": interactions, "version": cassette["version"]}
        return yaml.dump(document, Dumper=_BlockDumper, sort_keys=False, allow_unicode=True, width=10**6)

    def deserialize(self, text: str) -> Any:
        """vcr's document from the text of a cassette file."""
        return yaml.load(text, Loader=yaml.CSafeLoader)


def recorded_from(path: Path) -> str:
    """The origin that a cassette names in its first line."""
    first, _, _ = path.read_text(encoding="utf-8").partition("\n")
    return first.removeprefix("recorded_from: ")


def lint(text: str) -> list[str]:
    """What a cassette must not hold, one line for each finding; the finding itself is not repeated."""
    shapes = {**SECRET_SHAPES, **MACHINE_SHAPES}
    return [
        f"line {text.count(chr(10), 0, found.start()) + 1} holds {what}"
        for what, shape in shapes.items()
        for found in shape.finditer(text)
    ]


def scrubbed(body: bytes | None) -> bytes | None:
    """A body with whatever has the shape of a secret replaced; what is not UTF-8 text stays as it is."""
    try:
        text = (body or b"").decode()
    except UnicodeDecodeError:
        return body
    for shape in SECRET_SHAPES.values():
        text = shape.sub(SCRUBBED, text)
    return text.encode() if body is not None else None


def only_headers(headers: Mapping[str, Any], allowed: Iterable[str]) -> dict[str, Any]:
    """The headers that a cassette keeps, in lower case."""
    return {name.lower(): value for name, value in headers.items() if name.lower() in allowed}


def same_json(asked: Any, recorded: Any) -> None:
    """vcr's matcher for bodies: equal as JSON, whatever the order of keys; else an error that names what differs."""
    ours, theirs = _parsed(asked.body), _parsed(recorded.body)
    if isinstance(ours, dict) and isinstance(theirs, dict):
        keys = [key for key in sorted({*ours, *theirs}) if ours.get(key) != theirs.get(key)]
        lines = [f"{key}: {_first_difference(ours.get(key), theirs.get(key))}" for key in keys]
        assert not keys, "\n".join(lines)
    assert ours == theirs, "the bodies differ"


def _first_difference(ours: Any, theirs: Any) -> str:
    left, right = json.dumps(ours, ensure_ascii=False), json.dumps(theirs, ensure_ascii=False)
    at = next((index for index, pair in enumerate(zip(left, right, strict=False)) if pair[0] != pair[1]), 0)
    start = max(at - 60, 0)
    return f"asked ...{left[start : at + 60]}... but recorded ...{right[start : at + 60]}..."


def _parsed(body: bytes | None) -> Any:
    try:
        return json.loads(body or b"null")
    except ValueError:
        return body


def _readable(interaction: JsonMap) -> JsonMap:
    """The exchange with its request's JSON laid out in lines; the response's bytes are evidence and stay untouched."""
    request = dict(interaction["request"])
    parsed = _parsed(request["body"])
    if isinstance(parsed, dict):
        request["body"] = json.dumps(parsed, indent=2, ensure_ascii=False) + "\n"
    return interaction | {"request": request}


class _BlockDumper(yaml.SafeDumper):
    """Writes text of more than one line as a literal block, where YAML can hold it."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = '"' if FOREIGN_BREAKS.search(text) else "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_BlockDumper.add_representer(str, _represent_text)
