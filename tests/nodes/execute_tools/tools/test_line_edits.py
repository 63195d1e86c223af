from nodes.execute_tools.tools.line_edits import LineEdit, apply_edits, dedented, moved

LINES = ("a\n", "b\n", "c\n")


def test_edits_apply_in_the_order_of_their_lines() -> None:
    edits = [LineEdit(2, 3, ("C\n",)), LineEdit(0, 1, ()), LineEdit(3, 3, ("end\n",))]
    assert apply_edits(LINES, edits) == "b\nC\nend\n"


def test_insertions_at_one_place_come_first_and_in_their_order() -> None:
    edits = [LineEdit(1, 2, ("B\n",)), LineEdit(1, 1, ("x\n",)), LineEdit(1, 1, ("y\n",))]
    assert apply_edits(LINES, edits) == "a\nx\ny\nB\nc\n"


def test_moved_lines_keep_what_is_frozen_blank_or_less_indented() -> None:
    lines = ("  def f():\r\n", '    x = """\r\n', "    raw\r\n", "\r\n", "odd(\r\n", "  )")
    expected = ["    def f():", '      x = """', "    raw", "", "odd(", "    )"]
    assert moved(lines, range(1, 7), ("  ", "    "), {3}) == expected


def test_lines_move_to_the_left() -> None:
    assert moved(("\t\tx\n", "\t\t\ty\n"), range(1, 3), ("\t\t", ""), ()) == ["x", "\ty"]


def test_dedented() -> None:
    assert dedented("\n    def f():\n        x\n  y\n\n    z") == "\ndef f():\n    x\n  y\n\nz"
    assert dedented("") == ""
