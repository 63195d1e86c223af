"""How many secrets the redactor finds, and what it marks that is none: gitleaks' rules, our ways, real source code.

    git clone https://github.com/gitleaks/gitleaks
    python -P benchmarks/secrets/run.py --gitleaks gitleaks --code .venv/lib

Nothing of gitleaks is kept here. From the pattern of each of its rules random secrets are made, which stand alone and
in its own templates of assignments; what its rules must not find is read from their sources.
"""

import argparse
import random
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any, Final

from mendgraph.nodes.execute_tools.secrets.redact import MARK, Redactor
from tests.rules.secrets.ways import HARMLESS, WAYS

SAMPLES: Final = 3
"""Secrets that are made of each rule."""

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
"""Source: gitleaks, cmd/generate/config/utils/generate.go, with those that are its own wishes."""

_ASSIGNED: Final = r"""(?:=|>|:{1,3}=|\|\||:|=>|\?=|,)[\x60'"\s=]{0,5}"""
_END: Final = r"""(?:[\x60'"\s;]|\\[nr]|$)"""
_LISTS: Final = {
    name: re.compile(rf"\b{name}\s*:?=\s*(?:\[\]string\{{|append\({name},)(.*?)\n\t[}})]", re.DOTALL)
    for name in ("tps", "fps")
}
_GO_TEXT: Final = re.compile(r'^\s*(?:`([^`]*)`|"((?:[^"\\]|\\.)*)"),', re.MULTILINE)

REDACTOR: Final = Redactor()


def made(pattern: str, chance: random.Random) -> str:
    """A random text that the pattern matches."""
    return "".join(_said(_parser.parse(pattern, re.IGNORECASE), chance))


def _said(parts: Any, chance: random.Random) -> Iterator[str]:
    for kind, value in parts:
        if kind is _constants.LITERAL:
            yield chr(value)
        elif kind is _constants.IN:
            yield chance.choice(_members(value))
        elif kind in {_constants.MAX_REPEAT, _constants.MIN_REPEAT}:
            least, most, inner = value
            for _ in range(_times(least, most, chance)):
                yield from _said(inner, chance)
        elif kind is _constants.SUBPATTERN:
            yield from _said(value[-1], chance)
        elif kind is _constants.BRANCH:
            yield from _said(chance.choice(value[1]), chance)
        elif kind is _constants.ANY:
            yield chance.choice("abcdefghij0123456789")


def _times(least: int, most: int, chance: random.Random) -> int:
    if most > 10_000:
        return max(least, 20)
    return least or chance.randint(0, min(most, 2))


def _members(members: Any) -> str:
    found = ""
    for kind, value in members:
        if kind is _constants.LITERAL:
            found += chr(value)
        elif kind is _constants.RANGE:
            found += "".join(map(chr, range(value[0], value[1] + 1)))
        elif kind is _constants.CATEGORY:
            found += "0123456789" if value is _constants.CATEGORY_DIGIT else "abcXYZ019"
    return "".join(each for each in found if each.isascii() and each.isprintable()) or "x"


def secrets_of(rule: dict[str, Any], chance: random.Random) -> tuple[str, list[str]]:
    """Who a rule's secrets belong to, "" where they are told by themselves; and some of them."""
    pattern = str(rule.get("regex", ""))
    named = _ASSIGNED in pattern
    pattern = pattern.partition(_ASSIGNED)[2] if named else pattern
    pattern = pattern.partition(_END)[0]
    for old, new in (("[[:alnum:]]", "[A-Za-z0-9]"), (r"\x60", "`"), ("(?i)", ""), ("(?i:", "(?:"), ("(?-i:", "(?:")):
        pattern = pattern.replace(old, new)
    pattern = pattern.replace("hooks.slack.com", r"hooks\.slack\.com").replace("xoxe.xox", r"xoxe\.xox")
    pattern = re.sub(r"\\b|\\z|\(\?:\^\|[^)]*\)", "", pattern)
    try:
        found = [made(pattern, chance) for _ in range(SAMPLES)]
    except re.error:
        return "", []
    owner = re.sub(r"\W", "", str((rule.get("keywords") or [""])[0]))
    return (owner if named else ""), found


def found_in(text: str, secret: str) -> bool:
    """Whether nothing readable is left of the secret."""
    shown = REDACTOR.text(text)
    return shown != text and secret not in shown


def measure_rules(checkout: Path) -> None:
    """The secrets of gitleaks' rules, alone and assigned; and what it calls no secret."""
    chance = random.Random(7)
    rules = tomllib.loads((checkout / "config/gitleaks.toml").read_text())["rules"]
    alone: Counter[bool] = Counter()
    assigned: dict[str, Counter[bool]] = {template: Counter() for template in TEMPLATES}
    missed: list[str] = []
    for rule in rules:
        owner, secrets = secrets_of(rule, chance)
        if rule["id"] in {"curl-auth-header", "curl-auth-user", "generic-api-key", "private-key", "pkcs12-file"}:
            continue  # these are no shapes of values; our own ways hold such texts
        for secret in secrets:
            if not owner:
                hit = found_in(f"see {secret} there", secret)
                alone[hit] += 1
                missed += [] if hit else [rule["id"]]
            for template, count in assigned.items():
                name = owner or "service"
                text = template.format(i=name, I=name.upper(), s=secret)
                count[found_in(text, secret)] += 1
    _row("gitleaks: keys that stand alone", alone)
    for template, count in assigned.items():
        _row(f"gitleaks: {template.splitlines()[-1] if template.startswith('{{') else template!r}", count)
    _row("gitleaks: all assignments", sum(assigned.values(), Counter()))
    print("missed alone:", ", ".join(f"{name} {count}" for name, count in Counter(missed).items()) or "none")
    _row("gitleaks: its own examples", Counter(REDACTOR.text(text) != text for text in examples(checkout, "tps")))
    harmless = list(examples(checkout, "fps"))
    marked = [text for text in harmless if REDACTOR.text(text) != text]
    print(f"gitleaks: marked of {len(harmless)} texts that are no secret: {len(marked)}")
    for text in marked:
        print("   ", REDACTOR.text(text)[:200].replace("\n", "\\n"))


def examples(checkout: Path, name: str) -> Iterator[str]:
    """The texts that gitleaks' rules must find (`tps`), or must not (`fps`)."""
    for file in sorted(checkout.glob("cmd/generate/config/rules/*.go")):
        for block in _LISTS[name].finditer(file.read_text()):
            for raw, quoted in _GO_TEXT.findall(block[1]):
                yield raw or quoted.encode().decode("unicode_escape")


def measure_ways() -> None:
    """The ways in which secrets stand in texts, by family; and harmless texts like them."""
    for family, ways in WAYS.items():
        count: Counter[bool] = Counter()
        for before, secret, after in ways:
            hit = REDACTOR.text(before + secret + after) == before + MARK + after
            count[hit] += 1
        _row(family, count)
    marked = [text for text in HARMLESS if REDACTOR.text(text) != text]
    print(f"our harmless texts: {len(HARMLESS)}, marked {len(marked)}")


def measure_code(folder: Path, most: int, say: Callable[[str], None]) -> None:
    """The marks in real source code."""
    names = (".py", ".pyi", ".json", ".md", ".txt", ".toml", ".yaml", ".yml", ".js", ".sh", ".cfg", ".rst")
    files = sorted(file for file in folder.rglob("*") if file.suffix in names and file.is_file())
    chance = random.Random(7)
    files = sorted(chance.sample(files, min(most, len(files))))
    characters, marks, touched = 0, 0, 0
    for file in files:
        text = file.read_text("utf-8", "replace")
        characters += len(text)
        spans = REDACTOR.spans(text)
        marks, touched = marks + len(spans), touched + bool(spans)
        for start, end in spans:
            line = text[max(0, text.rfind("\n", 0, start) + 1, start - 90) : start]
            say(f"{file.name}: {line.strip()} >>>{text[start:end][:60]}<<< {text[end : end + 20]!r}")
    print(f"code: {len(files)} files, {characters / 1e6:.1f} MB: {marks} marks in {touched} files")


def _row(name: str, count: Counter[bool]) -> None:
    total = count.total()
    print(f"| {name} | {total} | {count[True]} | {100 * count[True] / max(1, total):.0f} % |")


def main() -> None:
    """Print the tables."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--gitleaks", type=Path, help="a checkout of gitleaks")
    options.add_argument("--code", type=Path, help="a folder of source code")
    options.add_argument("--files", type=int, default=2_000, help="files of it that are looked at (%(default)s)")
    options.add_argument("--show", action="store_true", help="print each mark in the code")
    chosen = options.parse_args()
    print("| family | secrets | found | recall |\n| --- | --- | --- | --- |")
    measure_ways()
    if chosen.gitleaks:
        measure_rules(chosen.gitleaks)
    if chosen.code:
        measure_code(chosen.code, chosen.files, print if chosen.show else lambda _: None)


if __name__ == "__main__":
    main()
