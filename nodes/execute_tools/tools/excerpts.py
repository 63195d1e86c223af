"""Is a text that is to replace a file really the whole file?"""

import json
import re
from collections.abc import Collection, Iterator

from nodes.execute_tools.tools.elisions import is_elision
from nodes.execute_tools.tools.text_files import count_lines

SMALLEST_SHARE = 0.3
"""A shorter text than this share of the old one is taken for an excerpt, once the old one is long enough to judge."""
JUDGED_LINES = 20

_COMMENT = re.compile(r"[ \t]*(?:#|//|/\*|--|<!--|;|%)(.*?)(?:\*/|-->)?[ \t]*", re.MULTILINE)
_DEFINITION = re.compile(r"^(?:async[ \t]+def|def|class)[ \t]+(\w+)", re.MULTILINE)


_JSON_KEY = re.compile(r'"((?:[^"\\\n]|\\.)*+)"[ \t]*+:')
_KEY = re.compile(r"""^[ \t]*+(?:-[ \t]+)?(?:\[+([\w."'-]+)\]+|["']?([\w.-]+)["']?[ \t]*+[:=])""", re.MULTILINE)
_CONFIGURATION = (".toml", ".yaml", ".yml", ".ini", ".cfg", ".properties")
_ADDS = re.compile(r"\b(?:add|append|insert)(?:s|ing)?\b", re.IGNORECASE)
_SHRINKS = re.compile(
    r"\b(?:remov|delet|drop|eras|short|summar|empt|clear|truncat|only|replac|rewrit|simplif|trim|condens|reduc|strip|clean)",
    re.IGNORECASE,
)


def why_not_whole(old: str, new: str) -> str:
    """What gives `new` away as a part of `old`, as a clause ("it ..."); "" if it may be whole."""
    known = {line.strip() for line in old.splitlines()}
    for line in _elisions(new):
        if line not in known:
            return f"it says `{line}` in place of text"
    if count_lines(old) > JUDGED_LINES and len(new) < SMALLEST_SHARE * len(old):
        return f"it has {count_lines(new)} lines where the file has {count_lines(old)}"
    return ""


def why_too_little(old: str, new: str, task: str) -> str:
    """What speaks against `new` in place of all of a short text, as a clause ("it ..."), if the task does not ask so.

    A model that is to add a line often gives only that line.
    """
    if _SHRINKS.search(task):
        return ""
    lines = [line.strip() for line in old.splitlines() if line.strip()]
    given = {line.strip() for line in new.splitlines()}
    kept = sum(line in given for line in lines)
    fewer = count_lines(new) < count_lines(old) and 2 * kept < len(lines)
    if fewer or (lines and not kept and _ADDS.search(task)):
        return f"it holds {kept} of the {len(lines)} lines that the file has"
    return ""


def lost_keys(path: str, old: str, new: str) -> tuple[str, ...]:
    """The keys and sections that the old text of a configuration file has and the new one lacks; neither must parse."""
    pattern = _JSON_KEY if path.endswith(".json") else _KEY if path.endswith(_CONFIGURATION) else None
    if pattern is None:
        return ()
    kept = set(_keys(pattern, new))
    return tuple(dict.fromkeys(key for key in _keys(pattern, old) if key not in kept))


def keys_inside(text: str, names: Collection[str]) -> set[str]:
    """The keys that stand inside of those of these names in a JSON text; none where it does not parse."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return set()
    found: set[str] = set()
    waiting = [(value, False)]
    while waiting:
        each, inside = waiting.pop()
        if isinstance(each, dict):
            found.update(each if inside else ())
            waiting += [(inner, inside or key in names) for key, inner in each.items()]
        elif isinstance(each, list):
            waiting += [(inner, inside) for inner in each]
    return found


def lost_definitions(old: str, new: str) -> tuple[str, ...]:
    """Top-level Python functions and classes that `old` has and `new` lacks; neither has to parse."""
    kept = set(_DEFINITION.findall(new))
    return tuple(dict.fromkeys(name for name in _DEFINITION.findall(old) if name not in kept))


def _keys(pattern: re.Pattern[str], text: str) -> list[str]:
    return ["".join(group or "" for group in found.groups()) for found in pattern.finditer(text)]


def _elisions(text: str) -> Iterator[str]:
    """Lines that are nothing but a comment, or three dots, standing for other text."""
    for line in text.splitlines():
        comment = _COMMENT.fullmatch(line)
        if line.strip() in {"...", "…"} or (comment and is_elision("# " + comment[1].strip())):
            yield line.strip()
