"""The lines of linters, and which diagnostics are new."""

from collections.abc import Sequence

from hypothesis import given, strategies as st

from mendgraph.nodes.execute_tools.evidence.linters import (
    FORMATTERS,
    LINTERS,
    Diagnostic,
    ProjectTool,
    configured_tools,
    new_diagnostics,
    read_diagnostics,
)
from tests.row_tables import rows

ROOT = "/work/shop"
LINTER = ProjectTool("linter", (), (".py", ".js", ".ts", ".go", ".rs"))


@rows(
    ("ruff", "cart.py:3:5: F401 [*] `os` imported but unused", ["cart.py:3: F401 `os` imported but unused"]),
    (
        "mypy",
        'cart.py:3: error: Name "x" is not defined  [name-defined]\ncart.py:3: note: Did you mean "y"?',
        ['cart.py:3: error: Name "x" is not defined  [name-defined]'],
    ),
    (
        "pyright",
        f'{ROOT}/cart.py\n  {ROOT}/cart.py:3:5 - error: "x" is not defined (reportUndefinedVariable)\n1 error',
        ['cart.py:3: error: "x" is not defined (reportUndefinedVariable)'],
    ),
    (
        "eslint",
        f"{ROOT}/src/cart.js:3:5: no-undef 'x' is not defined.",
        ["src/cart.js:3: no-undef 'x' is not defined"],
    ),
    (
        "tsc",
        "app/(shop)/cart.ts(3,5): error TS2304: Cannot find name 'x'.",
        ["app/(shop)/cart.ts:3: error TS2304: Cannot find name 'x'"],
    ),
    ("go vet", "# example.com/shop\nvet: ./cart.go:3:5: undefined: x", ["cart.go:3: undefined: x"]),
    (
        "cargo check",
        "src/cart.rs:3:5: error[E0425]: cannot find value `x` in this scope\nerror: could not compile `shop`",
        ["src/cart.rs:3: error[E0425]: cannot find value `x` in this scope"],
    ),
    ("a program elsewhere", "/usr/lib/python3/typing.py:3:5: E1 of no file of the workspace", []),
    ("a line of a log", "2026-11-30 12:00:01: cache is cold", []),
    ("no lines at all", "All checks passed!\nFound 0 errors: 3:4\n", []),
)
def test_linter_output_is_parsed(linter: str, output: str, expected: list[str]) -> None:
    assert [str(diagnostic) for diagnostic in read_diagnostics(output, ROOT, LINTER)] == expected, linter


@rows(
    ("web", "src/cart.ts(3,5): error TS2304: x", ["web/src/cart.ts:3: error TS2304: x"]),
    ("web", f"{ROOT}/web/cart.js:3:5: no-undef x", ["web/cart.js:3: no-undef x"]),
    ("web", "../shared/cart.ts(3,5): error TS2304: x", ["shared/cart.ts:3: error TS2304: x"]),
    ("web", "../../other/cart.ts(3,5): error TS2304: x", []),
)
def test_diagnostics_of_a_project_in_a_folder_name_files_of_the_workspace(
    folder: str, output: str, expected: list[str]
) -> None:
    linter = LINTER._replace(folder=folder)
    assert [str(diagnostic) for diagnostic in read_diagnostics(output, ROOT, linter)] == expected


def test_parsing_time_is_linear_in_the_line_length() -> None:
    spaces = " " * 1_000_000
    output = f"cart.py:1: x{spaces}y\n{'(1' * 500_000}\ncart.py:{'1' * 5_000}: x\ncart.py:2: z.\n"
    assert [diagnostic.line for diagnostic in read_diagnostics(output, ROOT, LINTER)] == [1, 2]


@rows(
    ("ruff", "ruff.toml"),
    ("ruff", "pyproject.toml [tool.ruff]"),
    ("ruff", "pyproject.toml [tool.ruff.lint]"),
    ("mypy", "setup.cfg [mypy]"),
    ("pyright", "pyproject.toml [tool.pyright]"),
    ("eslint", "eslint.config.mjs"),
    ("tsc", "tsconfig.json"),
    ("go vet", "go.mod"),
    ("cargo check", "Cargo.lock"),
    ("black", "pyproject.toml [tool.black]"),
    ("prettier", ".prettierrc.json"),
)
def test_linter_is_configured_only_by_its_own_settings(tool: str, settings: str) -> None:
    others = [
        "README.md",
        "myruff.toml",
        "pyproject.toml",
        "pyproject.toml [project]",
        "pyproject.toml [tool.ruffian]",
        "setup.cfg",
    ]
    (one,) = [linter for linter in (*LINTERS, *FORMATTERS) if linter.name == tool]
    path = f"src/cart{one.suffixes[0]}"
    in_root = {"": [*others, settings], "src": others}
    assert configured_tools([one], path, in_root.__getitem__) == [one]
    assert configured_tools([one], path, lambda _: others) == []


@rows(
    ("web/src/cart.ts", ["eslint", "tsc in web"]),
    ("web/app/cart.ts", ["eslint", "tsc in web/app"]),
    ("cart.ts", ["eslint"]),
    ("web/cart.css", []),
)
def test_linter_runs_in_the_nearest_folder_that_configures_it(path: str, expected: list[str]) -> None:
    settings = {"": ["eslint.config.js"], "web": ["tsconfig.json"], "web/app": ["tsconfig.json"]}
    tools = configured_tools(LINTERS, path, lambda folder: settings.get(folder, []))
    assert [tool.name for tool in tools] == expected


@rows(
    ([(1, "F401 `os`")], [(9, "F401 `os`")], []),
    ([(1, "F401 `os`")], [(1, "F401 `os`"), (5, "F821 `x`")], ["a.py:5: F821 `x`"]),
    ([(1, "F821 `x`")], [(1, "F821 `x`"), (5, "F821 `x`")], ["a.py:5: F821 `x`"]),
    ([(7, "F811 `f` from line 3")], [(9, "F811 `f` from line 5")], []),
    ([(1, "F401 `os`")], [], []),
)
def test_new_diagnostics_are_matched_by_message_and_count(
    before: Sequence[tuple[int, str]], after: Sequence[tuple[int, str]], expected: list[str]
) -> None:
    old, now = ([Diagnostic("a.py", line, text) for line, text in diagnostics] for diagnostics in (before, after))
    assert [str(diagnostic) for diagnostic in new_diagnostics(old, now)] == expected


DIAGNOSTICS = st.lists(
    st.builds(Diagnostic, st.sampled_from(["a.py", "b.py"]), st.integers(1, 9), st.sampled_from(["E1 one", "E2 two"]))
)


@given(DIAGNOSTICS, DIAGNOSTICS, st.integers(0, 50))
def test_diagnostics_added_to_shifted_lines_are_new(old: list[Diagnostic], added: list[Diagnostic], shift: int) -> None:
    shifted = [diagnostic._replace(line=diagnostic.line + shift) for diagnostic in old]
    assert new_diagnostics(old, [*shifted, *added]) == added
    assert new_diagnostics(old, shifted) == new_diagnostics([*old, *added], shifted) == []
