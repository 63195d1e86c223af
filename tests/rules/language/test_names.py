from hypothesis import given, strategies as st

from mendgraph.nodes.language.names import (
    LARGEST_NUMBER,
    closest_names,
    directory_expected,
    is_reference,
    named_identifiers,
    named_paths,
    names_elsewhere,
    number_of,
    paths_in_output,
    reference_of,
    split_output,
    unknown_reference,
)
from mendgraph.nodes.records import ToolError, ToolErrorCode
from mendgraph.nodes.small_model.wording import orders_a_change, reports_a_problem
from tests.row_tables import rows


@rows(
    ("read", ["read_file", "list_files", "unread"], ("read_file", "unread")),
    ("raed_file", ["read_file", "write_file"], ("read_file", "write_file")),
    ("calc.txt", ["calc.py", "zebra.md"], ("calc.py",)),
    ("zzz", ["read_file"], ()),
    ("", ["a"], ()),
    ("a", ["a1", "a2", "a3", "a4"], ("a1", "a2", "a3")),
    ("ab", ["abcdef", "abc"], ("abc", "abcdef")),
)
def test_closest_names_come_first(name: str, names: list[str], closest: tuple[str, ...]) -> None:
    assert closest_names(name, names) == closest


@rows(
    ("In which file is retry_delay defined?", ["retry_delay"]),
    ("What does `parse` return, and HttpClient?", ["parse", "HttpClient"]),
    ("median([1, 2]) gives 2, and median is wrong.", ["median"]),
    ("camelCase and MAX_SIZE in src/my_file.py", ["camelCase", "MAX_SIZE"]),
    ("", []),
)
def test_identifiers_in_a_request_are_recognized(request_text: str, names: list[str]) -> None:
    assert named_identifiers(request_text) == names


@rows(
    ("Write a module words.py.", ["words.py"]),
    ("Fix calc.py...", ["calc.py"]),
    ("Fix `src/calc.py`, then (tests/test_calc.py)!", ["src/calc.py", "tests/test_calc.py"]),
    ('Why does "./src/calc.py" fail at src/calc.py:12?', ["src/calc.py"]),
    ("pack.tar.gz and .gitignore and a-b/c+d.e_f", ["pack.tar.gz", ".gitignore", "a-b/c+d.e_f"]),
    ("überall.py und データ.json", ["überall.py", "データ.json"]),
    ("look at ../calc.py and /etc/calc.py and https://example.org/calc.py", ["/etc/calc.py"]),
    ("bump .github/workflows/ci.yml, ./.env.x and .a/.b", [".github/workflows/ci.yml", ".env.x", ".a/.b"]),
    ("fix app/\\[slug\\]/\\$id.tsx and my\\_name.py", ["app/[slug]/$id.tsx", "my_name.py"]),
    ("C:\\work\\calc.py, src\\calc.py, ~/calc.py, file:///calc.py and this/or.that", ["this/or.that"]),
    ("e.g. version 1.0, i.e. nothing", ["e.g", "i.e"]),
    ("Makefile has no suffix. Neither has this. . .. ...", []),
    ("@" * 50_000 + "ab+/" * 50_000 + "-." * 50_000, []),
    ("Fix ./src/a.py and 'my notes.md', then src/a.py", ["my notes.md", "src/a.py", "notes.md"]),
)
def test_paths_in_a_request_are_found(request_text: str, paths: list[str]) -> None:
    assert named_paths(request_text) == paths


@rows(
    *((path, True) for path in ("~", "~/a.py", "~bob/a.py", "C:\\a.py", "c:/a.py", "\\\\host\\a.py", "file:/a")),
    *((path, True) for path in ("file:///a.py", "https://example.com/a.py", "vscode-vfs://github/a.py")),
    *((path, False) for path in ("", ".", "a.py", "/a.py", "a~", "~a.py", "a/~/b", "./~/a.py", "./C:/a.py")),
    *((path, False) for path in ("a:b", "src/a:/b", "a\\b", "\\a", "12:30/x", "@result/1")),
)
def test_path_form_can_name_a_place_outside_the_workspace(path: str, elsewhere: bool) -> None:
    assert names_elsewhere(path) is elsewhere


@given(st.integers(1, LARGEST_NUMBER))
def test_reference_contains_its_number(number: int) -> None:
    assert number_of(reference_of(number)) == number
    assert is_reference(reference_of(number))


LATEST = "The latest are @result/10, @result/9, @result/2."
NONE_KEPT = "None was kept in this run: make the call again."


@rows(((2, 10, 1, 9), LATEST, ("@result/10", "@result/9", "@result/2")), ((), NONE_KEPT, ()))
def test_unknown_reference_is_an_error_that_lists_known_ones(
    numbers: tuple[int, ...], hint: str, suggestions: tuple[str, ...]
) -> None:
    message = f"No kept result is called @result/7. {hint}"
    expected = ToolError(code=ToolErrorCode.NOT_FOUND, message=message, suggestions=suggestions)
    assert unknown_reference("@result/7", numbers) == expected
    assert directory_expected("@result/3").endswith('not a directory: read_file path="@result/3" reads it.')


@rows(
    *("", "@result", "@result/", "@result/0", "@result/01", "@result/-1", "@result/1000000", "@result/x"),
    *("./@result/1", "/@result/1", "@result/1/", "@result/1/../.env", "@result/../.env", "@RESULT/1", "a@result/1"),
    *("@result/1\n", "@result/1 ", "@result/\u0661", "@result/1.txt", "result/1"),
)
def test_any_other_spelling_is_a_workspace_path(path: str) -> None:
    assert (is_reference(path), number_of(path)) == (False, None)


@rows(
    ("The add function in calc.py is wrong: it subtracts. Fix it.", True),
    ("Rename load to read in app.py and main.py", True),
    ("Could you please rename `load` to `read`?", True),
    ("I want you to remove the dead function.", True),
    ("median([1, 2]) gives 2.\nFix that.", True),
    ("Append a line to notes.txt.", True),
    ("Write me a short summary of calc.py.", False),
    ("Make the summary function faster.", True),
    ("Add a list of names to names.json.", True),
    ("In limits.json, depth is 2.", False),
    ("How do I fix the add function?", False),
    ("Explain how to add a column.", False),
    ("Look at calc.py, but do not change anything. Fix ideas are welcome.", False),
    ("`fix` is a command of ours.", False),
    ("Hello.", False),
    ("", False),
)
def test_order_starts_with_a_verb(request_text: str, orders: bool) -> None:
    assert orders_a_change(request_text) is orders


@rows(
    ("The tests fail because totals are rounded wrong.", True),
    ("median([1, 2, 3, 4]) gives 3, expected 2.5", True),
    ("total([]) raises ZeroDivisionError.", True),
    ("Why does total([]) raise ZeroDivisionError?", False),
    ("What is wrong with add? Fix it.", True),
    ("When the list is empty, it should say so.", True),
    ("When does it fail?", False),
    ("The sum is wrong. Do not change any file.", False),
    ("Hello.", False),
    ("Please fix it.", True),
    ("There are bugs in it.", True),
    ("How do I fix this?", False),
    ("Thanks, that fixed it.", False),
    ("Thanks for the fix.", False),
)
def test_problem_report_is_distinguished_from_a_question(request_text: str, reports: bool) -> None:
    assert reports_a_problem(request_text) is reports


PYTEST = """\
F.                                                                       [100%]
=================================== FAILURES ===================================
_________________________________ test_total ___________________________________
tests/test_cart.py:9: in test_total
    assert total(Cart()) == 0
./shop/cart.py:12: in total
    return rate(cart)
/usr/lib/python3.11/site-packages/money/rates.py:3: in rate
    return parse(open("rates.json"))
E   FileNotFoundError: No such file or directory: 'rates.json'
=========================== short test summary info ============================
FAILED tests/test_cart.py::test_total - FileNotFoundError: No such file"""
TRACEBACK = """\
Traceback (most recent call last):
  File "app.py", line 3, in <module>
    main()
  File "shop/cart.py", line 12, in total
    return 1 / 0
ZeroDivisionError: division by zero"""
SECTION = """\
___ test_total ___
cart.py:3:5: in total
x_test.py:9: in test_total
1 failed in 0.01s"""
CUT_OFF = """\
E.
  File "a.py", line 2, in f
    return 1"""


@rows(
    (f"{PYTEST}\n\n####\n\nFix it.", "####\n\nFix it.", PYTEST, ["tests/test_cart.py", "shop/cart.py"]),
    (f"It dies in b.py:\n\n{TRACEBACK}\n", "It dies in b.py:", TRACEBACK, ["app.py", "shop/cart.py"]),
    (f"Fix it.\n{SECTION}\nNow.", "Fix it.\nNow.", SECTION, ["x_test.py", "cart.py"]),
    (f"{CUT_OFF}\nIt fails.", "It fails.", CUT_OFF, ["a.py"]),
    ("FAILED x_test.py::test_a\nstill", "still", "FAILED x_test.py::test_a", ["x_test.py"]),
    *((words, words, "", []) for words in ("Fix a.py, line 3.", "# A\n\n==== b ====\n\nError: a.py")),
)
def test_pasted_output_is_separated_from_the_request(
    request_text: str, words: str, output: str, paths: list[str]
) -> None:
    assert split_output(request_text) == (words, output)
    assert paths_in_output(output) == paths
