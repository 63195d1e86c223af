from mendgraph.nodes.execute_tools.edits.losses import (
    elision_in,
    is_elision,
    lost_keys,
    torn_statement,
    why_not_whole,
    why_too_little,
)
from mendgraph.nodes.execute_tools.edits.units import PythonSource, read_units
from tests.row_tables import rows

WHOLE = "def f(x):\n    # keep the rest of the code\n    y = x\n    return y\n"


def read(code: str) -> PythonSource:
    source = read_units(code)
    assert isinstance(source, PythonSource)
    return source


ELISIONS = (
    *("# ...", "#… other methods", "# the rest of the function remains the same", "# unchanged"),
    *("# code omitted for brevity", "# add the logic here"),
)
COMMENTS = ("", "# the rest is computed from the previous row", "# no change of sign, so no root", "# TODO: rest")


def test_elision_comments_are_recognized() -> None:
    assert [comment for comment in (*ELISIONS, *COMMENTS) if is_elision(comment)] == [*ELISIONS]


@rows(
    ("def f(x):\n    return x\n", ""),
    ("def f(x):\n    # rest of the code\n    return x\n", "line 2 says `# rest of the code`"),
    ("def f(x):\n    y = 2\n    ...\n", "line 3 says `...`"),
    ("def f(x):\n    pass\n", "line 1 gives f no body"),
    ("def f(x):\n    raise NotImplementedError('later')\n", ""),
    ("def f(x):\n    return x[..., 0]\n", ""),
)
def test_elision_in_a_new_function_body_is_reported(new: str, report: str) -> None:
    assert elision_in(read(WHOLE).units[0], read(new).units[0]) == report


@rows(
    ("def f():\n    return 1\n", ""),
    ("x = 1\nif x:\n    return x\n", "line 3 `return x`"),
    ("yield 1\n", "line 1 `yield 1`"),
    ("class A:\n    def f(self):\n        yield 1\n", ""),
)
def test_return_outside_of_any_function_is_reported(code: str, torn: str) -> None:
    source = read(code)
    assert torn_statement(source.trees, source.lines) == torn


# --- A block in place of a whole file

LONG = "".join(f"line {number}\n" for number in range(30))


@rows(
    (LONG, LONG[: len(LONG) // 2], ""),
    ("a: 1\nb: 2\n", "a: 2\n# ... rest unchanged\n", "it says `# ... rest unchanged` in place of text"),
    ("a", "  // existing code here\n", "it says `// existing code here` in place of text"),
    ("a", "--- a/x\n+++ b/x\n", "it is a diff"),
    ("a", "@@ Title\n", "it is a diff"),
    ("--- a/x\n+++ b/x\n", "--- a/y\n+++ b/y\n", ""),
    ("a", "x\n...\n", "it says `...` in place of text"),
    ("a", "# the rest of us\n", ""),
)
def test_excerpt_is_not_accepted_as_a_whole_file(old: str, new: str, why: str) -> None:
    assert why_not_whole(old, new) == why


@rows(
    ("a\nb\n", "c\n", "", "it holds 0 of the 2 lines that the file has"),
    ("a\n\nb\nc\n", " a\n", "", "it holds 1 of the 3 lines that the file has"),
    ("a\nb\n", "c\n", "Shorten it", ""),
    ("a\n", "c\n", "Add c", "it holds 0 of the 1 lines that the file has"),
    ("\n", "c\n", "Add c", ""),
)
def test_text_with_too_few_lines_of_the_file_is_reported(old: str, new: str, task: str, why: str) -> None:
    assert why_too_little(old, new, task) == why


SCRIPT = "export async function a() {\n  let b = 1;\n}\nclass B {}\nexport default function* c() {}\nlet d = 2;\n"


@rows(
    ("a.py", "def f(:\nasync  def g(x):\nclass A\n    def m(self):\ndef f():\n", "def g(x): pass\n", ("f", "A")),
    ("a.json", '{"a": {"b": 1}, "c\\"": 2}', '{"a": 1}', ("b", 'c\\"')),
    ("a.yaml", "a: 1\nb:\n  - c: 2\n'd': 3\n", "a: 1\n", ("b", "c", "d")),
    ("a.toml", "[tool.x]\na = 1\n[[y]]\n", "a = 2\n", ("tool.x", "y")),
    ("a.md", "a: 1\n", "", ()),
    ("a.js", SCRIPT, "export function a() {}\nexport const d = 2;\n", ("B", "c")),
    ("a.rs", "pub fn sum(n: u64) {}\n\npub(crate) struct B;\nimpl B {}\n", "pub fn sum(n: u64) {}\n", ("B",)),
    ("a.go", "func (s *Stack) Push(v int) {}\nfunc Pop() {}\ntype T struct{}\n", "func Pop() {}\n", ("Push", "T")),
    ("a.java", "public final class A {\n  void b() {}\n}\n", "void b() {}\n", ("A",)),
    ("a.ts", "export const $a: number = 1;\nfunctional();\n", "", ("$a",)),
)
def test_lost_keys_are_named(path: str, old: str, new: str, lost: tuple[str, ...]) -> None:
    assert lost_keys(path, old, new) == lost
