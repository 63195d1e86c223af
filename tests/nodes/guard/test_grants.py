import pytest

from mendgraph.nodes.guard.approvals import Grant, grant_for, grant_words
from mendgraph.nodes.records import Effect, JsonMap, ToolCall, ToolSpec

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
