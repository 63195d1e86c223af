import pytest

from mendgraph.nodes.guard.approvals import (
    NO_PREVIEW,
    UNANSWERED,
    UNREADABLE,
    Decision,
    Grant,
    Preview,
    ShownPreview,
    digest_of,
    grant_for,
    grant_words,
    read_decision,
)
from mendgraph.nodes.records import Effect, JsonMap, ToolCall, ToolSpec, Verdict, VerdictKind

ARGUMENTS = {"path": "./a.py", "old_str": "a", "new_str": "b"}
CALL = ToolCall(call_id="1", tool="edit_file", arguments=ARGUMENTS, raw_arguments="")
ASK = Verdict(kind=VerdictKind.ASK, rule="ask_before_write", path="a.py")
DIFF = ShownPreview(kind="diff", text="-a\n+b", truncated=False)
SHOWN = Preview(DIFF, ("a.py",), (("a.py", "0" * 64, "mark"),))
REJECTED = Decision("reject")
NO_WORD, NO_ANSWER = Decision("reject", UNREADABLE), Decision("reject", UNANSWERED)


def test_the_digest_is_another_one_for_other_arguments_another_file_and_another_diff() -> None:
    other = CALL.model_copy(update={"arguments": {**ARGUMENTS, "new_str": "c"}})
    changed = SHOWN._replace(pins=(("a.py", "1" * 64, "mark"),))
    digests = [digest_of(CALL, SHOWN), digest_of(other, SHOWN), digest_of(CALL, changed), digest_of(CALL, NO_PREVIEW)]
    assert len(set(digests)) == 4
    assert digest_of(CALL, SHOWN) == digests[0]


@pytest.mark.parametrize(
    ("answer", "decision"),
    [
        ("approve", Decision("approve")),
        ("approve_for_run", Decision("approve_for_run")),
        ("reject", REJECTED),
        ("nobody", Decision("nobody")),
        ("edit", NO_WORD),
        ({"decisions": {0: {"action": "approve", "reason": ""}}}, Decision("approve")),
        ({"decisions": {"0": {"action": "approve", "digest": "abc"}}}, Decision("approve", digest="abc")),
        ({"decisions": {"0": "approve"}}, Decision("approve")),
        ({"decisions": {"0": {"action": "reject", "reason": "use b.py"}}}, Decision("reject", "use b.py")),
        ({"decisions": {"0": {"action": "edit", "arguments": {"a": 1}}}}, Decision("edit", arguments={"a": 1})),
        ({"decisions": {"0": {"action": "edit"}}}, NO_WORD),
        ({"decisions": {"0": {"action": "edit", "arguments": [1]}}}, NO_WORD),
        ({"decisions": {"0": {"action": "approve", "digest": 7}}}, NO_WORD),
        ({"decisions": {"0": {}}}, NO_WORD),
        ({"decisions": {"1": {"action": "approve"}}}, NO_ANSWER),
        ({"decisions": {}}, NO_ANSWER),
        ({"decisions": ["approve"]}, NO_WORD),
        ({"action": "approve"}, NO_WORD),
        ("yes", NO_WORD),
        (True, NO_WORD),
        (None, NO_WORD),
    ],
)
def test_an_answer_is_read_or_counts_as_a_rejection(answer: object, decision: Decision) -> None:
    assert read_decision(answer, 0) == decision


# --- Grants

WRITE = ToolSpec(name="edit_file", description="", parameters={}, effect=Effect.WRITE)
RUN = ToolSpec(name="run_command", description="", parameters={}, effect=Effect.EXECUTE)
GET = ToolSpec(name="http_get", description="", parameters={}, effect=Effect.NETWORK)


def granted(spec: ToolSpec, arguments: JsonMap, rule: str = "rule", thread: str = "t") -> Grant | None:
    call = ToolCall(call_id="1", tool=spec.name, arguments=arguments, raw_arguments="")
    return grant_for(thread, rule, call, spec)


@pytest.mark.parametrize(
    ("spec", "arguments", "subject", "words"),
    [
        (WRITE, {"path": "a.py"}, "", "edit_file on every file that no rule denies, except project configuration"),
        (RUN, {"argv": ["make", "x"]}, "make", "run_command with the program make, whatever its arguments"),
        (RUN, {"argv": ["./x"], "cwd": "a"}, "a/x", "run_command with the program a/x, whatever its arguments"),
        (GET, {"url": "https://Docs.python.org:8080/3/"}, "https://docs.python.org:8080", None),
        (GET, {"url": "http://a@b.org/"}, "http://b.org", "http_get from the host http://b.org"),
    ],
)
def test_a_grant_says_what_it_covers(spec: ToolSpec, arguments: JsonMap, subject: str, words: str | None) -> None:
    grant = granted(spec, arguments)
    assert grant == Grant(thread="t", rule="rule", tool=spec.name, subject=subject)
    if words is not None:
        assert grant_words(grant, spec) == words


@pytest.mark.parametrize(
    ("spec", "arguments"),
    [
        (RUN, {}),
        (RUN, {"argv": [""]}),
        (RUN, {"argv": "make"}),
        (RUN, {"argv": ["make"], "cwd": 1}),
        (RUN, {"argv": [f"./{'a' * 300}"]}),
        (RUN, {"argv": ["ma\u202eke"]}),
        (GET, {"url": "http://a:x/"}),
        (GET, {"url": "http://[::1/"}),
    ],
)
def test_what_cannot_be_told_is_not_offered(spec: ToolSpec, arguments: JsonMap) -> None:
    assert granted(spec, arguments) is None
    assert grant_words(None, spec) == ""


def test_project_configuration_and_a_run_without_a_thread_are_asked_for_each_time() -> None:
    assert granted(WRITE, {}, rule="project_config") is None
    assert granted(WRITE, {}, thread="") is None
