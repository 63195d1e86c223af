import pytest

from nodes.execute_tools.tools.line_edits import apply_edits
from nodes.execute_tools.tools.merge_draft import Body, MergeDraft, undecorated
from nodes.execute_tools.tools.python_units import PythonText, read_python

SOURCE = '''\
LIMIT = 1


@cache
def f():
    return 1
    # of f


class A(B):
    """Doc."""

    # about g
    def g(self):
        return 1
'''


def draft(source: str, block: str, newline: str = "\n") -> MergeDraft:
    old, new = read_python(source), read_python(block)
    assert isinstance(old, PythonText)
    assert isinstance(new, PythonText)
    return MergeDraft(old, new, "f.py", newline)


def result(merge: MergeDraft) -> str:
    return apply_edits(merge.source.lines, merge.edits)


def test_an_exchange_keeps_decorators_and_all_around() -> None:
    merge = draft(SOURCE, "def f():\n    return 2\n")
    merge.exchange(merge.source.units[1], merge.block.units[0], "f")
    assert result(merge) == SOURCE.replace("    return 1\n    # of f", "    return 2\n    # of f")
    assert merge.changed == ["f"]


def test_an_exchange_takes_new_decorators() -> None:
    merge = draft(SOURCE, "@other\ndef f():\n    return 1\n")
    merge.exchange(merge.source.units[1], merge.block.units[0], "f")
    assert result(merge) == SOURCE.replace("@cache", "@other")


def test_an_exchange_that_changes_nothing_is_none() -> None:
    merge = draft(SOURCE, SOURCE)
    merge.exchange(merge.source.units[1], merge.block.units[1], "f")
    assert (merge.edits, merge.changed) == ([], [])


def test_headers_are_exchanged_without_the_members() -> None:
    merge = draft(SOURCE, "@data\nclass A(\n    B,\n    C,\n):\n\n    # x\n    y = 1\n")
    merge.exchange_headers(merge.source.units[2], merge.block.units[0], "A")
    assert result(merge) == SOURCE.replace("class A(B):\n", "@data\nclass A(\n    B,\n    C,\n):\n")


@pytest.mark.parametrize(
    ("block", "anchor", "following", "old", "new"),
    [
        ("X = 2", 0, None, "LIMIT = 1\n", "LIMIT = 1\nX = 2\n"),
        ("def n(): pass", 1, None, "    # of f\n", "    # of f\n\n\ndef n(): pass\n"),
        ("X = 2", None, 1, "@cache", "X = 2\n\n\n@cache"),
        ("# f.py\ndef n(): pass\n    # end", None, None, SOURCE, f"{SOURCE}\n\ndef n(): pass\n    # end\n"),
        ("n = 1\n# of m\ndef m(): pass", None, None, SOURCE, f"{SOURCE}\n\nn = 1\n\n\n# of m\ndef m(): pass\n"),
        (
            "# ... existing code\ndef n():\n    pass\n    # rest of the code",
            0,
            None,
            "LIMIT = 1\n",
            "LIMIT = 1\n\n\ndef n():\n    pass\n",
        ),
    ],
)
def test_added_units(block: str, anchor: int | None, following: int | None, old: str, new: str) -> None:
    merge = draft(SOURCE, block)
    units = merge.source.units
    before, after = (None if index is None else units[index] for index in (anchor, following))
    merge.add(Body(units), before, after, merge.block.units)
    assert result(merge) == SOURCE.replace(old, new)
    assert merge.changed == [unit.key for unit in merge.block.units]


def test_added_members_are_indented_and_one_line_apart() -> None:
    merge = draft(SOURCE, "def h(self):\n    x = '''\nraw'''\n\n\ndef i(self):\n    pass\n")
    members = merge.source.members(merge.source.units[2])
    merge.add(Body(members, "    ", "A."), None, members[1], merge.block.units)
    added = "    def h(self):\n        x = '''\nraw'''\n\n    def i(self):\n        pass\n\n"
    assert result(merge) == SOURCE.replace("    # about g", f"{added}    # about g")
    assert merge.changed == ["A.h", "A.i"]


def test_a_main_guard_stays_last() -> None:
    source = 'x = 1\n\n\nif __name__ == "__main__":\n    f()\n'
    merge = draft(source, "def f():\n    pass\n")
    merge.add(Body(merge.source.units), None, None, merge.block.units)
    assert result(merge) == source.replace("if __name__", "def f():\n    pass\n\n\nif __name__")


def test_nothing_to_add_is_nothing() -> None:
    merge = draft("", "")
    merge.add(Body(()), None, None, [])
    merge.fill()
    assert (merge.edits, merge.changed) == ([], [])


def test_a_text_without_code_is_filled() -> None:
    merge = draft("# mine\r\n", "import x\nf()\n", "\r\n")
    merge.fill()
    assert (result(merge), merge.changed) == ("# mine\r\n\r\nimport x\r\nf()\r\n", ["all"])


def test_undecorated() -> None:
    text = read_python("def f(): pass\n@x\ndef g(): pass\nclass A: pass")
    assert isinstance(text, PythonText)
    assert [undecorated(unit) for unit in text.units] == [True, False, False]


def test_a_method_of_which_only_the_first_line_was_moved_keeps_its_body_where_it_is() -> None:
    merge = draft(SOURCE, "def g(self):\n        # now\n        return 2\n")
    merge.exchange(merge.source.members(merge.source.units[2])[1], merge.block.units[0], "A.g")
    assert result(merge) == SOURCE.replace("        return 1\n", "        # now\n        return 2\n")


def test_an_exchange_keeps_the_annotation() -> None:
    merge = draft("x: list[int] = [1]\n", "x = [2]  # x\n")
    merge.exchange(merge.source.units[0], merge.block.units[0], "x")
    assert result(merge) == "x: list[int] = [2]  # x\n"


def test_a_statement_is_removed() -> None:
    merge = draft("x = 1\nprint(x)\ny = 2\n", "")
    merge.remove(merge.source.units[1])
    assert (result(merge), merge.changed) == ("x = 1\ny = 2\n", ["line 2"])
