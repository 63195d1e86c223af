from dataclasses import replace
from typing import Any

from hypothesis import given, settings, strategies as st

from mendgraph.nodes.guard.file_rules import DEFAULT_GUARDRAIL_RULES, FileGuardrailRule
from mendgraph.nodes.guard.policy import (
    GuardConfig,
    Item,
    Mode,
    denied,
    edited_result,
    judge_call,
    judge_path,
    judge_reply,
    shown,
)
from mendgraph.nodes.records import (
    CallError,
    CallResult,
    Effect,
    ExtractionError,
    ExtractionErrorType,
    OverrideConstraint,
    ToolCall,
    ToolError,
    ToolErrorCode,
    ToolResult,
    ToolSpec,
    Verdict,
    VerdictKind,
)
from tests.row_tables import rows


def spec(name: str, effect: Effect, *path_fields: str) -> ToolSpec:
    return ToolSpec(name=name, description="", parameters={}, effect=effect, path_fields=path_fields)


def outside(path: str, _for_write: bool) -> ToolError:
    """The workspace's answer to a path outside it."""
    return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=f"no {shown(path)}", suggestions=("in.py",))


READ = spec("read_file", Effect.READ, "path")
WRITE = spec("edit_file", Effect.WRITE, "path")
MOVE = spec("move_file", Effect.WRITE, "source", "target")
PLAN = spec("update_plan", Effect.NONE)
RUN = spec("run_command", Effect.EXECUTE, "cwd")
GET = spec("http_get", Effect.NETWORK)
SPECS = {tool.name: tool for tool in (READ, WRITE, MOVE, PLAN)}
AUTO = GuardConfig(mode="auto", root="/home/dev/project", leads_to=outside)
ASK = replace(AUTO, mode="ask")
READ_ONLY = replace(AUTO, mode="read-only")
OVERRIDE = OverrideConstraint(signature="cafe", tool="read_file", target="a.py", repeats=3)
DENIED, INVALID = ToolErrorCode.PERMISSION_DENIED, ToolErrorCode.INVALID_ARGUMENT


def call(tool: str, **arguments: Any) -> ToolCall:
    return ToolCall(call_id="1", tool=tool, arguments=arguments, raw_arguments="")


def judge(tool: ToolSpec, config: GuardConfig = AUTO, **arguments: Any) -> Verdict:
    return judge_call(call(tool.name, **arguments), tool, config, [OVERRIDE], "beef")


def allowed(path: str = "") -> Verdict:
    return Verdict(kind=VerdictKind.ALLOW, path=path)


@rows(
    (READ, {"path": "./src//a.py"}, "src/a.py"),
    (READ, {"path": ".env.example"}, ".env.example"),
    (READ, {"path": "."}, "."),
    (READ, {"path": ["a.py", "b.py"]}, "a.py"),
    (READ, {"path": None}, ""),
    (MOVE, {"source": "a.py", "target": "b.py"}, "a.py"),
    (PLAN, {"steps": [], "path": "/etc/passwd"}, ""),
)
def test_harmless_call_is_allowed(tool: ToolSpec, arguments: dict[str, Any], path: str) -> None:
    assert judge(tool, **arguments) == allowed(path)


@rows(("a.py", "read_file on 'a.py'"), ("", "read_file"))
def test_overridden_call_is_refused_before_any_other_rule(target: str, named: str) -> None:
    override = OVERRIDE.model_copy(update={"target": target})
    verdict = judge_call(call("read_file", path="/etc/passwd"), READ, AUTO, [override], "cafe")
    message = (
        f"{named} was called 3 times with the same arguments and is now refused. "
        "Do something else: use what you have seen, change the arguments, or give your final answer."
    )
    assert verdict == denied("loop_override", ToolErrorCode.LOOP_OVERRIDE, message, path=target)


@rows(
    *("../", "..", "/", "~", "/etc/hosts", "/workspace/src/calc.py", "../other/calc.py", "~/notes/", "/etc/."),
    *("/home/dev/.env", "/home/dev/a\u202eb", "~bob/calc.py", "C:\\work\\calc.py", "C:/calc.py", "src\\calc.py"),
    *("", " ", "a\0", "a\nb"),
    *("\\\\host\\calc.py", "file:///home/dev/project/calc.py", "file:/calc.py", "https://example.com/calc.py"),
)
@rows(READ, WRITE)
def test_path_outside_is_denied_with_the_message_of_the_workspace(tool: ToolSpec, path: str) -> None:
    assert judge(tool, path=path) == denied("workspace_boundary", DENIED, f"no {shown(path)}", ("in.py",))


def test_path_that_resolves_inside_is_judged_by_its_real_name() -> None:
    assert judge(READ, replace(AUTO, leads_to=lambda *_: "src/a.py"), path="/link/src/a.py") == allowed("src/a.py")
    assert judge(READ, replace(AUTO, leads_to=lambda *_: ".env"), path="/link/x").rule == "env_file"
    assert judge(READ, replace(AUTO, leads_to=lambda *_: "real"), path="a\\b") == allowed("a\\b")
    config = replace(AUTO, leads_to=lambda _, for_write: f"write={for_write}")
    assert [judge(tool, config, path="/x").path for tool in (READ, WRITE)] == ["write=False", "write=True"]


def test_path_that_is_not_a_string_is_invalid() -> None:
    verdict = judge(READ, path=["a.py", None])
    assert (verdict.rule, verdict.error and verdict.error.code) == ("invalid_path", INVALID)


ENV, GIT, KEYS, SENSITIVE = (
    f"Blocked by rule '{rule}"
    for rule in (
        "env_file': Environment variable files",
        "git_internal': Git internal files",
        "private_key': Private keys and certificates",
        "sensitive_config': Sensitive configuration files",
    )
)


@rows(
    (READ, ".env", "env_file", ENV, ".env"),
    (WRITE, "./x/../.ENV", "env_file", ENV, ".ENV"),
    (WRITE, ".env.example", "env_file", ENV, ".env.example"),
    (READ, "server.key", "private_key", KEYS, "server.key: keys and certificates"),
    (WRITE, ".npmrc", "sensitive_config", SENSITIVE, ".npmrc: npm's token"),
    (READ, ".ssh/.npmrc", "sensitive_config", SENSITIVE, ".ssh/.npmrc: keys of SSH and GnuPG"),
    (WRITE, ".git/.env", "env_file", f"{ENV}; {GIT}", ".git/.env"),
)
def test_sensitive_files_are_neither_read_nor_changed_in_any_mode(
    tool: ToolSpec, path: str, rule: str, blocked: str, named: str
) -> None:
    expected = denied(rule, DENIED, f"{blocked} ({named}). Go on without this file.", path=named.partition(": ")[0])
    for config in (AUTO, ASK, READ_ONLY):
        verdict = judge(tool, config, path=path)
        assert verdict.model_copy(update={"blocked": "", "refused": ""}) == expected
        assert bool(verdict.refused) is (tool is WRITE)


def refused(tool: ToolSpec, path: str = "") -> Verdict:
    message = f"This run may look at files but not change them, so {tool.name} is refused. Answer without changes."
    return denied("read_only", DENIED, message, path=path)


@rows("read-only", "everything")
def test_read_only_run_can_still_read(mode: Mode) -> None:
    config = replace(AUTO, mode=mode)
    assert judge(WRITE, config, path="a.py") == refused(WRITE, "a.py")
    assert judge(READ, config, path="a.py") == allowed("a.py")
    assert judge(PLAN, config) == allowed()


def ask_verdict(rule: str, path: str = "") -> Verdict:
    return Verdict(kind=VerdictKind.ASK, rule=rule, path=path)


@rows(
    (WRITE, {"path": "./a.py"}, ask_verdict("ask_before_write", "a.py")),
    (WRITE, {"path": "a.toml"}, ask_verdict("project_config", "a.toml")),
    (MOVE, {"source": "a", "target": "b.toml"}, ask_verdict("project_config", "a")),
    (READ, {"path": "pyproject.toml"}, allowed("pyproject.toml")),
    (PLAN, {}, allowed()),
)
def test_mode_ask_asks_before_every_change(tool: ToolSpec, arguments: dict[str, Any], verdict: Verdict) -> None:
    assert judge(tool, ASK, **arguments) == verdict


@rows(
    (RUN, "auto", allowed()),
    (GET, "auto", allowed()),
    (RUN, "ask", ask_verdict("ask_before_run")),
    (GET, "ask", ask_verdict("ask_before_network")),
    (GET, "read-only", allowed()),
    (RUN, "read-only", refused(RUN)),
)
def test_commands_are_changes_and_network_calls_are_asked_about(tool: ToolSpec, mode: Mode, verdict: Verdict) -> None:
    assert judge(tool, replace(AUTO, mode=mode)) == verdict


def test_calls_of_a_reply_are_judged_in_order() -> None:
    broken = CallError(
        call_id="2",
        tool="x",
        raw_arguments="",
        error=ExtractionError(ExtractionErrorType.UNKNOWN_TOOL_NAME, 2, "tool: x({})", "There is no tool x."),
    )
    message = "UNKNOWN_TOOL_NAME in line 2: There is no tool x."
    items: list[Item] = [call("read_file", path="a.py"), broken, call("nothing"), call("read_file", path="b.py")]
    signatures = {"a.py": "beef", "b.py": "cafe"}
    verdicts = judge_reply(items, AUTO, SPECS, [OVERRIDE], lambda item, _: signatures[item.arguments["path"]])
    assert verdicts[:2] == [allowed("a.py"), denied("malformed", ToolErrorCode.UNKNOWN_TOOL, message)]
    assert [(verdict.kind, verdict.rule) for verdict in verdicts[2:]] == [
        (VerdictKind.DENY, "unknown_tool"),
        (VerdictKind.DENY, "loop_override"),
    ]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=3), children, max_size=3),
    max_leaves=5,
)


def raises(_: object) -> bool:
    raise RuntimeError


@settings(max_examples=30)
@given(
    st.dictionaries(st.sampled_from(["path", "source", "target", "x"]), json_values, max_size=3),
    st.sampled_from([*SPECS.values(), None]),
    st.sampled_from(["read-only", "ask", "auto", "", "AUTO"]),
    st.sampled_from(["/home/dev/project", "", "relative", "/"]),
    st.sampled_from(["", "cafe", "beef"]),
    st.booleans(),
)
def test_every_call_has_a_verdict_and_only_an_allowed_one_runs(
    arguments: dict[str, Any], tool: ToolSpec | None, mode: Mode, root: str, signature: str, broken_rule: bool
) -> None:
    rules = (*DEFAULT_GUARDRAIL_RULES, *([FileGuardrailRule("broken", "Broken", raises)] if broken_rule else []))
    config = GuardConfig(mode=mode, root=root, leads_to=outside, rules=rules)
    verdict = judge_call(call("any", **arguments), tool, config, [OVERRIDE], signature)
    if verdict.kind is VerdictKind.DENY:
        assert verdict.error is not None
        assert verdict.error.message.isprintable()
        assert verdict.rule
        return
    assert verdict.error is None
    assert tool is not None
    assert signature != "cafe"
    assert (verdict.kind is VerdictKind.ASK) is (tool.effect is Effect.WRITE and mode == "ask")
    assert tool.effect is not Effect.WRITE or mode in {"ask", "auto"}
    if verdict.path:
        assert root.startswith("/")
        assert not broken_rule
        assert judge_path(verdict.path, tool.effect is Effect.WRITE, rules) is None


def test_tool_outside_the_role_is_denied_and_the_others_run() -> None:
    reader = replace(AUTO, allowed=frozenset({"read_file"}))
    message = "The role of this run does not include edit_file. Use another tool, or answer without it."
    assert judge(WRITE, reader, path="a.py") == denied("role", DENIED, message)
    assert judge(READ, reader, path="a.py") == allowed("a.py")
    assert judge(READ, replace(AUTO, allowed=frozenset()), path="a.py").rule == "role"


@rows(([], ""), (["a.py", "b.py"], ""), (["a.py", ".env"], "env_file"), (["../x"], "workspace_boundary"))
def test_paths_inside_other_arguments_are_judged_too(paths: list[str], rule: str) -> None:
    patch = spec("apply_patch", Effect.WRITE)
    assert judge(patch, replace(AUTO, paths_of=lambda _: paths), patch="...").rule == rule


def test_stored_result_can_be_read_but_not_written() -> None:
    assert judge(READ, path="@result/3") == allowed()
    assert judge(READ, path="@result/../.env").rule == "env_file"
    message = "@result/3 is a kept result, which can only be read. Write to a file of the workspace instead."
    assert judge(WRITE, path="@result/3") == denied("kept_result", INVALID, message)
    assert judge(WRITE, path="./@result/3") == allowed("@result/3")


def test_result_says_what_a_person_edited_even_if_the_call_failed() -> None:
    edited = Verdict(kind=VerdictKind.ALLOW, rule="ask_before_write", edited=("content", "gone"))

    def result_after_edit(content: str, result: ToolResult) -> ToolResult:
        call = ToolCall(call_id="1", tool="write", arguments={"path": "a", "content": content}, raw_arguments="")
        return edited_result(call, edited, CallResult(call_id="1", tool="write", result=result)).result

    done, notice = ToolResult.success(path="a"), "A person changed content, gone of this call before it ran."
    changed = {"notice": notice, "ran_with": {"content": "new", "gone": None}}
    assert result_after_edit("new", done).data == {"path": "a", "changed_by_person": changed}
    long = result_after_edit("x" * 3_000, done).data["changed_by_person"]["ran_with"]["content"]
    assert long == "x" * 2_000 + "... 1000 more characters"
    error = result_after_edit("new", ToolResult.failure(ToolErrorCode.CONFLICT, "Stale.")).error
    assert error is not None
    ran_with = 'It ran with {"content": "new", "gone": null}.'
    assert (error.code, error.message) == (ToolErrorCode.CONFLICT, f"{notice} {ran_with} Stale.")


@rows(("auto", VerdictKind.DENY, "not_allowed"), ("ask", VerdictKind.ASK, "ask_before_run"))
def test_tool_that_requires_approval_runs_only_in_mode_ask(mode: Mode, kind: VerdictKind, rule: str) -> None:
    config = replace(AUTO, mode=mode, need_approval=frozenset({"serve"}))
    verdict = judge(spec("serve", Effect.EXECUTE), config)
    assert (verdict.kind, verdict.rule) == (kind, rule)


@rows(("auto", VerdictKind.ALLOW), ("ask", VerdictKind.ALLOW), ("read-only", VerdictKind.DENY))
def test_granted_tool_runs_without_a_question_except_in_mode_read_only(mode: Mode, kind: VerdictKind) -> None:
    config = replace(AUTO, mode=mode, granted=frozenset({"serve"}))
    assert judge(spec("serve", Effect.EXECUTE), config).kind is kind
