import pytest

from nodes.execute_tools.registry import ToolContext
from nodes.execute_tools.tools.read_file import read_file
from nodes.execute_tools.tools.saving import LoadedText, invalid, load_text
from nodes.execute_tools.tools.unread_files import instead_of, shown_unread, was_read
from tests.nodes.execute_tools.tools.conftest import Bench


def loaded(bench: Bench, path: str) -> LoadedText:
    found = load_text(ToolContext(bench.workspace), path)
    assert isinstance(found, LoadedText)
    return found


@pytest.mark.parametrize(("lines", "rest"), [(3, ""), (900, " It goes on after these lines.")])
def test_the_file_is_shown_as_read_file_shows_it(bench: Bench, lines: int, rest: str) -> None:
    bench.put({"a.py": "x = 1\r\n" * lines})
    before = loaded(bench, "a.py")
    output = shown_unread(ToolContext(bench.workspace), before)
    shown = f"'a.py' was not read yet. This is what it holds.{rest}"
    note = f"Nothing was changed: {shown} Make the edit again, from this text."
    read = bench.run(read_file, path="a.py")
    assert output.result.data == {**read.result.data, "changed": False, "note": note}
    assert (output.files_read, output.changes) == (read.files_read, ())


def test_an_error_stays_where_the_file_was_read(bench: Bench) -> None:
    bench.put({"a.py": "x = 1\n"})
    before = loaded(bench, "a.py")
    context = ToolContext(bench.workspace)
    assert (was_read(context, before), instead_of(invalid("No."), context, before)) == (
        False,
        shown_unread(context, before),
    )
    known = ToolContext(bench.workspace, {"a.py": before.sha256})
    assert (was_read(known, before), instead_of(invalid("No."), known, before).result.error) == (True, invalid("No."))


def test_a_file_that_is_gone_meanwhile_is_an_error(bench: Bench) -> None:
    bench.put({"a.py": "x = 1\n"})
    before = loaded(bench, "a.py")
    (bench.root / "a.py").unlink()
    assert shown_unread(ToolContext(bench.workspace), before).result.error is not None
