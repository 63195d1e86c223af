"""What is read, checked and searched before the first model call."""

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mendgraph.graph.machine.small_models import preload_of
from mendgraph.nodes.language.read_ahead import MAX_BYTES, MAX_NAMED_FILES, MAX_SMALL_BYTES, MOST_LOOKED_AT, read_ahead
from mendgraph.nodes.records import EditForm, ModelReply, Profile, Protocol
from mendgraph.nodes.small_model.preload import MAX_FEW_BYTES, few_files
from tests.row_tables import rows

TEXT, NATIVE = Profile(protocol=Protocol.TEXT), Profile(protocol=Protocol.NATIVE)
BLOCKS = Profile(protocol=Protocol.TEXT, edit_form=EditForm.BLOCKS)
SMALL = (("calc.py", 10), ("names.md", 20))
LARGE = tuple((f"{name}.py", 1) for name in "abcdef")
IN_BLOCKS = rows(BLOCKS, BLOCKS.model_copy(update={"protocol": Protocol.NATIVE}))


class Workspace(NamedTuple):
    """It has the files `named`, and `all_files` to walk; each has `size` bytes."""

    named: frozenset[str] = frozenset({"calc.py", "names.md"})
    all_files: Iterable[tuple[str, int]] = SMALL
    sizes: dict[str, int] = {}  # noqa: RUF012 - never changed
    texts: dict[str, str] = {}  # noqa: RUF012 - never changed

    def exists(self, path: str) -> bool:
        return not self.named or path in self.named

    def size_of(self, path: str) -> int:
        return self.sizes.get(path, 0)

    def readable(self) -> Iterable[tuple[str, int]]:
        for walked, file in enumerate(self.all_files):
            assert walked <= MOST_LOOKED_AT, "a large workspace is not walked to its end"
            yield file

    def head(self, path: str, _: int) -> bytes | None:
        return self.texts[path].encode() if path in self.texts else None


def preload(
    request: str, profile: Profile, files: Workspace, *, checked: bool = False, before: Sequence[str] = ()
) -> ModelReply | None:
    """The reply that reads files for a turn with this profile."""
    return preload_of(profile, checked=checked)(request, files, before)


USUAL, ANY_NAME = Workspace(), Workspace(named=frozenset())


@rows(TEXT, NATIVE)
@rows(("Fix calc.py", ["calc.py"]), ("calc.py is wrong, see names.md", ["calc.py", "names.md"]), ("Fix the bug", []))
def test_named_files_alone_are_read_ahead_outside_the_block_form(
    request_text: str, paths: list[str], profile: Profile
) -> None:
    expected = read_ahead(paths) if paths else None
    assert preload(request_text, profile, USUAL) == preload(request_text, profile, USUAL, checked=True) == expected


@IN_BLOCKS
@rows(
    ("Fix calc.py", ["calc.py"], ["calc.py"]),
    ("Fix names.md", ["names.md"], []),
    ("Why is calc.py wrong?", ["names.md", "calc.py"], []),
    ("Fix the bug", ["calc.py", "names.md"], ["calc.py"]),
    ("Hello.", [], []),
)
def test_block_form_reads_files_to_change_and_checks_their_code(
    request_text: str, paths: list[str], code: list[str], profile: Profile
) -> None:
    assert preload(request_text, profile, USUAL) == read_ahead(paths)
    assert preload(request_text, profile, USUAL, checked=True) == read_ahead(paths, code)


@IN_BLOCKS
@rows(
    ("Fix retry_delay", [], ["retry_delay"]),
    ("Where are a_1, b_2, c_3 and d_4?", [], ["a_1", "b_2", "c_3"]),
    ("Fix retry_delay in calc.py", ["calc.py"], []),
    ("Fix the bug", [], []),
)
def test_large_workspace_is_searched_for_names_if_no_file_is_named(
    request_text: str, paths: list[str], names: list[str], profile: Profile
) -> None:
    large = Workspace(all_files=LARGE)
    assert preload(request_text, profile, large) == read_ahead(paths, names=names)


@rows(
    ("text.py", ["src/shop/text.py"]),
    ("shop/text.py", ["src/shop/text.py"]),
    ("cart.py", ["cart.py"]),
    ("ext.py", []),
    ("__init__.py", []),
    ("late.js, text.py and shop/text.py", ["src/shop/text.py"]),
)
def test_unique_file_is_found_by_the_end_of_its_path(named: str, paths: list[str]) -> None:
    names = ("cart.py", "src/cart.py", "src/shop/text.py", "a/__init__.py", "b/__init__.py", "README.md")
    later = ((f"{number}/late.py", 1) for number in range(2 * MOST_LOOKED_AT))
    files = Workspace(frozenset(names), iter([*((name, 1) for name in names), *later]))  # it is walked once
    assert preload(f"Fix {named}", TEXT, files) == (read_ahead(paths) if paths else None)


def test_number_of_files_read_ahead_is_bounded() -> None:
    many = [f"f{number}.py" for number in range(9)]
    assert preload(" ".join(many), TEXT, ANY_NAME) == read_ahead(many[:MAX_NAMED_FILES])
    names = [f"{number}.py" for number in range(MAX_NAMED_FILES)]
    files = Workspace(frozenset(names), tuple((path, 1) for path in names))
    expected = read_ahead(["0.py", "1.py", "2.py", "4.py", "3.py"])
    assert preload("What do 4.py and 3.py do?", BLOCKS, files) == expected


@rows((True, ["names.md"]), (False, ["calc.py", "names.md"]))
def test_file_that_would_fill_the_window_is_not_read_ahead(small: bool, expected: list[str]) -> None:
    files = USUAL._replace(sizes={"calc.py": MAX_SMALL_BYTES + 1, "names.md": MAX_SMALL_BYTES})
    profile = TEXT.model_copy(update={"small": small})
    assert preload("calc.py is wrong, see names.md", profile, files) == read_ahead(expected)


@rows(
    ([("calc.py", 10), ("logo.png", 90_000), ("Makefile", 5), ("docs/A.MD", 7)], ["calc.py", "docs/A.MD"]),
    ([("a.py", MAX_FEW_BYTES - 1), ("b.py", 1)], ["a.py", "b.py"]),
    ([("a.py", MAX_FEW_BYTES), ("b.py", 1)], []),
    ([(f"{name}.py", 1) for name in "abcde"], [f"{name}.py" for name in "abcde"]),
    ([(f"{name}.py", 1) for name in "abcdef"], []),
)
def test_small_workspace_is_shown_in_full(files: list[tuple[str, int]], expected: list[str]) -> None:
    assert few_files(files) == expected


SHOP = {
    "README.md": "# shop\n\nAdds up a shopping list with a discount, and says the total.\n",
    "src/shop/__init__.py": "",
    "src/shop/cart.py": "def calc(cart):\n    return cart.total - cart.discount\n",
    "src/shop/cli.py": 'from shop.cart import calc\nprint("Total:", calc(read_cart()))\n',
    "src/shop/prices.py": "def parse_price(text):\n    return int(text)\n",
    "src/shop/text.py": "def shorten(text, width):\n    return text[:width]\n",
    "tests/test_cart.py": "from shop.cart import calc\n",
    "tests/test_text.py": "from shop.text import shorten\n",
}
CODE = ["src/shop/cart.py", "src/shop/cli.py", "src/shop/prices.py", "src/shop/text.py"]


def shop(**more: str) -> Workspace:
    texts = {**SHOP, **more}
    return Workspace(all_files=tuple((path, len(text)) for path, text in texts.items()), texts=texts)


@IN_BLOCKS
@rows(
    ("The total is wrong when there is a discount, please fix it.", ["src/shop/cart.py"], ["src/shop/cart.py"]),
    ("add a --verbose flag to the cli", ["src/shop/cli.py"], ["src/shop/cli.py"]),
    ('"Total:" should be "Sum:"', ["src/shop/cli.py"], ["src/shop/cli.py"]),
    ("does the cart have a total?", ["src/shop/cli.py", "src/shop/cart.py"], []),
    ("fix the failing test", CODE, [*CODE, "tests/test_cart.py", "tests/test_text.py"]),
    ("write a test for parse_price", ["tests/test_cart.py", "src/shop/prices.py"], None),
    ("Please write tests for shorten", ["tests/test_text.py", "src/shop/text.py"], None),
)
def test_file_is_chosen_by_the_words_of_the_request(
    request_text: str, paths: list[str], checked: list[str] | None, profile: Profile
) -> None:
    expected = read_ahead(paths, paths if checked is None else checked)
    assert preload(request_text, profile, shop(), checked=True) == expected


MANY = {f"{number}.py": "x\n" for number in range(MOST_LOOKED_AT)}
EVERYWHERE = "rename calc to compute_total everywhere"


def patched(request_text: str, **more: str) -> str | None:
    """The patch that renames a name before the first model call; None if it is left to the model."""
    ahead = preload(request_text, BLOCKS, shop(**more), checked=True)
    assert ahead is not None
    if [call.tool for call in ahead.calls] != ["apply_patch", "final_answer"]:
        assert "apply_patch" not in {call.tool for call in ahead.calls}
        return None
    return str(json.loads(str(ahead.calls[0].arguments))["patch"])


RENAMED = """*** Begin Patch
*** Update File: src/shop/cart.py
@@
-def calc(cart):
+def compute_total(cart):
     return cart.total - cart.discount
*** Update File: src/shop/cli.py
@@
-from shop.cart import calc
+from shop.cart import compute_total
-print("Total:", calc(read_cart()))
+print("Total:", compute_total(read_cart()))
*** Update File: tests/test_cart.py
@@
-from shop.cart import calc
+from shop.cart import compute_total
*** End Patch"""


@rows(
    EVERYWHERE,
    "Please rename the function `calc` to compute_total everywhere.",
    "Rename calc to compute_total.",
    "Rename calc in src/shop/cart.py to compute_total",
    "Rename the function calc to compute_total in cart.py.",
)
def test_certain_rename_is_done_everywhere_without_the_model(request_text: str) -> None:
    assert patched(request_text) == RENAMED


def test_all_unambiguous_uses_are_renamed() -> None:
    text = "from .cart import (\n    calc,\n)\n__all__ = ['calc']\ncart.calc() == calc == self.calc\n"
    patch = patched(EVERYWHERE, **{"src/shop/other.py": text})
    assert patch is not None
    assert [line for line in patch.splitlines() if line.startswith("+")][-3:] == [
        "+    compute_total,",
        "+__all__ = ['compute_total']",
        "+cart.compute_total() == compute_total == self.compute_total",
    ]


UNCLEAR = [
    *("def calc(): ...\n", "import maths\nmaths.calc()\n", "found().calc()\n", "from maths import sine, calc\n"),
    *("from maths import (\n    sine,\n    calc,\n)\n", "calc = 1\n", "draw(calc=True)\n", "{calc: 1}\n"),
    *('row["calc"]\n', "# what a calc is\n", "see calc, or ask for calc that rounds\n"),
]


@rows(
    (f"{EVERYWHERE} and fix it", {}),
    ("rename calc to shorten everywhere", {}),
    ("rename nothing_here to compute_total everywhere", {}),
    ("rename calc to class everywhere", {}),
    ("rename calc to compute_total in README.md", {}),
    ("rename calc to sum everywhere", {}),
    (EVERYWHERE, MANY),
    (EVERYWHERE, {"big.txt": "x" * MAX_BYTES}),
    *((EVERYWHERE, {"src/shop/other.py": text}) for text in UNCLEAR),
)
def test_ambiguous_or_larger_rename_is_left_to_the_model(request_text: str, more: dict[str, str]) -> None:
    assert patched(request_text, **more) is None


@rows(
    ("The cli is slow, fix it.", "cli cli cli", "cli"),
    ("return of the shop rebate is wrong", "rebate", "other"),
    ("fix the quantities", "quantity = 1", "other"),
    ("fix the discount when there is one", "when there is one", "cart"),
)
def test_common_words_have_less_weight(request_text: str, other: str, module: str) -> None:
    files = shop(**{"src/shop/other.py": f"{other}\n"})
    assert preload(request_text, BLOCKS, files) == read_ahead([f"src/shop/{module}.py"])


FAILED, TRACE = "FAILED {0}::test_total", '  File "{0}", line 2, in f'
FRAMES = f"Traceback:\n{TRACE.format('src/shop/cli.py')}\n{TRACE.format('src/shop/cart.py')}"
CART, CLI = "src/shop/cart.py", "src/shop/cli.py"


@rows(
    ("it still fails", [CLI]),
    (f"{FAILED.format('cli_test.py')}", [CLI]),
    (FAILED.format("tests/test_cart.py"), ["tests/test_cart.py", CLI]),
    ("tests/test_cart.py still fails", ["tests/test_cart.py", CLI]),
    (f"{FAILED.format('x_test.py')}\nFix the cart.", [CLI]),
    (f"{FAILED.format('cli_test.py')}\nE   what?", [CLI]),
    (TRACE.format("gone.py"), [CLI]),
    (f"How do I fix the discount of {CLI}?", [CLI]),
    ("How do I fix the discount?", [CART]),
    (FRAMES, [CLI, CART]),
    (f"{FRAMES}\nFix {CLI}.", [CART, CLI]),
    ("Now please mend that.", [CLI]),
    ("now fix the cart", [CART]),
    ("write a test for parse_price", ["tests/test_cart.py", "src/shop/prices.py"]),
    ("Hello.", []),
)
def test_request_continues_with_the_files_of_the_last_turn(request_text: str, expected: list[str]) -> None:
    files = shop()._replace(named=frozenset(SHOP))
    assert preload(request_text, BLOCKS, files, before=[CLI, "gone.py"]) == read_ahead(expected)


def test_no_file_is_guessed_in_a_large_workspace() -> None:
    assert preload("fix the discount of the cart", BLOCKS, shop(**MANY)) == read_ahead([])


def test_files_are_read_ahead_by_a_synthetic_reply() -> None:
    reply = read_ahead(["a.py", "ü b.py"], ["a.py"], ["a_1", "b_2"])
    assert [(call.call_id, call.tool, call.arguments) for call in reply.calls] == [
        ("ahead_0", "read_file", '{"path": "a.py"}'),
        ("ahead_1", "read_file", '{"path": "ü b.py"}'),
        ("ahead_2", "run_checks", '{"paths": ["a.py"]}'),
        ("ahead_3", "search_files", r'{"pattern": "\\ba_1\\b|\\bb_2\\b"}'),
    ]
    assert [(call.tool, call.arguments) for call in read_ahead([]).calls] == [("list_files", '{"path": "."}')]
    assert reply.preloaded
