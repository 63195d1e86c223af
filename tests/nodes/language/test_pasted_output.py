from mendgraph.nodes.language.names import told_paths, without_output
from tests.nodes.rows import rows

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
def test_pasted_output_is_told_from_the_words_of_a_request(
    request_text: str, words: str, output: str, paths: list[str]
) -> None:
    assert without_output(request_text) == (words, output)
    assert told_paths(output) == paths
