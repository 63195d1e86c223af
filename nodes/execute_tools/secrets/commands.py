"""Passwords among the arguments of programs: `curl -u me:...`, `mysql -p...`, `docker login -p ...`. Pure.

`-p` is a password of `mysql` and `sshpass`, a port of `ssh`, a patch of `git log`, parents of `mkdir`: so the program
decides. Options that name their value, such as `--token`, are read as assignments are.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple

from nodes.execute_tools.secrets.keys import is_filler, looks_secret, looks_secret_under, names_a_literal


class Form(Enum):
    """How a password stands behind its option."""

    WORD = "-p password, or -ppassword where the option has one letter"
    ATTACHED = "-ppassword only: what follows a blank is something else"
    LOGIN = "-u user:password"
    SHARE = "-U user%password"
    PASS = "-passin pass:password"  # noqa: S105 - how it is written


class Word(NamedTuple):
    """One argument, and where it stands."""

    text: str
    start: int


Options = Mapping[str, Form]

_PROGRAMS: Final[tuple[tuple[str, Form, str], ...]] = (
    ("curl", Form.LOGIN, "-u --user -U --proxy-user"),
    ("http https", Form.LOGIN, "-a --auth"),
    ("mysql mysqldump mysqladmin mysqlimport mariadb mariadb-dump 7z 7za", Form.ATTACHED, "-p"),
    ("mongo mongosh mongodump mongorestore mongoexport mongoimport sshpass login", Form.WORD, "-p"),
    ("redis-cli", Form.WORD, "-a --pass"),
    ("ldapsearch ldapmodify ldapadd ldapwhoami", Form.WORD, "-w"),
    ("smbclient", Form.SHARE, "-U"),
    ("sqlcmd bcp unzip zip", Form.WORD, "-P"),
    ("openssl", Form.PASS, "-passin -passout -pass"),
    ("keytool jarsigner", Form.WORD, "-storepass -keypass"),
)
_OPTIONS: Final[Mapping[str, Options]] = {
    program: dict.fromkeys(options.split(), form)
    for programs, form, options in _PROGRAMS
    for program in programs.split()
}
"""Programs, and the options behind which their passwords stand. Source: the manual page of each."""

_LOGGING_IN: Final = frozenset({"docker", "podman", "nerdctl", "buildah", "skopeo", "helm", "oras", "az", "oc", "cf"})
"""Programs whose command `login` takes a password."""

COMMAND_WORDS: Final = tuple(name if len(name) > 5 or name == "curl" else f"{name} " for name in _OPTIONS)
"""One of these is in a text, in lower case, that holds a command line with a password."""

_NAMES: Final = "|".join(map(re.escape, sorted({*_OPTIONS, *_LOGGING_IN} - {"login"})))
_PROGRAM: Final = re.compile(rf"(?<![\w.-])(?:{_NAMES})(?=[ \t\"'\\])")
_GAP: Final = re.compile(r"""[ \t\r\n,"'`\\\[]*+""")
_BARE: Final = re.compile(r"""[^\s"'`\\;|&<>(){}\[\]]*+(?:["'][^"'\n]{0,200}+["'])?""")
_IN_QUOTES: Final = {quote: re.compile(rf"[^{quote}\\\n]*+") for quote in "\"'`"}
_NEW_LINE: Final = re.compile(r"\\\r?\n|,\s*\n")
_SHORTEST: Final = 4


def command_spans(text: str) -> Iterator[tuple[int, int]]:
    """Where the passwords of command lines stand in a text, also of those that are lists in JSON."""
    at = 0
    while (program := _PROGRAM.search(text, at)) is not None:
        words = [Word(program[0], program.start())]
        at = program.end()
        while (word := _next_word(text, at)) is not None:
            words.append(word)
            at = word.start + len(word.text)
        yield from ((words[place].start + start, words[place].start + end) for place, start, end in passwords_in(words))


def passwords_in(words: Sequence[Word]) -> Iterator[tuple[int, int, int]]:
    """Which of the words of a command line hold a password, by their places, from where to where."""
    options: Options = {}
    logging_in = False
    for place, (word, _) in enumerate(words):
        program = word.rpartition("/")[2]
        if program in _LOGGING_IN:
            options, logging_in = {}, True
        elif program in _OPTIONS and (program != "login" or logging_in):
            options, logging_in = _OPTIONS[program], False
        elif word[:1] == "-":
            following = words[place + 1].text if place + 1 < len(words) else ""
            for moved, start, end in _password(word, following, options):
                yield place + moved, start, end


def _password(word: str, following: str, options: Options) -> Iterator[tuple[int, int, int]]:
    """Where the password stands behind the option that a word is, in it (0) or in the word that follows (1)."""
    name, equals, value = word.partition("=")
    if name in options and options[name] is not Form.ATTACHED:
        inner = (0, len(name) + 1, value) if equals else (1, 0, following)
        yield from _of_form(options[name], *inner)
    elif word[:2] in options and word[1] != "-":
        behind = word[2:].lstrip("'\"").rstrip("'\"")
        yield from _of_form(options[word[:2]], 0, word.find(behind, 2), behind)
    elif name[:2] == "--" and not equals and names_a_literal(name) and looks_secret_under(name, following):
        yield 1, 0, len(following)


def _of_form(form: Form, moved: int, start: int, value: str) -> Iterator[tuple[int, int, int]]:
    sign = {Form.LOGIN: ":", Form.SHARE: "%", Form.PASS: "pass:"}.get(form, "")
    user, found, password = value.partition(sign) if sign else ("", "", value)
    begin = 0 if form is Form.LOGIN else len(user) + len(found)
    is_key = form is Form.LOGIN and bool(found) and not password and looks_secret(user)
    if is_key or ((not sign or found) and _is_password(password, user)):
        yield moved, start + begin, start + len(value)


def _is_password(value: str, user: str) -> bool:
    """Whether it is none of an example's, no variable, and no word."""
    if len(value) < _SHORTEST or value.startswith(("$", "-", "<", "/")) or is_filler(value) or value == user:
        return False
    if value.isdigit() and user.isdigit():
        return False
    return any(not (char.isalpha() or char in "._-") for char in value) or looks_secret(value)


def _next_word(text: str, at: int) -> Word | None:
    """The next argument of the command line, None where the command ends."""
    gap = _GAP.match(text, at)
    signs, start = (gap[0], gap.end()) if gap else ("", at)
    if not signs or ("\n" in signs and not _NEW_LINE.search(signs)):
        return None
    quoted = _IN_QUOTES.get(signs[-1])
    found = quoted.match(text, start) if quoted and _opens(signs) else _BARE.match(text, start)
    return Word(found[0], start) if found and found[0] else None


def _opens(signs: str) -> bool:
    """Whether the quote at the end of these signs begins a word, and does not end one."""
    return (len(signs) > 1 and signs[-2] not in "\"'`") or (signs[:1] in "\"'`" and len(signs) > 1)
