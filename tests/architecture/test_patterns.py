"""No regular expression of ours, of a repository or of a model takes more than linear time."""

from typing import Final

from hypothesis import example, given, settings, strategies as st

from mendgraph.nodes.workspace.files.tree_walk import Entry, IgnoreRules, parse_glob
from tests.architecture.hostile_texts import slow_unit
from tests.architecture.patterns import patterns, unseen
from tests.extent import nightly

OF_ROWS: Final = "in a row of the table of formats, where it is looked at"
MADE_OF_THEM: Final = {
    "mendgraph.graph.fleet.serving.request_guard.__init__": "the operator's own, of langgraph.json",
    "mendgraph.graph.hooks.claude_hooks._matcher_problem": "it is only compiled",
    "mendgraph.graph.hooks.claude_hooks.first_match": "the matcher of a file that the user trusts, for names of tools",
    "mendgraph.nodes.workspace.files.tree_walk._any_of": "see below",
    "mendgraph.nodes.workspace.sandboxes.private_folder.__init__": "alternatives of literal names",
    "mendgraph.nodes.execute_tools.secrets.shapes.pattern": "its patterns are in a variable",
    "mendgraph.nodes.workspace.files.tree_walk.segments_of": "see below",
    "mendgraph.nodes.language.formats.call_format.head_pattern": OF_ROWS,
    "mendgraph.nodes.language.formats.json_calls._start": OF_ROWS,
    "mendgraph.nodes.language.formats.named_json._tail": OF_ROWS,
    "mendgraph.nodes.language.formats.python_calls.end_marks": "a literal mark",
    "mendgraph.nodes.language.formats.recognition.starts_of": "alternatives of literal marks and names",
    "mendgraph.nodes.language.formats.tagged._mark": OF_ROWS,
    "mendgraph.nodes.language.formats.tagged._opening": OF_ROWS,
    "mendgraph.nodes.language.formats.tagged._pattern": "an end mark, with a literal name",
}
"""Functions that make patterns, and why none of them is missed here."""


USED_OTHERWISE: Final = {
    "mendgraph.nodes.language.formats.named_json.NAMED_JSON": "the head of gpt-oss, compared at one place only",
}
"""Patterns that are used in another way than it looks."""


@nightly
def test_no_own_pattern_takes_more_than_linear_time() -> None:
    slow = {
        pattern.name
        for pattern in patterns()
        if slow_unit(pattern.pattern, pattern.flags, anchored=pattern.anchored, most_seconds=0.5)
    }
    assert len(patterns()) > 500
    assert slow == USED_OTHERWISE.keys()


def test_every_function_that_builds_patterns_is_reviewed() -> None:
    assert unseen() == MADE_OF_THEM.keys()


def test_superlinear_patterns_are_distinguished_from_linear_ones() -> None:
    longer = [
        (r"\s+$", False),
        (r"(?:a|a)*b", True),
        (r"(a+)+b", True),
        (r"\s*,?\s*x", True),
        (r"\bnot\b[^.;\n]*$", False),
        (r"[^/]*a[^/]*a[^/]*b", True),
    ]
    linear = [(r"\s+", False), (r"a++b", True), (r"(?<!\s)\s+$", False), (r"(?>.*?a)(?>.*?a)b", True)]
    assert [row for row in longer if slow_unit(row[0], anchored=row[1]) is None] == []
    assert [row for row in linear if slow_unit(row[0], anchored=row[1]) is not None] == []


LINES = st.lists(st.sampled_from(["*", "**/", "/**", "/", "a", "b", "?", "[ab]", "[!a]", "**"]), max_size=14).map(
    "".join
)


@given(LINES)
@example("*a" * 20 + "b")
@example("**/a*/" * 6 + "b")
@settings(max_examples=8)
def test_no_ignore_pattern_of_a_repository_takes_more_than_linear_time(line: str) -> None:
    rules = IgnoreRules().within(".", [Entry(".gitignore", "file", 0)], lambda _: line.encode())
    for _, blocks in rules.specs:
        segments = (segment for glob, _ in blocks[0].globs for segment in glob if segment is not None)
        for pattern in (blocks[0].names, blocks[0].folders, *segments):
            assert slow_unit(pattern.pattern, anchored=True) is None


@given(LINES.filter(lambda line: "/" not in line))
@example("*a" * 10 + "b")
@settings(max_examples=6)
def test_no_glob_of_a_model_takes_more_than_linear_time(pattern: str) -> None:
    glob = parse_glob(pattern)
    for segment in glob.alternatives[0] if glob else ():
        if segment is not None:
            assert slow_unit(segment.pattern, anchored=True) is None
