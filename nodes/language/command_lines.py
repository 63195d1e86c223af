"""Command lines: the words of a simple command, and the prefix by which one may be allowed.

A prefix is the program and, for programs with subcommands, the subcommand. A program that is in no table, such as an
interpreter, a wrapper or `make`, has none, and neither has a command line that is more than one command of literal
words: the grammar of bash (tree-sitter-bash) says which are.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

SHELL: Final = "bash"
"""The program that runs a command line."""

SHELL_TOOL: Final = "run_shell"
COMMAND_TOOL: Final = "run_command"


def command_argv(tool: str, arguments: Mapping[str, Any]) -> list[str]:
    """Return the program that a call starts and its arguments; none if the call names no program."""
    argv = arguments.get("argv")
    line = arguments.get("command")

    if isinstance(argv, list):
        return [str(word) for word in argv]
    if tool == SHELL_TOOL and isinstance(line, str):
        return shell_argv(line)

    return []


def shell_argv(line: str) -> list[str]:
    """Return the program and arguments that run the command line: a simple command needs no shell."""
    return simple_words(line) or [SHELL, "-c", line]


def is_command_line(argv: Sequence[str]) -> bool:
    """Return whether the command is a shell that runs a command line."""
    return len(argv) == 3 and tuple(argv[:2]) == (SHELL, "-c")


def simple_words(line: str) -> list[str]:
    """Return the words of a command line that is one simple command of literal words; none for every other line.

    Assignments, redirections, here-documents, pipes, lists, substitutions, expansions, patterns, escapes and builtins
    of the shell are for the shell, and so are lines of more than `LONGEST_LINE` bytes.
    """
    return [*_simple_words(line)]


LONGEST_LINE: Final = 4_096
"""Bytes of a simple command: the time of the grammar grows with the square of a line."""


@lru_cache(maxsize=64)
def _simple_words(line: str) -> tuple[str, ...]:
    root = parse_line(line)
    if root is None or [child.type for child in root.children] != ["command"]:
        return ()

    words = literal_words(root.children[0])
    if not words or words[0] in _BUILTINS or words != _split(line):
        return ()

    return tuple(words)


def parse_line(line: str) -> "Node | None":
    """Return the root of the syntax tree of a command line; None for an error, and if it is too long."""
    source = line.encode("utf-8", "surrogatepass")
    if len(source) > LONGEST_LINE or b"\r" in source:
        return None

    root = _parser().parse(source).root_node
    return None if root.has_error else root


def literal_words(command: "Node") -> list[str]:
    """Return the words of a command of literal words; none for every other command."""
    words: list[str] = []

    for node in command.children:
        word = _literal(node.children[0] if node.type == "command_name" else node)
        if word is None:
            return []

        words.append(word)

    return words if words and words[0] else []


@cache
def _parser() -> "Parser":
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language()))


_PLAIN: Final = re.compile(r"(?!~)[^\s\\\"'`$*?\[\]{}!<>|&;()]+")
"""A word that the shell takes as it is."""

_HOME: Final = re.compile(r"[=:]~")
_ACTIVE: Final = re.compile(r"[\\`$!]")
"""What is not literal between double quotes."""


def _literal(node: "Node") -> str | None:
    """Return the value of a word without expansions and escapes, or None."""
    text = (node.text or b"").decode(errors="replace")

    if node.type in {"word", "number"} and _PLAIN.fullmatch(text) and not _HOME.search(text):
        return text
    if node.type == "raw_string":
        return text[1:-1]
    if node.type == "string" and not _ACTIVE.search(text):
        return text[1:-1]

    return None


def _split(line: str) -> list[str]:
    """Return the words as `shlex` reads them, the second opinion on a command line."""
    try:
        return shlex.split(line)
    except ValueError:
        return []


def is_command_prefix(line: str) -> bool:
    """Return whether this is the prefix of simple commands, such as `git log`, or with a program's path."""
    words = simple_words(line)
    return bool(words) and prefix_of(words) == tuple(words)


def prefix_of(argv: Sequence[str]) -> tuple[str, ...] | None:
    """Return the prefix of a simple command with its program as it is named, or None."""
    prefix = command_prefix(argv[0].rpartition("/")[2], argv[1:])
    return prefix and (argv[0], *prefix[1:])


def listed_forms(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the prefixes of which one has to be listed for a command to be allowed; none for one that has no prefix.

    `python3` and the Python of a usual virtual environment count as `python`. `python -m pytest` counts as `pytest` of
    the same folder: either runs code of the workspace.
    """
    prefix = prefix_of(argv)
    if prefix is None:
        return ()

    forms = [shlex.join(prefix)]
    folder, slash, name = prefix[0].rpartition("/")
    if name in _PYTHONS and folder in ("", *_ENVIRONMENT_FOLDERS):
        forms.append(shlex.join(("python", *prefix[1:])))
    if name in _PYTHONS and prefix[1] == "-m":
        forms.append(f"{folder}{slash}{prefix[2]}")

    return tuple(dict.fromkeys(forms))


# --- Tables


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ALONE: Final = _names("""
basename cat cmp comm cut date df diff dirname du echo egrep fgrep file find grep head jq ls md5sum mypy nl od printf
pwd pyright pytest readlink realpath rg sha1sum sha256sum stat tail tr wc
""")
"""Programs that are simple with any arguments, except the options below."""

_BUILTINS: Final = _names("""
. : alias bg bind break builtin caller cd command compgen complete compopt continue coproc declare dirs disown enable
eval exec exit export fc fg getopts hash help history jobs let local logout mapfile popd pushd read readarray readonly
return set shift shopt source suspend time times trap type typeset ulimit umask unalias unset wait
""")
"""Builtins and keywords of bash that are no programs, or that start other programs."""

ENVIRONMENT_PROGRAMS: Final = _names("mypy pytest python python3")
"""Programs that are those of the project's environment if it has them. They run code of the workspace in any case, so
one that the workspace replaces can do no more."""
EXACT_COMMANDS: Final[frozenset[tuple[str, ...]]] = frozenset({("make", "test")})
"""Commands that may be allowed only without further arguments: these would name other programs or files."""
_PYTHONS: Final = _names("python python3")
_ENVIRONMENT_FOLDERS: Final = (".venv/bin", "venv/bin")
_MODULES: Final = _names("mypy pytest unittest")
"""Modules that run code of the project as its tests do, so that a planted one of the same name can do no more."""

_WITH_SUBCOMMAND: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "cargo": _names("build check clippy doc fmt metadata test tree"),
        "git": _names("""
    add blame branch checkout cherry-pick commit describe diff log ls-files merge mv reset restore rev-parse revert rm
    show stash status switch tag
    """),
        "go": _names("build doc fmt list mod test version vet"),
        "npm": _names("ls outdated test"),
        "pnpm": _names("list outdated test"),
        "ruff": _names("check format rule"),
        "yarn": _names("list outdated test"),
    }
)
"""Programs whose prefix includes one of these subcommands. Source: VS Code approves terminal commands like that."""

_OF_SCRIPTS: Final = _names("npm pnpm yarn")
"""`run` is followed by the name of a script, and options may name a shell."""

_STARTING: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "cargo": ("--config",),
        "file": ("--co",),
        "find": ("-exec", "-ok", "-delete", "-fprint", "-fls"),
        "git": ("--ou", "--ed"),
        "go": ("-exec", "--exec", "-toolexec", "--toolexec", "-vettool", "--vettool", "-ldflags", "--ldflags"),
        "mypy": ("--python-e",),
        "pyright": ("--pythonpath",),
        "rg": ("--pre", "--hostname-bin"),
        **dict.fromkeys(_OF_SCRIPTS, ("-",)),
    }
)
"""Prefixes of options that start other programs, or delete or write files. Some programs take abbreviated options."""

_STARTING_LETTERS: Final[Mapping[str, str]] = MappingProxyType({"cargo": "Z", "file": "C", "pytest": "p"})
"""Letters of such options, which may stand behind others (`-qZ`)."""


def command_prefix(name: str, arguments: Sequence[object]) -> tuple[str, ...] | None:
    """Return the prefix of a simple command, such as `ls`, `git log` or `npm run build`, or None."""
    words = [str(argument) for argument in arguments]
    if "--" in words and name in _OF_SCRIPTS:
        options = words[: words.index("--")]
    else:
        options = words

    if name in _PYTHONS:
        return _python_prefix(name, words)
    if name == "make":
        command = (name, *words)
        return command if command in EXACT_COMMANDS else None
    if any(_starts_programs(name, word) for word in options):
        return None
    if name in _ALONE:
        return (name,)
    if name in _OF_SCRIPTS and words[:1] == ["run"] and len(words) > 1 and not words[1].startswith("-"):
        return (name, *words[:2])

    subcommands = _WITH_SUBCOMMAND.get(name, frozenset())
    if words and words[0] in subcommands:
        return (name, words[0])

    return None


def _python_prefix(name: str, words: Sequence[str]) -> tuple[str, ...] | None:
    """Return the prefix of a command with which Python runs the tests of a project or checks its types."""
    if words[:2] == ["manage.py", "test"]:
        return (name, *words[:2])

    if len(words) < 2 or words[0] != "-m" or words[1] not in _MODULES:
        return None

    module, *arguments = words[1:]
    if any(_starts_programs(module, argument) for argument in arguments):
        return None

    return (name, "-m", module)


def _starts_programs(name: str, word: str) -> bool:
    if word.startswith(_STARTING.get(name, ())):
        return True

    letter = _STARTING_LETTERS.get(name)
    return letter is not None and letter in word and re.match("-[^-]", word) is not None
