"""The thirteen requests in everyday words, and their checks."""

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.everyday.projects import SHOP, TODO
from benchmarks.real_model.checking import SECONDS, Answers, Every, Holds, Keeps, Unchanged, run_in_copy
from benchmarks.real_model.task import Check, Task, replace_once

NOT_CHECKED = "not checked: there is no node on this machine"
"""The problem of a JavaScript check without Node. The task counts neither as solved nor as wrong."""


@dataclass(frozen=True)
class HoldsInNode:
    """Hidden tests in JavaScript: the module `script` runs without an error in a copy of the workspace.

    It can use `assert`, `read(path)`, and `todo(...words)`, which runs the project's command and returns its output.
    """

    script: str

    def __call__(self, workspace: Path, answer: str) -> str | None:  # noqa: ARG002 - the signature of a check
        """Return the error in one line."""
        if shutil.which("node") is None:
            return NOT_CHECKED
        output = run_in_copy(workspace, ["node", "--input-type=module"], PRELUDE + self.script + SUCCESS)
        if output is None:
            return f"The hidden tests did not end within {SECONDS:g} s."

        lines = output.splitlines() or ["The program ended the process of the hidden tests."]
        if lines[-1] == "success":
            return None
        errors = [line for line in lines if "Error" in line]
        return errors[0] if errors else lines[-1]


PRELUDE = """import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
const read = (path) => readFileSync(path, "utf8");
const todo = (...words) => spawnSync(process.execPath, ["src/cli.js", ...words], { encoding: "utf8" }).stdout;
"""
SUCCESS = 'console.log("success");\n'


@dataclass(frozen=True)
class Sentences:
    """The answer has this number of sentences. The number of a list item does not end a sentence."""

    least: int
    most: int

    def __call__(self, workspace: Path, answer: str) -> str | None:  # noqa: ARG002 - the signature of a check
        """Return the wrong number."""
        count = len(re.findall(r"(?<!\d)[.!?]+(?=\s|$)", answer))
        if self.least <= count <= self.most:
            return None
        return f"The answer has {count} sentences."


def request(
    name: str, words: str, files: Mapping[str, str], *checks: Check, solution: Mapping[str, str | None] | None = None
) -> Task:
    """Return a task of this set. Without a solution, no file may change."""
    check = Every(checks if solution else (Unchanged(files), *checks))
    return Task(name, "everyday", "dev", words, files, check, bool(solution), solution or {})


def edited(files: Mapping[str, str], path: str, *replacements: tuple[str, str]) -> dict[str, str]:
    """Return one of the files with replaced texts."""
    text = files[path]
    for old, new in replacements:
        text = replace_once(text, old, new)
    return {path: text}


def without(files: Mapping[str, str], *paths: str) -> dict[str, str]:
    """Return the files without those at these paths."""
    return {path: text for path, text in files.items() if path not in paths}


RUN_SHOP = """
import os, pathlib, sys
sys.path.insert(0, "src")
os.environ.update(PYTHONPATH="src", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
pathlib.Path("list.csv").write_text("apple,0.50,4\\nbread,3.20,1\\n")
"""
"""The beginning of the hidden tests of the Python project."""

BROKEN_TEXT = {**SHOP, **edited(SHOP, "src/shop/text.py", ("text[: width - 3]", "text[:width]"))}
"""The project with a failing test."""

WRONG_DISCOUNT = {
    **BROKEN_TEXT,
    **edited(SHOP, "src/shop/cart.py", ("round(total * (100 - cart.discount) / 100)", "total - cart.discount")),
}
"""The project with a wrong total, which no test notices, and with a test that fails for another reason."""

WRONG_MINUTES = {
    **TODO,
    **edited(TODO, "src/format.js", ('String(minutes % 60).padStart(2, "0")', "minutes % 60")),
}

RENAMED_PYTHON = {
    path: text.replace("calc", "compute_total")
    for path, text in SHOP.items()
    if path in {"README.md", "src/shop/cart.py", "src/shop/cli.py", "tests/test_cart.py"}
}
RENAMED_JAVASCRIPT = {
    path: text.replace("addTodo", "addTask")
    for path, text in TODO.items()
    if path in {"src/todo.js", "src/cli.js", "test/todo.test.js"}
}

EVERYDAY = (
    request(
        "py_explain",
        "What does cart.py do?",
        SHOP,
        Answers((r"\bcart\b", r"product|item|\bline", r"total|cost|\bsum", r"(?s)\A(?!.*\b(database|tax|shipping)\b)")),
    ),
    request(
        "py_write",
        "Write a function slugify(title) in text.py that turns a title into something I can use in a URL: lower case, "
        "words joined with dashes, no punctuation.",
        SHOP,
        Holds(
            RUN_SHOP + "from shop.text import shorten, slugify",
            (
                "slugify('Hello World') == 'hello-world'",
                "slugify('Apples, pears and plums!') == 'apples-pears-and-plums'",
                "slugify('  Two  spaces ') == 'two-spaces'",
                "slugify('Top 10') == 'top-10'",
                "shorten('a very long product name', 10) == 'a very ...'",
            ),
        ),
        Keeps(without(SHOP, "src/shop/text.py", "README.md", "tests/test_text.py")),
        solution={
            "src/shop/text.py": "import re\n"
            + SHOP["src/shop/text.py"]
            + "\n\ndef slugify(title):\n    return '-'.join(re.findall(r'[a-z0-9]+', title.lower()))\n"
        },
    ),
    request(
        "py_fix",
        "The total is wrong when there is a discount, please fix it.",
        WRONG_DISCOUNT,
        Holds(
            RUN_SHOP + "from shop.cart import Cart, calc\ncart = Cart()\ncart.add('apple', 50, 4)",
            (
                "calc(cart) == 200",
                "setattr(cart, 'discount', 10) or calc(cart) == 180",
                "setattr(cart, 'discount', 100) or calc(cart) == 0",
                "run('-m', 'shop.cli', 'list.csv', '--discount', '50')[1] == 'Total: 2.60 EUR\\n'",
            ),
        ),
        Keeps(without(SHOP, "src/shop/cart.py", "src/shop/text.py", "tests/test_cart.py")),
        solution={"src/shop/cart.py": SHOP["src/shop/cart.py"]},
    ),
    request(
        "py_rename",
        "rename calc to compute_total everywhere",
        SHOP,
        Holds(
            RUN_SHOP + "import re\nfrom shop.cart import Cart, compute_total",
            (
                "run('-m', 'shop.cli', 'list.csv')[1] == 'Total: 5.20 EUR\\n'",
                *(f"not re.search(r'\\bcalc\\b', read({path!r}))" for path in RENAMED_PYTHON),
                "'print(compute_total(cart))' in read('README.md')",
                "read('tests/test_cart.py').count('def test_') == 5",
                "run('-m', 'pytest', '-q', '-p', 'no:cacheprovider')[0] == 0",
            ),
        ),
        Keeps(without(SHOP, *RENAMED_PYTHON)),
        solution=RENAMED_PYTHON,
    ),
    request(
        "py_flag",
        "add a --verbose flag to the cli that also lists every product with its quantity before the total",
        SHOP,
        Holds(
            RUN_SHOP + "said = run('-m', 'shop.cli', 'list.csv', '--verbose')[1].splitlines()",
            (
                "run('-m', 'shop.cli', 'list.csv')[1] == 'Total: 5.20 EUR\\n'",
                "said[-1] == 'Total: 5.20 EUR'",
                "any('apple' in line and '4' in line for line in said)",
                "any('bread' in line and '1' in line for line in said)",
                "run('-m', 'shop.cli', 'list.csv', '--discount', '50')[1] == 'Total: 2.60 EUR\\n'",
            ),
        ),
        Keeps(without(SHOP, "src/shop/cli.py", "README.md")),
        solution=edited(
            SHOP,
            "src/shop/cli.py",
            ("    args = ", '    parser.add_argument("--verbose", action="store_true")\n    args = '),
            (
                "    print(f",
                "    for each in cart.lines * args.verbose:\n        print(each.quantity, each.name)\n    print(f",
            ),
        ),
    ),
    request(
        "py_test",
        "write a test for parse_price",
        SHOP,
        Holds(
            RUN_SHOP
            + """
tests = [path.read_text() for path in pathlib.Path().rglob("test*.py") if ".venv" not in path.parts]
passes = lambda: run("-m", "pytest", "-q", "-p", "no:cacheprovider", ".")[0] == 0
price = pathlib.Path("src/shop/prices.py")
right = price.read_text()
def noticed(result):
    price.write_text(f"{right}\\n\\ndef parse_price(text):\\n    return {result}\\n")
    return not passes()
""",
            (
                "any('parse_price(' in text and 'def test' in text for text in tests)",
                "passes()",
                "noticed('0')",
                "noticed('float(text)')",
            ),
        ),
        Keeps(without(SHOP, "pyproject.toml", "README.md")),
        solution={
            "tests/test_prices.py": "from shop.prices import parse_price\n\n\n"
            'def test_parse_price():\n    assert parse_price("12.50") == 1250\n'
        },
    ),
    request(
        "py_summarise",
        "Summarise README.md in three sentences.",
        SHOP,
        Answers((r"shopping list", r"total|adds? up|sum", r"discount|CSV")),
        Sentences(2, 4),
    ),
    request(
        "py_question",
        "does the cart handle negative quantities?",
        SHOP,
        Answers(
            (
                r"quantit",
                r"ValueError|raises? an\b|an error|reject|refuse|not allow|(at least|less than|below) (1|one)\b",
            )
        ),
    ),
    request(
        "py_failing_test",
        "fix the failing test",
        BROKEN_TEXT,
        Holds(
            RUN_SHOP + "from shop.text import shorten",
            (
                "shorten('a very long product name', 10) == 'a very ...'",
                "shorten('apple', 5) == 'apple'",
                "len(shorten('x' * 50, 20)) == 20",
                "run('-m', 'pytest', '-q', '-p', 'no:cacheprovider')[0] == 0",
            ),
        ),
        Keeps(without(SHOP, "src/shop/text.py")),
        solution={"src/shop/text.py": SHOP["src/shop/text.py"]},
    ),
    request(
        "js_fix",
        "65 minutes are shown as 1:5 instead of 1:05, please fix that",
        WRONG_MINUTES,
        Keeps(without(TODO, "src/format.js", "test/format.test.js")),
        HoldsInNode("""
const { formatDuration, formatTodo } = await import("./src/format.js");
assert.equal(formatDuration(65), "1:05");
assert.equal(formatDuration(95), "1:35");
assert.equal(formatDuration(0), "0:00");
assert.equal(formatTodo({ id: 2, title: "read", minutes: 125 }), "2. read (2:05)");
"""),
        solution={"src/format.js": TODO["src/format.js"]},
    ),
    request(
        "js_write",
        "Write a function totalMinutes(todos) in todo.js that adds up the minutes of all todos that are not done yet.",
        TODO,
        Keeps(without(TODO, "src/todo.js", "test/todo.test.js", "README.md")),
        HoldsInNode("""
const { addTodo, completeTodo, openTodos, totalMinutes } = await import("./src/todo.js");
const todos = addTodo(addTodo([], "write", 30), "read", 10);
assert.equal(totalMinutes([]), 0);
assert.equal(totalMinutes(todos), 40);
assert.equal(totalMinutes(completeTodo(todos, 1)), 10);
assert.equal(openTodos(todos).length, 2);
"""),
        solution={
            "src/todo.js": TODO["src/todo.js"]
            + "\nexport function totalMinutes(todos) {\n"
            + "  return openTodos(todos).reduce((sum, todo) => sum + todo.minutes, 0);\n}\n"
        },
    ),
    request(
        "js_rename",
        "rename addTodo to addTask everywhere",
        TODO,
        Keeps(without(TODO, *RENAMED_JAVASCRIPT)),
        HoldsInNode(f"""
const {{ addTask, completeTodo }} = await import("./src/todo.js");
assert.deepEqual(addTask([], "write", 30), [{{ id: 1, title: "write", minutes: 30, done: false }}]);
todo("add", "65", "write", "it");
assert.equal(todo("list"), "1. write it (1:05)\\n");
for (const path of {json.dumps(sorted(RENAMED_JAVASCRIPT))}) {{
  assert.ok(!read(path).includes("addTodo"), `AssertionError: addTodo is still in ${{path}}`);
}}
assert.equal(read("test/todo.test.js").split('\\ntest("').length, 3);
"""),
        solution=RENAMED_JAVASCRIPT,
    ),
    request(
        "js_message",
        'When there is nothing to do, "list" should say "Nothing to do." instead of printing nothing.',
        TODO,
        Keeps(without(TODO, "src/cli.js", "README.md")),
        HoldsInNode("""
assert.equal(todo("list"), "Nothing to do.\\n");
todo("add", "65", "write", "it");
assert.equal(todo("list"), "1. write it (1:05)\\n");
todo("done", "1");
assert.equal(todo("list"), "Nothing to do.\\n");
"""),
        solution=edited(
            TODO,
            "src/cli.js",
            (
                "  for (const todo of openTodos",
                '  if (openTodos(load()).length === 0) console.log("Nothing to do.");\n  for (const todo of openTodos',
            ),
        ),
    ),
)
