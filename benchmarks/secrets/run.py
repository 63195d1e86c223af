"""Measure the redactor's recall and its false marks, on gitleaks' rules, on our own texts and on real source code.

    git clone https://github.com/gitleaks/gitleaks
    python -P benchmarks/secrets/run.py --gitleaks gitleaks --code .venv/lib

This repository has no copy of gitleaks. Random secrets are generated from the patterns of its rules, and tested alone
and in its templates of assignments. The texts that its rules must not match are read from its sources.
"""

import argparse
import random
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any, Final

from mendgraph.nodes.execute_tools.secrets.redact import MARK, Redactor
from tests.rules.secrets.ways import HARMLESS, WAYS

SAMPLES: Final = 3
"""The number of generated secrets for each rule."""

TEMPLATES: Final = (
    '{i}Token="{s}"',
    '{i}Token = "{s}"',
    "{i}Token={s}",
    "{i}Token = {s}",
    '{{\n    "{i}_token": "{s}"\n}}',
    '{{"config.ini": "{I}_TOKEN={s}\\nBACKUP_ENABLED=true"}}',
    "<{i}Token>\n    {s}\n</{i}Token>",
    "{i}_token: {s}",
    "{i}_token: '{s}'",
    '{i}_token: "{s}"',
    'string {i}Token = "{s}";',
    'var {i}Token string = "{s}"',
    '{i}Token := "{s}"',
    "{i}Token := `{s}`",
    '${i}Token .= "{s}"',
    'System.setProperty("{I}_TOKEN", "{s}")',
    '  "{i}Token" => "{s}"',
    '{I}_TOKEN ?= "{s}"',
    '{I}_TOKEN ::= "{s}"',
    "<{i}Token>{s}</{i}Token>",
    '<entry name="{i}Token" value="{s}" />',
    '{{\n    "name": "{i}_token",\n    "value": "{s}"\n}}',
    "{i}_token: |\n  {s}",
    "{i}_token: >\n  {s}",
    '{i}Token += "{s}"',
    "https://example.com?{i}Token={s}&fooBar=baz",
    "{{PATH=/usr/local/bin, ENV=/etc/bashrc, {I}_PASSWORD={s}, LC_CTYPE=en_CA.UTF-8}},",
)
"""Source: gitleaks, cmd/generate/config/utils/generate.go, including the templates that gitleaks itself misses."""

RULES_WITHOUT_VALUES: Final = frozenset(
    {"curl-auth-header", "curl-auth-user", "generic-api-key", "private-key", "pkcs12-file"}
)
"""Rules that do not match the shape of a value. `WAYS` has texts for them."""

_ASSIGNMENT: Final = r"""(?:=|>|:{1,3}=|\|\||:|=>|\?=|,)[\x60'"\s=]{0,5}"""
_END: Final = r"""(?:[\x60'"\s;]|\\[nr]|$)"""
_LISTS: Final = {
    name: re.compile(rf"\b{name}\s*:?=\s*(?:\[\]string\{{|append\({name},)(.*?)\n\t[}})]", re.DOTALL)
    for name in ("tps", "fps")
}
_GO_TEXT: Final = re.compile(r'^\s*(?:`([^`]*)`|"((?:[^"\\]|\\.)*)"),', re.MULTILINE)

REDACTOR: Final = Redactor()


def random_match(pattern: str, rng: random.Random) -> str:
    """Return a random text that the pattern matches."""
    return "".join(_generate(_parser.parse(pattern, re.IGNORECASE), rng))


def _generate(nodes: Any, rng: random.Random) -> Iterator[str]:
    for kind, value in nodes:
        if kind is _constants.LITERAL:
            yield chr(value)
        elif kind is _constants.IN:
            yield rng.choice(_characters(value))
        elif kind in {_constants.MAX_REPEAT, _constants.MIN_REPEAT}:
            minimum, maximum, inner = value
            for _ in range(_repetitions(minimum, maximum, rng)):
                yield from _generate(inner, rng)
        elif kind is _constants.SUBPATTERN:
            yield from _generate(value[-1], rng)
        elif kind is _constants.BRANCH:
            yield from _generate(rng.choice(value[1]), rng)
        elif kind is _constants.ANY:
            yield rng.choice("abcdefghij0123456789")


def _repetitions(minimum: int, maximum: int, rng: random.Random) -> int:
    if maximum > 10_000:
        return max(minimum, 20)
    return minimum or rng.randint(0, min(maximum, 2))


def _characters(members: Any) -> str:
    """Return the printable ASCII characters of a character class."""
    characters = ""
    for kind, value in members:
        if kind is _constants.LITERAL:
            characters += chr(value)
        elif kind is _constants.RANGE:
            characters += "".join(map(chr, range(value[0], value[1] + 1)))
        elif kind is _constants.CATEGORY:
            characters += "0123456789" if value is _constants.CATEGORY_DIGIT else "abcXYZ019"

    printable = [character for character in characters if character.isascii() and character.isprintable()]
    return "".join(printable) or "x"


def secrets_of(rule: dict[str, Any], rng: random.Random) -> tuple[str, list[str]]:
    """Return the owner of a rule's secrets and some random secrets.

    The owner is the name that the rule expects before an assignment. It is "" if the secret has a unique shape.
    """
    pattern = str(rule.get("regex", ""))
    _, assignment, value_pattern = pattern.partition(_ASSIGNMENT)
    if assignment:
        pattern = value_pattern
    try:
        secrets = [random_match(_python_pattern(pattern), rng) for _ in range(SAMPLES)]
    except re.error:
        return "", []

    if not assignment:
        return "", secrets
    keywords = rule.get("keywords") or [""]
    return re.sub(r"\W", "", str(keywords[0])), secrets


def _python_pattern(pattern: str) -> str:
    """Return the pattern of a value in Python's syntax, without its end and without boundaries."""
    pattern = pattern.partition(_END)[0]
    replacements = {
        "[[:alnum:]]": "[A-Za-z0-9]",
        r"\x60": "`",
        "(?i)": "",
        "(?i:": "(?:",
        "(?-i:": "(?:",
        "hooks.slack.com": r"hooks\.slack\.com",
        "xoxe.xox": r"xoxe\.xox",
    }
    for old, new in replacements.items():
        pattern = pattern.replace(old, new)
    return re.sub(r"\\b|\\z|\(\?:\^\|[^)]*\)", "", pattern)


def is_redacted(text: str, secret: str) -> bool:
    """Whether the redactor removes the secret from the text."""
    redacted = REDACTOR.text(text)
    return redacted != text and secret not in redacted


def measure_rules(checkout: Path) -> None:
    """Print the recall for the secrets of gitleaks' rules, alone and in assignments, and for gitleaks' examples."""
    rng = random.Random(7)
    rules = tomllib.loads((checkout / "config/gitleaks.toml").read_text())["rules"]
    alone: Counter[bool] = Counter()
    assignments: dict[str, Counter[bool]] = {template: Counter() for template in TEMPLATES}
    misses: Counter[str] = Counter()

    for rule in rules:
        owner, secrets = secrets_of(rule, rng)
        if rule["id"] in RULES_WITHOUT_VALUES:
            continue
        for secret in secrets:
            if not owner:
                hit = is_redacted(f"see {secret} there", secret)
                alone[hit] += 1
                if not hit:
                    misses[rule["id"]] += 1
            for template, count in assignments.items():
                name = owner or "service"
                text = template.format(i=name, I=name.upper(), s=secret)
                count[is_redacted(text, secret)] += 1

    _print_row("gitleaks: keys that stand alone", alone)
    for template, count in assignments.items():
        name = template.splitlines()[-1] if template.startswith("{{") else repr(template)
        _print_row(f"gitleaks: {name}", count)
    _print_row("gitleaks: all assignments", sum(assignments.values(), Counter()))
    print("missed alone:", ", ".join(f"{name} {count}" for name, count in misses.items()) or "none")
    _measure_examples(checkout)


def _measure_examples(checkout: Path) -> None:
    hits = Counter(REDACTOR.text(text) != text for text in examples(checkout, "tps"))
    _print_row("gitleaks: its own examples", hits)

    harmless = list(examples(checkout, "fps"))
    false_marks = [text for text in harmless if REDACTOR.text(text) != text]
    print(f"gitleaks: {len(harmless)} harmless texts, of which {len(false_marks)} are marked")
    for text in false_marks:
        print("   ", REDACTOR.text(text)[:200].replace("\n", "\\n"))


def examples(checkout: Path, name: str) -> Iterator[str]:
    """Yield the texts that gitleaks' rules must match (`tps`) or must not match (`fps`)."""
    for file in sorted(checkout.glob("cmd/generate/config/rules/*.go")):
        for block in _LISTS[name].finditer(file.read_text()):
            for raw, quoted in _GO_TEXT.findall(block[1]):
                yield raw or quoted.encode().decode("unicode_escape")


def measure_ways() -> None:
    """Print the recall for each family of our own texts, and the false marks in similar harmless texts."""
    for family, ways in WAYS.items():
        count: Counter[bool] = Counter()
        for before, secret, after in ways:
            hit = REDACTOR.text(before + secret + after) == before + MARK + after
            count[hit] += 1
        _print_row(family, count)

    false_marks = [text for text in HARMLESS if REDACTOR.text(text) != text]
    print(f"our own harmless texts: {len(HARMLESS)}, of which {len(false_marks)} are marked")


def measure_code(folder: Path, file_count: int, *, show: bool) -> None:
    """Print the number of marks in a sample of source files, and each mark if `show` is set."""
    suffixes = (".py", ".pyi", ".json", ".md", ".txt", ".toml", ".yaml", ".yml", ".js", ".sh", ".cfg", ".rst")
    files = sorted(file for file in folder.rglob("*") if file.suffix in suffixes and file.is_file())
    rng = random.Random(7)
    files = sorted(rng.sample(files, min(file_count, len(files))))

    characters = 0
    marks = 0
    marked_files = 0
    for file in files:
        text = file.read_text("utf-8", "replace")
        spans = REDACTOR.spans(text)
        characters += len(text)
        marks += len(spans)
        marked_files += bool(spans)
        if show:
            for start, end in spans:
                _print_mark(file, text, start, end)
    print(f"code: {len(files)} files, {characters / 1e6:.1f} MB: {marks} marks in {marked_files} files")


def _print_mark(file: Path, text: str, start: int, end: int) -> None:
    line_start = text.rfind("\n", 0, start) + 1
    before = text[max(line_start, start - 90) : start].strip()
    print(f"{file.name}: {before} >>>{text[start:end][:60]}<<< {text[end : end + 20]!r}")


def _print_row(name: str, count: Counter[bool]) -> None:
    total = count.total()
    recall = 100 * count[True] / max(1, total)
    print(f"| {name} | {total} | {count[True]} | {recall:.0f} % |")


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gitleaks", type=Path, help="a checkout of gitleaks")
    parser.add_argument("--code", type=Path, help="a folder of source code")
    parser.add_argument("--files", type=int, default=2_000, help="number of source files in the sample (%(default)s)")
    parser.add_argument("--show", action="store_true", help="print each mark in the code")
    options = parser.parse_args()

    print("| family | secrets | found | recall |\n| --- | --- | --- | --- |")
    measure_ways()
    if options.gitleaks:
        measure_rules(options.gitleaks)
    if options.code:
        measure_code(options.code, options.files, show=options.show)


if __name__ == "__main__":
    main()
