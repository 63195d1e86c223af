"""The linters and formatters that projects configure, and the diagnostics that linters print."""

import posixpath
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from mendgraph.nodes.execute_tools.evidence.runners import with_parents
from mendgraph.nodes.workspace.sandboxes.sandbox import SCRATCH

FORMAT_SCRIPT: Final = "/run/checks/format.cjs"
"""Where ESLint finds `LINE_FORMAT`: its own formatters for one line are no longer a part of it."""

LINE_FORMAT: Final = (
    b"module.exports = (files) => files.flatMap(({ filePath, messages }) => messages.map((m) =>"
    b" `${filePath}:${m.line}:${m.column}: ${m.ruleId ?? 'error'} ${m.message}`)).join('\\n')\n"
)


class ProjectTool(NamedTuple):
    """A linter or formatter of files with these `suffixes`, for a project in a `folder` of the workspace.

    `settings` are beginnings of names of files that configure it, some with a heading (see `configured_tools`). With
    `takes_files` the names of the files are the last arguments; otherwise it looks at the project.
    """

    program: str
    settings: tuple[str, ...]
    suffixes: tuple[str, ...]
    arguments: str = ""
    takes_files: bool = True
    folder: str = ""

    @property
    def name(self) -> str:
        """The program, with its folder."""
        return f"{self.program} in {self.folder}" if self.folder else self.program

    def command(self, *more: str) -> list[str]:
        """Return the command with more arguments."""
        return [self.program.partition(" ")[0], *self.arguments.split(), *more]


_PYTHON: Final = (".py", ".pyi")
_RUST: Final = (".rs",)
_GO: Final = (".go",)
_SCRIPTS: Final = (".js", ".jsx", ".mjs", ".cjs", ".ts", ".tsx", ".mts", ".cts", ".vue", ".svelte")
_RUFF: Final = ("ruff.toml", ".ruff.toml", "pyproject.toml [tool.ruff]", "pyproject.toml [tool.ruff.")
_MYPY: Final = ("mypy.ini", ".mypy.ini", "pyproject.toml [tool.mypy]", "setup.cfg [mypy]")
_TSC: Final = f"--noEmit --pretty false --incremental --tsBuildInfoFile {SCRATCH}/tsc"  # `composite` writes it as well

LINTERS: Final = (
    ProjectTool("ruff", _RUFF, _PYTHON, "check --no-fix --force-exclude --quiet --output-format=concise"),
    ProjectTool("mypy", _MYPY, _PYTHON, "--no-pretty --no-error-summary --no-color-output"),
    ProjectTool("pyright", ("pyrightconfig.json", "pyproject.toml [tool.pyright]"), _PYTHON),
    ProjectTool("eslint", ("eslint.config.",), _SCRIPTS, f"--no-warn-ignored --format {FORMAT_SCRIPT}"),
    ProjectTool("tsc", ("tsconfig.json",), _SCRIPTS, _TSC, takes_files=False),
    ProjectTool("go vet", ("go.mod",), _GO, "vet ./...", takes_files=False),
    ProjectTool("cargo check", ("Cargo.lock",), _RUST, "check --quiet --message-format=short", takes_files=False),
)
"""In the order of their diagnostics. Cargo writes its lock file if there is none, and prints paths from its folder."""

FORMATTERS: Final = (
    ProjectTool("black", ("pyproject.toml [tool.black]",), _PYTHON, "--quiet - --stdin-filename"),
    ProjectTool("ruff format", _RUFF, _PYTHON, "format --force-exclude --quiet --stdin-filename"),
    ProjectTool("prettier", (".prettierrc", "prettier.config."), (*_SCRIPTS, ".css", ".json"), "--stdin-filepath"),
    ProjectTool("gofmt", ("go.mod",), _GO, takes_files=False),
    ProjectTool("rustfmt", ("Cargo.toml",), _RUST, "--edition 2021", takes_files=False),
)
"""They read the text from the standard input. The first that a project configures formats a file."""


def configured_tools(
    tools: Sequence[ProjectTool], path: str, settings: Callable[[str], Sequence[str]]
) -> list[ProjectTool]:
    """Return the tools for a file, each in the nearest folder at or above the file that configures it.

    `settings` returns the names of the files in a folder, and of headings: `setup.cfg [mypy]`.
    """
    configured: list[ProjectTool] = []

    for tool in tools:
        if not path.endswith(tool.suffixes):
            continue

        for folder in with_parents(posixpath.dirname(path)):
            if any(name.startswith(tool.settings) for name in settings(folder)):
                configured.append(tool._replace(folder=folder))
                break

    return configured


_DIAGNOSTIC: Final = re.compile(
    r"(?:vet: )?(?P<path>[^\s:][^:]*?)[:(](?P<line>\d{1,9})(?:[:,]\d{1,9})?\)?(?::| -) (?P<message>\S.*)"
)
"""A line of ruff, mypy, pyright, `LINE_FORMAT`, tsc, go or cargo, without the spaces around it."""

_LONGEST_LINE: Final = 5_000  # characters that are looked at
_LONGEST: Final = 300  # characters of a message
_LINE_NUMBER: Final = re.compile(r"\bline \d+")
_FIXABLE: Final = "[*] "  # ruff's sign of what it could fix, which depends on the rest of the file
_REMARKS: Final = ("note:", "help:", "information:")


class Diagnostic(NamedTuple):
    """One problem, in a file of the workspace."""

    path: str
    line: int
    message: str

    @property
    def key(self) -> tuple[str, str]:
        """What stays the same when the lines of the file shift."""
        return self.path, _LINE_NUMBER.sub("line", self.message)

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


def read_diagnostics(output: str, root: str, linter: ProjectTool) -> list[Diagnostic]:
    """Return what a linter has printed on its files of the workspace `root`, without its remarks."""
    diagnostics: list[Diagnostic] = []
    for line in output.split("\n"):
        match = _DIAGNOSTIC.match(line[:_LONGEST_LINE].strip())
        if match is None:
            continue

        path = posixpath.join(root, linter.folder, match["path"])
        path = posixpath.normpath(path).removeprefix(f"{root}/")
        message = match["message"].replace(_FIXABLE, "").removesuffix(".")
        if path.endswith(linter.suffixes) and not path.startswith("/") and not message.startswith(_REMARKS):
            diagnostics.append(Diagnostic(path, int(match["line"]), message[:_LONGEST]))

    return diagnostics


def new_diagnostics(before: Sequence[Diagnostic], after: Sequence[Diagnostic]) -> list[Diagnostic]:
    """Return the diagnostics that are not among those of `before`; of equal ones the last are new."""
    remaining = Counter(diagnostic.key for diagnostic in before)
    new: list[Diagnostic] = []

    for diagnostic in after:
        if remaining[diagnostic.key]:
            remaining[diagnostic.key] -= 1
        else:
            new.append(diagnostic)

    return new
