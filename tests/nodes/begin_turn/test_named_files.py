import json
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given, strategies as st

from mendgraph.nodes.begin_turn.named_files import (
    MAX_FEW_BYTES,
    MAX_NAMED_FILES,
    MAX_SMALL_BYTES,
    Ahead,
    few_files,
    named_files,
    preload,
    read_ahead,
)
from mendgraph.nodes.language.json_arguments import read_native_calls
from mendgraph.nodes.language.text_protocol import extract_in_order
from mendgraph.nodes.records import EditForm, ModelReply, Profile, Protocol, RawCall, ToolInvocation

KNOWN = frozenset({"read_file", "list_files", "run_checks", "search_files"})
TEXT, NATIVE = Profile(protocol=Protocol.TEXT), Profile(protocol=Protocol.NATIVE)
BLOCKS = Profile(protocol=Protocol.TEXT, edit_form=EditForm.BLOCKS)
SMALL = [("calc.py", 10), ("names.md", 20)]


def named(request: str, existing: Iterable[str]) -> list[str]:
    return named_files(request, frozenset(existing).__contains__)


@pytest.mark.parametrize(
    ("request_text", "paths"),
    [
        ("Fix calc.py", ["calc.py"]),
        ("Fix calc.py.", ["calc.py"]),
        ("Fix calc.py...", ["calc.py"]),
        ("Fix `src/calc.py`, then (tests/test_calc.py)!", ["src/calc.py", "tests/test_calc.py"]),
        ('Why does "./src/calc.py" fail at src/calc.py:12?', ["src/calc.py"]),
        ("calc.py's add is wrong, see calc.pyi", ["calc.py", "calc.pyi"]),
        ("pack.tar.gz and .gitignore and a-b/c+d.e_f", ["pack.tar.gz", ".gitignore", "a-b/c+d.e_f"]),
        ("überall.py und データ.json", ["überall.py", "データ.json"]),
        ("calc.py calc.py ./calc.py", ["calc.py"]),
        ("look at ../calc.py and /etc/calc.py and https://example.org/calc.py", ["/etc/calc.py"]),
        ("C:\\work\\calc.py, src\\calc.py, ~/calc.py, file:///calc.py and this/or.that", ["this/or.that"]),
        ("e.g. version 1.0, i.e. nothing", ["e.g", "i.e"]),
        ("Makefile has no suffix. Neither has this. . .. ...", []),
        ("", []),
    ],
)
def test_paths_in_a_request(request_text: str, paths: list[str]) -> None:
    assert named_files(request_text, lambda _: True) == paths


def test_only_what_exists_is_read_and_not_too_much_of_it() -> None:
    assert named("Fix a.py and b.py", ["b.py"]) == ["b.py"]
    many = [f"f{number}.py" for number in range(9)]
    assert named(" ".join(["absent.py", *many]), many) == many[:MAX_NAMED_FILES]


NAMES = st.from_regex(r"[a-z_][a-z0-9_-]{0,6}\.[a-z]{1,4}", fullmatch=True)
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)


@given(st.lists(PATHS, max_size=MAX_NAMED_FILES, unique=True), st.sampled_from([" ", ", ", " and `", "\n", "' '"]))
def test_every_named_file_is_found_in_order(paths: list[str], between: str) -> None:
    assert named(f"Fix {between.join(paths)}: it fails.", paths) == paths


@given(st.text())
def test_any_request_can_be_searched(request_text: str) -> None:
    found = named_files(request_text, lambda _: True)
    assert len(found) <= MAX_NAMED_FILES
    assert all(path and path in request_text for path in found)


@pytest.mark.parametrize("piece", ["@", "ab+/", "a.", "-.", "a/"])
def test_a_long_line_does_not_take_forever(piece: str) -> None:
    assert named(piece * 50_000, []) == []


def test_reading_ahead_in_text() -> None:
    assert read_ahead(["a.py", "ü b.py"], Protocol.TEXT) == ModelReply(
        text='tool: read_file({"path": "a.py"})\ntool: read_file({"path": "ü b.py"})', preloaded=True
    )
    assert read_ahead([], Protocol.TEXT) == ModelReply(text='tool: list_files({"path": "."})', preloaded=True)


def test_reading_ahead_natively() -> None:
    assert read_ahead(["a.py"], Protocol.NATIVE) == ModelReply(
        calls=(RawCall(call_id="ahead_0", tool="read_file", arguments='{"path": "a.py"}'),), preloaded=True
    )
    listing = RawCall(call_id="ahead_0", tool="list_files", arguments='{"path": "."}')
    assert read_ahead([], Protocol.NATIVE) == ModelReply(calls=(listing,), preloaded=True)


@given(st.lists(st.text(min_size=1, max_size=10), min_size=1, max_size=MAX_NAMED_FILES))
def test_both_forms_read_the_same_files(paths: list[str]) -> None:
    lines = [call.outcome for call in extract_in_order(read_ahead(paths, Protocol.TEXT).text, KNOWN)]
    calls = [call.outcome for call in read_native_calls(read_ahead(paths, Protocol.NATIVE).calls, KNOWN)]
    assert [outcome.args for outcome in lines if isinstance(outcome, ToolInvocation)] == [{"path": p} for p in paths]
    assert [json.dumps(outcome.args) for outcome in calls if isinstance(outcome, ToolInvocation)] == [
        json.dumps({"path": path}) for path in paths
    ]


@pytest.mark.parametrize(
    ("files", "shown"),
    [
        ([], []),
        ([("calc.py", 10), ("logo.png", 90_000), ("Makefile", 5), ("docs/A.MD", 7)], ["calc.py", "docs/A.MD"]),
        ([("a.py", MAX_FEW_BYTES - 1), ("b.py", 1)], ["a.py", "b.py"]),
        ([("a.py", MAX_FEW_BYTES), ("b.py", 1)], []),
        ([(f"{name}.py", 1) for name in "abcde"], [f"{name}.py" for name in "abcde"]),
        ([(f"{name}.py", 1) for name in "abcdef"], []),
    ],
)
def test_a_small_workspace_is_shown_as_a_whole(files: list[tuple[str, int]], shown: list[str]) -> None:
    assert few_files(files) == shown


def test_a_large_workspace_is_not_walked_to_its_end() -> None:
    walked: list[int] = []

    def walk() -> Iterator[tuple[str, int]]:
        for number in range(1_000):
            walked.append(number)
            yield f"{number}.py", 1

    assert few_files(walk()) == []
    assert len(walked) == MAX_NAMED_FILES + 1


@pytest.mark.parametrize(
    ("request_text", "expected"),
    [
        ("The add function in 'my file.py' is wrong.", ["my file.py"]),
        ("Fix `src/two words.py` and calc.py", ["src/two words.py", "calc.py"]),
        ("It's a bug, isn't it?", []),
    ],
)
def test_a_quoted_name_may_hold_spaces(request_text: str, expected: list[str]) -> None:
    assert named(request_text, ["my file.py", "src/two words.py", "calc.py"]) == expected


FILES_ALONE, CHECKED, NOTHING = Ahead(), Ahead(checked=True), Ahead(files=False, checked=True)
IN_BLOCKS = pytest.mark.parametrize("profile", [BLOCKS, BLOCKS.model_copy(update={"protocol": Protocol.NATIVE})])


def loaded(request: str, profile: Profile, ahead: Ahead, files: Iterable[tuple[str, int]] = SMALL) -> ModelReply | None:
    return preload(request, profile, ahead, frozenset({"calc.py", "names.md"}).__contains__, lambda: files)


@pytest.mark.parametrize("profile", [TEXT, NATIVE])
@pytest.mark.parametrize(
    ("request_text", "paths"),
    [
        ("Fix calc.py", ["calc.py"]),
        ("What does calc.py do?", ["calc.py"]),
        ("calc.py is wrong, see names.md", ["calc.py", "names.md"]),
        ("Fix other.py", []),
        ("Fix the bug", []),
        ("Hello.", []),
    ],
)
def test_outside_the_block_form_named_files_are_read_and_nothing_else(
    request_text: str, paths: list[str], profile: Profile
) -> None:
    expected = read_ahead(paths, profile.protocol) if paths else None
    assert loaded(request_text, profile, FILES_ALONE) == loaded(request_text, profile, CHECKED) == expected


@IN_BLOCKS
@pytest.mark.parametrize(
    ("request_text", "paths", "code"),
    [
        ("Fix calc.py", ["calc.py"], ["calc.py"]),
        ("calc.py gives 3, expected 2.5", ["calc.py"], ["calc.py"]),
        ("Fix calc.py and names.md", ["calc.py", "names.md"], ["calc.py"]),
        ("Fix names.md", ["names.md"], []),
        ("What does calc.py return?", ["calc.py", "names.md"], []),
        ("Why is calc.py wrong?", ["calc.py", "names.md"], []),
        ("Fix the bug", ["calc.py", "names.md"], ["calc.py"]),
        ("The sum is wrong.", ["calc.py", "names.md"], ["calc.py"]),
        ("Hello.", [], []),
        ("What is here?", ["calc.py", "names.md"], []),
    ],
)
def test_in_the_block_form_what_is_to_be_changed_is_shown_and_its_code_checked(
    request_text: str, paths: list[str], code: list[str], profile: Profile
) -> None:
    assert loaded(request_text, profile, FILES_ALONE) == read_ahead(paths, profile.protocol)
    assert loaded(request_text, profile, CHECKED) == read_ahead(paths, profile.protocol, code)


LARGE = [(f"{name}.py", 1) for name in "abcdef"]


@IN_BLOCKS
@pytest.mark.parametrize(
    ("request_text", "paths", "names"),
    [
        ("Fix retry_delay", [], ["retry_delay"]),
        ("In which file is retry_delay?", [], ["retry_delay"]),
        ("Hello, `retry_delay`.", [], ["retry_delay"]),
        ("Where are a_1, b_2, c_3 and d_4?", [], ["a_1", "b_2", "c_3"]),
        ("Fix retry_delay in calc.py", ["calc.py"], []),
        ("What does retry_delay in calc.py do?", ["calc.py"], []),
        ("Fix the bug", [], []),
        ("What is here?", [], []),
    ],
)
def test_in_a_large_workspace_names_are_searched_for_where_no_file_is_named(
    request_text: str, paths: list[str], names: list[str], profile: Profile
) -> None:
    assert loaded(request_text, profile, FILES_ALONE, LARGE) == read_ahead(paths, profile.protocol, names=names)


def test_a_question_is_about_no_more_files_than_others() -> None:
    known = [f"{number}.py" for number in range(MAX_NAMED_FILES)]
    asked = "What do 4.py and 3.py do?"
    reply = preload(asked, BLOCKS, FILES_ALONE, known.__contains__, lambda: [(path, 1) for path in known])
    assert reply == read_ahead(["4.py", "3.py", "0.py", "1.py", "2.py"], Protocol.TEXT)


def test_names_are_searched_for_as_whole_words_in_one_call() -> None:
    text = read_ahead([], Protocol.TEXT, names=["a_1", "b_2"]).text
    assert text == r'tool: search_files({"pattern": "\\ba_1\\b|\\bb_2\\b"})'
    [call] = read_ahead([], Protocol.NATIVE, names=["a_1"]).calls
    assert json.loads(call.arguments) == {"pattern": r"\ba_1\b"}


@pytest.mark.parametrize("profile", [TEXT, NATIVE, BLOCKS])
def test_nothing_is_done_ahead_where_that_is_switched_off(profile: Profile) -> None:
    assert loaded("Fix calc.py", profile, NOTHING) is None


def test_the_workspace_is_walked_only_for_a_change_that_names_no_file() -> None:
    def files() -> Iterator[tuple[str, int]]:
        raise AssertionError("walked")
        yield "a.py", 1

    for request_text, profile in (("Fix calc.py", BLOCKS), ("Hello.", BLOCKS), ("Fix the bug", TEXT)):
        preload(request_text, profile, CHECKED, {"calc.py"}.__contains__, files)


def test_the_code_is_checked_after_it_was_read() -> None:
    text = read_ahead(["a.py", "b.md"], Protocol.TEXT, ["a.py"]).text.splitlines()
    assert text[2:] == ['tool: run_checks({"paths": ["a.py"]})']
    calls = read_ahead(["a.py"], Protocol.NATIVE, ["a.py"]).calls
    assert calls[1:] == (RawCall(call_id="ahead_1", tool="run_checks", arguments='{"paths": ["a.py"]}'),)


@given(st.text(), st.sampled_from([TEXT, NATIVE, BLOCKS]), st.sampled_from([FILES_ALONE, CHECKED, NOTHING]))
def test_what_is_done_ahead_calls_only_what_reads(request_text: str, profile: Profile, ahead: Ahead) -> None:
    reply = preload(request_text, profile, ahead, lambda _: True, lambda: SMALL)
    if reply is not None:
        outcomes = [call.outcome for call in extract_in_order(reply.text, KNOWN)]
        outcomes += [call.outcome for call in read_native_calls(reply.calls, KNOWN)]
        tools = [outcome.tool_name for outcome in outcomes if isinstance(outcome, ToolInvocation)]
        assert (reply.preloaded, len(tools)) == (True, len(outcomes))
        assert set(tools) <= KNOWN
        assert len(tools) <= MAX_NAMED_FILES + 1


@pytest.mark.parametrize(("small", "shown"), [(True, ["names.md"]), (False, ["calc.py", "names.md"])])
def test_what_would_fill_the_window_is_left_for_the_model_to_ask_for(small: bool, shown: list[str]) -> None:
    ahead = Ahead(size_of={"calc.py": MAX_SMALL_BYTES + 1, "names.md": MAX_SMALL_BYTES}.__getitem__)
    profile = TEXT.model_copy(update={"small": small})
    assert loaded("calc.py is wrong, see names.md", profile, ahead) == read_ahead(shown, Protocol.TEXT)
