from dataclasses import replace

from mendgraph.nodes.execute_tools.registry import ToolContext, ToolOutput
from mendgraph.nodes.execute_tools.tools.edit_file import edit_blocks
from mendgraph.nodes.execute_tools.tools.read_file import read_file
from mendgraph.nodes.records import ChangeKind, FileChange, JsonMap, ToolErrorCode
from tests.row_tables import rows
from tests.workspace.conftest import Bench
from tests.workspace.files.layout import tree_of

CALC = "def add(a, b):\n    return a - b\n\n\ndef sub(a, b):\n    return a - b\n"
FIXED = "def add(a, b):\n    return a + b\n"
BROKEN = "def add(a, b:\n    return a - b\n\n\ndef sub(a, b):\n    return a - b\n"
CONFIG = "".join(f"key{number}: {number}\n" for number in range(30))
EXCERPT = "The block looks like an excerpt of 'config.yaml'"


def test_function_is_replaced_by_name(bench: Bench) -> None:
    bench.put({"calc.py": CALC})
    preview = bench.run(edit_blocks, path="calc.py", content=FIXED)
    assert (preview.result.data["changed"], preview.result.data["content"], preview.changes) == (False, CALC, ())
    output = bench.run(edit_blocks, path="calc.py", content=FIXED)
    fixed = CALC.replace("a - b", "a + b", 1)
    assert output.result.data == {"path": "calc.py", "changed": ["add"], "action": "merged", "content": fixed}
    assert bench.bytes_of("calc.py") == fixed.encode()
    [change] = output.changes
    assert (change.kind, change.path) == (ChangeKind.EDITED, "calc.py")
    assert "-    return a - b\n+    return a + b\n" in change.diff


def test_new_files_are_created(bench: Bench) -> None:
    data = bench.data(edit_blocks, path="src/calc.py", content=CALC)
    assert data == {"path": "src/calc.py", "changed": ["add", "sub"], "action": "created", "content": CALC}
    assert bench.bytes_of("src/calc.py") == CALC.encode()
    data = bench.data(edit_blocks, path="a.txt", content="a\n")
    assert data == {"path": "a.txt", "changed": [], "action": "created", "content": "a\n"}


def test_other_file_is_replaced_as_a_whole_after_it_was_read(bench: Bench) -> None:
    bench.put({"config.yaml": CONFIG.replace("\n", "\r\n")})
    data = bench.data(edit_blocks, path="config.yaml", content=CONFIG + "new: 1\n")
    assert (data["content"], data["changed"]) == (CONFIG, False)
    assert bench.bytes_of("config.yaml") == CONFIG.replace("\n", "\r\n").encode()
    data = bench.data(edit_blocks, path="config.yaml", content=CONFIG + "new: 1\n")
    assert data == {"path": "config.yaml", "changed": [], "action": "replaced", "content": CONFIG + "new: 1\n"}
    assert bench.bytes_of("config.yaml") == (CONFIG + "new: 1\n").replace("\n", "\r\n").encode()


REFUSED = [
    ("calc.py", CALC, "The block is identical to what add, sub in 'calc.py' already has, so nothing would change."),
    ("calc.py", "def add(\n", "The block is not valid Python (line 1: '(' was never closed)."),
    ("calc.py", " \n", "content is empty: give the new text."),
    ("calc.py", "x = '\x00'", "content holds the character U+0000 in line 1"),
    ("calc.py", "def add(a, b):\n    pass\n", "The block leaves out part of add: line 1 gives add no body."),
    ("new.py", "def add(:\n", "The block for 'new.py' is not valid Python (line 1: invalid syntax)."),
    ("binary.py", "x = 1", "'binary.py' is a binary file of 3 bytes"),
    ("broken.py", FIXED, "The block would drop sub from 'broken.py'. Send the whole text, or use edit_file."),
    ("broken.py", f"{CALC}x = (\n", "The block for 'broken.py' is not valid Python (line 7: '(' was never closed)."),
    ("broken.py", BROKEN, "The block is identical to what 'broken.py' already has, so nothing would change."),
    ("config.yaml", "key1: 2\n", f"{EXCERPT}: it has 1 lines where the file has 30. Send"),
    ("config.yaml", CONFIG + "# ... rest unchanged\n", f"{EXCERPT}: it says `# ... rest unchanged` in place of text."),
]


@rows(*REFUSED)
def test_block_that_is_empty_partial_or_wrong_is_refused(path: str, content: str, message: str, bench: Bench) -> None:
    files: dict[str, str | bytes] = {"calc.py": CALC, "broken.py": BROKEN, "config.yaml": CONFIG, "binary.py": b"a\0b"}
    bench.put(files)
    for name in ("calc.py", "broken.py", "config.yaml"):
        bench.data(read_file, path=name)
    before = tree_of(bench.root)
    error = bench.error(edit_blocks, path=path, content=content)
    unchanged = message.startswith("The block is identical")
    assert error.code is (ToolErrorCode.UNCHANGED if unchanged else ToolErrorCode.INVALID_ARGUMENT)
    assert error.message.startswith(message)
    assert tree_of(bench.root) == before


SHOP = '''\
"""A shop."""
from dataclasses import dataclass

RATE = 0.2
LIMIT: int = 3


@dataclass
class Item:
    name: str
    price: float = 1.0


class Cart:
    size = 3

    def __init__(self):
        self.items = []

    def add(self, item):
        self.items.append(item)

    @property
    def total(self):
        return -sum(item.price for item in self.items)


def main():
    cart = Cart()
    print(cart.total, RATE)


if __name__ == "__main__":
    main()
'''
RIGHT = "return sum(item.price for item in self.items)"
JSON = '{\n  "a": 1,\n  "b": {"c": 2}\n}\n'
NOTES = "# Notes\n\n- one\n- two\n"
SUM = ("a - b", "a + b")
TOTAL = ("return -sum", "return sum")
END = "in self.items)\n"
RATE = [("RATE = 0.2", "TAX = 0.3"), ("total, RATE", "total, TAX")]
AMOUNT = f"class Cart:\n    @property\n    def amount(self):\n        {RIGHT.replace('sum', '-sum')}\n"
NAMED = ("def total", "def amount")
BASKET = [("class Cart", "class Basket"), ("size = 3", "size = 4"), ("= Cart()", "= Basket()")]
GONE = (CALC[32:], "")


TEXTS: dict[str, str] = {"calc.py": CALC, "shop.py": SHOP, "a.json": JSON, "notes.md": NOTES}


def reply(bench: Bench, path: str, task: str, content: str) -> ToolOutput:
    """A block sent after the file was read, as the block form shows it."""
    bench.put(TEXTS)
    context = ToolContext(bench.workspace, bench.run(read_file, path=path).files_read, task=task)
    output: ToolOutput = edit_blocks.s(context, path=path, content=content)
    return output


CLEAR = "    def clear(self):\n        self.items = []\n"
REPLIES = [
    ("calc.py", "Fix add", f"{FIXED}\n# Example:\nresult = add(2, 3)\nprint(result)\n", [SUM], {"changed": ["add"]}),
    ("shop.py", "Fix total", f"def total(self):\n        {RIGHT}\n", [TOTAL], {"changed": ["Cart.total"]}),
    ("shop.py", "Set RATE to 0.3", "RATE = 0.3\n", [("0.2", "0.3")], {"changed": ["RATE"]}),
    ("shop.py", "Set size to 5", "size = 5\n", [("size = 3", "size = 5")], {"changed": ["Cart.size"]}),
    ("shop.py", "Add a method clear to Cart.", CLEAR, [(END, f"{END}\n{CLEAR}")], {"changed": ["Cart.clear"]}),
    ("shop.py", "Rename RATE to TAX and set it to 0.3.", "TAX = 0.3\n", RATE, {"changed": ["TAX"]}),
    ("shop.py", "Rename the property total of Cart to amount.", AMOUNT, [NAMED], {"changed": ["Cart.amount"]}),
    (
        "shop.py",
        "Rename the class Cart to Basket.",
        "class Basket:\n    size = 4\n",
        BASKET,
        {"changed": ["Basket.size", "Basket"]},
    ),
    ("calc.py", "Remove the unused function sub.", "del sub\n", [GONE], {"deleted": ["sub"]}),
    ("calc.py", "Delete sub and fix add.", FIXED, [SUM, GONE], {"changed": ["add"], "deleted": ["sub"]}),
    ("a.json", "Set a to 2", JSON.replace("1", "2"), [("1", "2")], {"action": "replaced"}),
    ("notes.md", "Add three", NOTES + "- three\n", [("- two\n", "- two\n- three\n")], {"action": "replaced"}),
]


@rows(*REPLIES)
def test_reply_of_a_small_model_becomes_the_intended_edit(
    path: str, task: str, content: str, edits: list[tuple[str, str]], data: JsonMap, bench: Bench
) -> None:
    output = reply(bench, path, task, content)
    expected = TEXTS[path]
    for old, new in edits:
        assert old in expected
        expected = expected.replace(old, new, 1)
    assert bench.bytes_of(path).decode() == expected
    assert {**output.result.data, **data} == output.result.data


@rows(
    ("calc.py", "Fix sub", "del add\n", "The request does not say to delete add, so nothing was changed."),
    ("calc.py", "Fix add", "return a + b\n", "The block gives only a part of a function (line 1 `return a + b`)."),
    ("calc.py", "Fix add", "def add(a, b):\nreturn a + b\n", "The block is not valid Python (line 2"),
    ("shop.py", "Add clear", "def clear(self):\n    self.items = []\n", "No class of 'shop.py' has a method clear"),
    ("a.json", "Set a to 2", '{\n  "a": 2\n}\n', "The block would drop b, c from 'a.json'."),
)
def test_destructive_or_incomplete_reply_is_refused(
    path: str, task: str, content: str, message: str, bench: Bench
) -> None:
    error = reply(bench, path, task, content).result.error
    assert error is not None
    assert error.message.startswith(message)
    assert bench.bytes_of(path).decode() == TEXTS[path]


def test_definition_can_be_moved_by_a_block_for_either_file(bench: Bench) -> None:
    bench.put(
        {"a.py": "import re\n\nX = 1\n\n\ndef load(text):\n    return re.A\n\n\nprint(load)\n", "b.py": "Y = 2\n"}
    )
    for path in ("a.py", "b.py"):
        bench.run(read_file, path=path)

    changes: list[FileChange] = []

    def send(path: str, content: str, more: str = "") -> str:
        task = f"Move load from a.py to b.py.{more}"
        context = ToolContext(bench.workspace, dict(bench.files_read), task=task, changes=changes)
        output = edit_blocks.s(context, path=path, content=content)
        bench.files_read.update(output.files_read)
        changes.extend(output.changes)
        return bench.bytes_of(path).decode()

    beginning = "import re\n\nX = 1\n\n\ndef load"
    assert send("a.py", "def load(text):\n    return 3\n").startswith(beginning)  # it would be lost
    assert send("b.py", "Y = 2\n") == "Y = 2\n\n\ndef load(text):\n    return 3\n"
    assert send("a.py", "X = 1\n") == "import re\nfrom b import load\n\nX = 1\n\n\nprint(load)\n"


def test_moved_definition_does_not_replace_a_namesake_and_keeps_its_new_name(bench: Bench) -> None:
    load, other = "def load():\n    return 1\n", "def load():\n    return 2\n"
    bench.put({"a.py": f"X = 1\nY = 1\n\n\n{load}", "b.py": other, "c.py": load})
    for path in ("a.py", "b.py", "c.py"):
        bench.run(read_file, path=path)
    context = ToolContext(bench.workspace, dict(bench.files_read), task="Move load from a.py to b.py.")
    edit_blocks.s(context, path="a.py", content="X = 2\n")
    assert load in bench.bytes_of("a.py").decode()
    renamed = replace(context, task="Move load from c.py to d.py. Rename load to fetch.")
    edit_blocks.s(renamed, path="d.py", content=load.replace("load", "fetch"))
    assert bench.bytes_of("d.py").decode() == load.replace("load", "fetch")


def test_unread_file_is_shown_before_anything_is_removed_from_it(bench: Bench) -> None:
    bench.put({"calc.py": CALC})
    context = ToolContext(bench.workspace, task="Remove the function sub.")
    output = edit_blocks.s(context, path="calc.py", content="del sub\n")
    assert (output.result.data["content"], bench.bytes_of("calc.py").decode()) == (CALC, CALC)
    added = edit_blocks.s(replace(context, task=""), path="calc.py", content="def half(a):\n    return a / 2\n")
    assert added.result.data["changed"] == ["half"]


# --- Edits in the notation of another harness

MENDED = CALC.replace("a - b", "a + b", 1)
HUNK = " def add(a, b):\n-    return a - b\n+    return a + b\n \n"
OLD, NEW = "def add(a, b):\n    return a - b\n", "def add(a, b):\n    return a + b\n"
SEARCH = f"<<<<<<< SEARCH\n{OLD}=======\n{NEW}>>>>>>> REPLACE\n"


@rows(
    SEARCH,
    f"calc.py\n{SEARCH}",
    f"```\nsrc/calc.py\n{SEARCH}...\n```\n",
    f"--- calc.py\n+++ calc.py\n@@ ... @@\n{HUNK}",
    f"@@ ... @@\n{HUNK}",
    f"--- a/calc.py\n+++ b/calc.py\n@@ -1,3 +1,3 @@\n{HUNK}",
    f"diff --git a/calc.py b/calc.py\nindex 1..2 100644\n--- a/calc.py\n+++ b/calc.py\n@@ -9,3 +9,3 @@ x\n{HUNK}",
    f"@@ -1,3 +1,3 @@\n{HUNK}",
    f"*** Begin Patch\n*** Update File: calc.py\n@@ def add(a, b):\n{HUNK}*** End Patch\n",
)
@rows("\n", "\r\n")
def test_edit_in_another_notation_is_applied_exactly(newline: str, content: str, bench: Bench) -> None:
    bench.put({"calc.py": CALC.replace("\n", newline)})
    data = bench.data(edit_blocks, path="calc.py", content=content)
    assert bench.bytes_of("calc.py") == MENDED.replace("\n", newline).encode()
    assert (data["action"], data["content"]) == ("edited", MENDED)


def test_search_blocks_are_applied_in_order_and_can_create_a_file(bench: Bench) -> None:
    bench.put({"a.txt": "one\ntwo\nthree\n"})
    blocks = "".join(f"<<<<<<< SEARCH\n{old}\n=======\n{old}!\n>>>>>>> REPLACE\n\n" for old in ("one", "three"))
    bench.data(edit_blocks, path="a.txt", content=blocks)
    assert bench.bytes_of("a.txt") == b"one!\ntwo\nthree!\n"
    bench.data(edit_blocks, path="b.txt", content="--- /dev/null\n+++ b/b.txt\n@@ -0,0 +1,2 @@\n+one\n+two\n")
    bench.data(edit_blocks, path="c.txt", content="*** Begin Patch\n*** Add File: c.txt\n+one\n*** End Patch\n")
    assert (bench.bytes_of("b.txt"), bench.bytes_of("c.txt")) == (b"one\ntwo\n", b"one\n")


@rows(
    ("calc.py", SEARCH.replace(NEW, OLD), ToolErrorCode.UNCHANGED),
    ("gone.py", SEARCH, ToolErrorCode.NOT_FOUND),
    (".env", SEARCH, ToolErrorCode.PERMISSION_DENIED),
)
def test_empty_edit_or_missing_file_in_another_notation_is_refused(
    path: str, content: str, code: ToolErrorCode, bench: Bench
) -> None:
    bench.put({"calc.py": CALC, ".env": CALC})
    before = tree_of(bench.root)
    assert bench.error(edit_blocks, path=path, content=content).code is code
    assert tree_of(bench.root) == before


@rows(
    (SEARCH.replace("a - b", "a * b"), "Line 1 of the block: the lines of this hunk do not occur in 'calc.py'."),
    (SEARCH.replace("def add(a, b):\n", ""), "Line 1 of the block: this hunk fits in several places of 'calc.py'"),
    (SEARCH.replace(">>>>>>> REPLACE\n", ""), "Line 1 of the block: this block has no end"),
    (f"{SEARCH}and more\n", "Line 8 of the block: here a block begins"),
    (f"util.py\n{SEARCH}", "Line 1 of the block: here a block begins"),
    (SEARCH.replace("SEARCH", "SEARCH>>"), "Line 1 of the block: here a block begins"),
    (f"=======\n{SEARCH}", "Line 1 of the block: here a block begins"),
    (SEARCH.replace("=======\n", "=======\n<<<<<<< SEARCH\n"), "Line 5 of the block: here a block begins"),
    (SEARCH + SEARCH.replace("=======", "===\n\n==="), "here are 0"),
    (SEARCH.replace(NEW, f"{NEW}=======\n{NEW}"), "Line 1 of the block: one line '=======' parts the old text"),
    (f"--- calc.py\n+++ calc.py\n@@ ... @@\n{HUNK}--- util.py\n+++ util.py\n@@ ... @@\n{HUNK}", "Line 8 of"),
    (f"--- a/util.py\n+++ b/util.py\n@@ -1,3 +1,3 @@\n{HUNK}", "this block is for 'calc.py' alone"),
    (f"*** Begin Patch\n*** Update File: util.py\n@@\n{HUNK}*** End Patch\n", "this block is for 'calc.py' alone"),
    ("*** Begin Patch\n*** Delete File: calc.py\n*** End Patch\n", "this block is for 'calc.py' alone"),
    (f"*** Begin Patch\n*** Update File: calc.py\n@@\n{HUNK}", "a patch ends with '*** End Patch'"),
)
def test_edit_in_another_notation_that_does_not_match_changes_nothing(content: str, message: str, bench: Bench) -> None:
    bench.put({"calc.py": CALC})
    assert message in bench.error(edit_blocks, path="calc.py", content=content).message
    assert bench.bytes_of("calc.py") == CALC.encode()


def test_loosely_matched_search_block_gets_the_indentation_of_the_file(bench: Bench) -> None:
    bench.put({"a.txt": "one\n\ttwo\n\tthree\n"})
    bench.data(edit_blocks, path="a.txt", content="<<<<<<< SEARCH\ntwo\nthree\n=======\n2\n>>>>>>> REPLACE\n")
    assert bench.bytes_of("a.txt") == b"one\n\t2\n"


def test_heading_in_a_search_block_is_not_a_separator(bench: Bench) -> None:
    bench.put({"a.md": "Title\n=====\ntext\n"})
    block = "<<<<<<< SEARCH\nTitle\n=====\n=======\nTitles\n======\n>>>>>>> REPLACE\n"
    bench.data(edit_blocks, path="a.md", content=block)
    assert bench.bytes_of("a.md") == b"Titles\n======\ntext\n"


def test_search_blocks_far_into_a_text_are_part_of_it(bench: Bench) -> None:
    guide = f"# Edits\n\nA block:\n\n    as this one\n\n{SEARCH}"
    bench.data(edit_blocks, path="guide.md", content=guide)
    assert bench.bytes_of("guide.md") == guide.encode()


def test_diff_is_kept_as_the_text_of_a_new_file(bench: Bench) -> None:
    diff = f"--- a/calc.py\n+++ b/calc.py\n@@ -1,3 +1,3 @@\n{HUNK}"
    bench.data(edit_blocks, path="fix.patch", content=diff)
    assert bench.bytes_of("fix.patch") == diff.encode()
