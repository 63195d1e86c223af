import pytest
from hypothesis import given, strategies as st

from benchmarks.real_model.record import RunEnd, changed_files, default_label, line_of, read_records, text_digest
from tests.benchmarks.real_model.samples import run

FILES = st.dictionaries(st.text(max_size=3), st.binary(max_size=2), max_size=4)


def test_of_each_place_the_last_result_counts() -> None:
    first, other, second = run("a", solved=False), run("b", solved=True), run("a", solved=True)
    text = "".join(map(line_of, [first, other, second]))
    assert read_records(text) == [other, second]


def test_a_line_that_a_kill_cut_off_is_left_out() -> None:
    text = line_of(run("a", solved=True))
    assert read_records(text + text.replace('"a"', '"b"')[:-20]) == [run("a", solved=True)]


def test_a_label_is_another_place() -> None:
    assert len(read_records(line_of(run("a", solved=True)) + line_of(run("a", solved=True, label="x")))) == 2


@pytest.mark.parametrize(
    ("changed", "changes", "ended", "false"),
    [
        ((), True, "done", True),
        ((), True, "FINISHED", True),
        (("a.py",), True, "done", False),
        ((), False, "done", False),
        ((), True, "SYSTEM_ERROR", False),
        ((), True, "limit_time", False),
    ],
)
def test_a_false_claim_says_done_and_changed_nothing(
    changed: tuple[str, ...], changes: bool, ended: str, false: bool
) -> None:
    record = run("a", solved=False, changed_files=changed, changes=changes)
    assert record.model_copy(update={"end": RunEnd(ended=ended)}).false_claim is false


def test_made_deleted_and_changed_files_are_named() -> None:
    before = {"kept": b"1", "changed": b"1", "deleted": b""}
    assert changed_files(before, {"kept": b"1", "changed": b"2", "made": b""}) == ("changed", "deleted", "made")


@given(FILES, FILES)
def test_nothing_is_changed_only_where_all_is_the_same(before: dict[str, bytes], after: dict[str, bytes]) -> None:
    assert (changed_files(before, after) == ()) is (before == after)


@pytest.mark.parametrize(
    ("protocol", "options", "label"),
    [
        (None, [], "default"),
        ("native", [], "native"),
        ("text", ["b=1", "a=x"], "text,a=x,b=1"),
    ],
)
def test_settings_without_a_name_are_called_what_they_are(protocol: str | None, options: list[str], label: str) -> None:
    assert default_label(protocol, options) == label


def test_a_digest_tells_texts_apart() -> None:
    assert text_digest("a") != text_digest("b")
