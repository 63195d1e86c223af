"""LangChain's middleware on the machine: what a hook may do, what holds whatever it does, and what is refused."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent, middleware as ready_made
from langchain.agents.middleware import AgentMiddleware, ModelRequest, ToolCallRequest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphInterrupt
from pydantic import SecretStr

from mendgraph import AgentContext, Effect, RunResult, arun_task, build_graph, run_task, serializer, tool
from tests.doubles.model_clock import set_clock
from tests.doubles.scripted_server import Calls, Reply, Say, ScriptedServer, Status
from tests.row_tables import rows
from tests.workspace_files import write_files

JsonMap = dict[str, Any]

CALC = {"calc.py": "def add(a, b):\n    return a - b\n", ".env": "TOKEN=abc\n", "notes.txt": "none\n"}
READ = Calls([("read_file", '{"path": "calc.py"}')], usage=(100, 10))
WRITE = Calls([("write_file", '{"path": "new.txt", "content": "one"}')], usage=(100, 10))
DONE = Say("Done.", usage=(100, 10))
HOOKS = ("before_agent", "before_model", "wrap_model_call", "after_model", "wrap_tool_call", "after_agent")


class Noted(AgentMiddleware[Any, Any, Any]):
    """Writes down when its hooks are called; `then` may do more, and what it gives back is given back."""

    def __init__(self, name: str = "Noted", then: Callable[[str, Any], Any] = lambda *_: None) -> None:
        super().__init__()
        self._name, self.then, self.heard = name, then, list[str]()

    @property
    def name(self) -> str:
        return self._name

    def _note(self, hook: str, given: Any) -> Any:
        self.heard.append(hook)
        return self.then(hook, given)

    # LangGraph gives the arguments by name.
    def before_agent(self, state: Any, runtime: Any) -> Any:  # noqa: ARG002
        return self._note("before_agent", state)

    def before_model(self, state: Any, runtime: Any) -> Any:  # noqa: ARG002
        return self._note("before_model", state)

    def after_model(self, state: Any, runtime: Any) -> Any:  # noqa: ARG002
        return self._note("after_model", state)

    def after_agent(self, state: Any, runtime: Any) -> Any:  # noqa: ARG002
        return self._note("after_agent", state)

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        return self._note("wrap_model_call", request) or handler(request)

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        return self._note("wrap_model_call", request) or await handler(request)

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        return self._note("wrap_tool_call", request) or handler(request)

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        return self._note("wrap_tool_call", request) or await handler(request)


class Run:
    """What a run came to, and what its endpoint was asked."""

    def __init__(self, result: RunResult, server: ScriptedServer, folder: Path) -> None:
        self.outcome, self.requests, self.folder = result.outcome, server.requests, folder
        self.ended = (result.outcome.kind.value, result.outcome.reason.value)

    @property
    def told(self) -> str:
        """The last result that the model was told."""
        return str(self.requests[-1]["messages"][-1]["content"])


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    return set_clock(monkeypatch)


def play(
    folder: Path,
    middleware: Sequence[Any],
    *script: Reply,
    asynchronous: bool = False,
    settings: JsonMap | None = None,
    **options: Any,
) -> Run:
    """A run against an endpoint on loopback with this script."""
    folder.mkdir(exist_ok=True)
    write_files(folder, CALC)
    fixed: JsonMap = {"model": "m", "evidence": False, "read_ahead": False, "provider_retries": 0}
    with ScriptedServer(list(script)) as server:
        context = AgentContext(workspace=str(folder), base_url=server.base_url, **{**fixed, **(settings or {})})
        options["middleware"] = middleware
        if asynchronous:
            return Run(asyncio.run(arun_task("What does calc.py do?", context, **options)), server, folder)
        return Run(run_task("What does calc.py do?", context, **options), server, folder)


def at(name: str, act: Callable[[Any], Any]) -> Noted:
    """A middleware that does this in one hook."""
    return Noted(then=lambda hook, given: act(given) if hook == name else None)


# --- When


@pytest.mark.parametrize("asynchronous", [False, True])
def test_hooks_are_called_in_the_order_of_create_agent(tmp_path: Path, asynchronous: bool) -> None:
    def order(run: Callable[[list[Noted]], Any]) -> list[tuple[str, str]]:
        heard: list[tuple[str, str]] = []

        def noted(name: str) -> Noted:
            return Noted(name, lambda hook, _: heard.append((name, hook)))

        run([noted("first"), noted("second")])
        return heard

    def theirs(pair: list[Noted]) -> None:
        call = {"name": "read_file", "args": {"path": "calc.py"}, "id": "1"}
        model = _Bindable(messages=iter([AIMessage("", tool_calls=[call]), AIMessage("Done.")]))
        create_agent(model, [read_file], middleware=pair).invoke({"messages": [HumanMessage("What does calc.py do?")]})

    ours = order(lambda pair: play(tmp_path / "w", pair, READ, DONE, asynchronous=asynchronous))
    assert ours == order(theirs)
    assert {hook for _, hook in ours} == set(HOOKS)


class _Bindable(GenericFakeChatModel):
    def bind_tools(self, *_: Any, **__: Any) -> Any:
        return self


def read_file(path: str) -> str:
    """Read."""
    return path


@pytest.mark.parametrize("asynchronous", [False, True])
def test_decorated_functions_sync_or_async_work_in_both_kinds_of_run(tmp_path: Path, asynchronous: bool) -> None:
    heard: list[str] = []

    @ready_made.before_model
    async def looks(state: Any, _: Any) -> None:
        heard.append(f"before {len(state['messages'])}")

    @ready_made.wrap_model_call
    async def brief(request: ModelRequest[Any], handler: Any) -> Any:
        return await handler(request.override(system_message=SystemMessage("Answer in rhymes.")))

    @ready_made.wrap_tool_call
    def told(request: ToolCallRequest, handler: Any) -> Any:
        context: Any = request.runtime.context
        heard.append(f"{request.tool_call['name']} in {Path(context.workspace).name}")
        return handler(request)

    run = play(tmp_path / "w", [looks, brief, told], READ, DONE, asynchronous=asynchronous)
    assert run.ended == ("FINISHED", "answered")
    assert heard == ["before 1", "read_file in w", "before 3"]
    prompt = run.requests[0]["messages"][0]["content"]
    assert "through tools" in prompt
    assert prompt.endswith("\n\nAnswer in rhymes.")


# --- What holds


def insist(times: int) -> Any:
    @ready_made.wrap_model_call
    def insists(request: Any, handler: Any) -> Any:
        for _ in range(times):
            try:
                last = handler(request)
            except BaseException:  # noqa: BLE001 - even that
                last = AIMessage("I am done all the same.")
        return last

    return insists


def test_request_of_a_hook_is_paid_and_none_passes_the_limit(tmp_path: Path) -> None:
    run = play(tmp_path / "a", [insist(3)], DONE, DONE, DONE)
    assert (run.ended[0], run.outcome.usage["total_calls"], run.outcome.usage["total_input_tokens"]) == (
        "FINISHED",
        3,
        300,
    )
    run = play(tmp_path / "b", [insist(5)], DONE, DONE, DONE, settings={"max_calls_per_turn": 2})
    assert (run.ended, len(run.requests)) == (("BUDGET_STOP", "max_calls_per_turn"), 2)


def test_parallel_requests_of_a_hook_are_reserved_one_after_the_other(tmp_path: Path) -> None:
    @ready_made.wrap_model_call
    async def hedges(request: Any, handler: Any) -> Any:
        asyncio.create_task(handler(request))  # noqa: RUF006 - which nobody waits for
        return (await asyncio.gather(handler(request), handler(request), return_exceptions=True))[0]

    run = play(tmp_path, [hedges], DONE, DONE, DONE, asynchronous=True)
    assert (run.outcome.usage["total_calls"], len(run.requests)) == (3, 3)
    run = play(tmp_path, [hedges], DONE, DONE, DONE, asynchronous=True, settings={"max_calls_per_turn": 2})
    assert (run.ended, len(run.requests)) == (("BUDGET_STOP", "max_calls_per_turn"), 2)


def test_hook_changes_calls_before_they_are_judged_and_not_after(tmp_path: Path) -> None:
    @ready_made.wrap_tool_call(name="Late")
    def late(request: Any, handler: Any) -> Any:
        return handler(request.override(tool_call={**request.tool_call, "args": {"path": ".env"}}))

    run = play(tmp_path, [late], READ)
    assert run.ended == ("SYSTEM_ERROR", "hook_failed")
    assert "wrap_tool_call of Late changes a call that guard has judged: after_model may" in run.outcome.message

    def reading(path: str) -> Noted:
        def act(state: Any) -> Any:
            reply = state["messages"][-1]
            calls = [{**call, "args": {"path": path}} for call in reply.tool_calls]
            return {"messages": [reply.model_copy(update={"tool_calls": calls})]}

        return at("after_model", act)

    assert "none" in play(tmp_path, [reading("notes.txt")], READ, DONE).told
    denied = play(tmp_path, [reading(".env")], READ, DONE).told
    assert ("permission_denied" in denied, "abc" in denied) == (True, False)


def test_tool_with_an_effect_runs_once(tmp_path: Path) -> None:
    @ready_made.wrap_tool_call(name="Twice")
    def twice(request: Any, handler: Any) -> Any:
        handler(request)
        return handler(request)

    run = play(tmp_path, [twice], WRITE)
    assert run.ended == ("SYSTEM_ERROR", "hook_failed")
    assert run.outcome.message.startswith(
        "The hook wrap_tool_call of Twice ran write_file a second time: a tool that has an effect runs once"
    )
    assert run.outcome.changed_files == ("new.txt",)
    assert "return a - b" in play(tmp_path, [twice], READ, DONE).told

    @ready_made.wrap_tool_call(name="Together")
    async def together(request: Any, handler: Any) -> Any:
        return (await asyncio.gather(handler(request), handler(request), return_exceptions=True))[0]

    ran: list[str] = []

    @tool(effect=Effect.EXECUTE)
    def post() -> str:
        """Post."""
        ran.append("post")
        return "posted"

    run = play(tmp_path, [together], Calls([("post", "{}")]), tools=[post])
    assert (run.ended[1], ran) == ("hook_failed", ["post"])


def test_hook_that_raises_ends_the_turn_by_its_name(tmp_path: Path, subtests: pytest.Subtests) -> None:
    def breaks(_: Any) -> None:
        raise ValueError("hunter2-hunter2 is wrong")

    for number, name in enumerate(HOOKS):
        with subtests.test(name=name):
            outer = Noted("Outer")
            options: Any = {"asynchronous": bool(number % 2), "secrets": ["hunter2-hunter2"]}
            run = play(tmp_path / name, [outer, at(name, breaks)], WRITE, DONE, **options)
            assert run.ended == ("SYSTEM_ERROR", "hook_failed")
            words = f"The hook {name} of Noted failed: ValueError: [redacted secret] is wrong."
            assert run.outcome.message.endswith(words)
            assert ("after_agent" in outer.heard) == (name != "after_agent")


def test_hook_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mendgraph.graph.langchain.hook_steps.HOOK_S", 0.2)
    free = threading.Event()
    try:
        for name in HOOKS:
            run = play(tmp_path, [at(name, lambda _: free.wait() and None)], READ, DONE)
            assert run.ended == ("SYSTEM_ERROR", "hook_failed")
            assert f"The hook {name} of Noted did not end within 0.2 s" in run.outcome.message
    finally:
        free.set()


def test_reply_of_a_hook_is_read_as_any_other(tmp_path: Path) -> None:
    said = AIMessage("The word is hunter2-hunter2.")
    run = play(tmp_path, [at("wrap_model_call", lambda _: said)], secrets=["hunter2-hunter2"])
    assert (run.ended[0], run.outcome.answer, run.requests) == ("FINISHED", "The word is [redacted secret].", [])

    def shorter(state: Any) -> Any:
        return {"messages": [state["messages"][-1].model_copy(update={"content": "Short."})]}

    assert play(tmp_path, [at("after_model", shorter)], DONE).outcome.answer == "Short."
    assert play(tmp_path, [at("after_agent", shorter)], DONE).outcome.answer == "Short."


def test_hook_may_end_the_turn(tmp_path: Path) -> None:
    said = {"jump_to": "end", "messages": [{"role": "assistant", "content": "Not on Sundays."}]}
    for name in ("before_agent", "before_model", "after_model"):
        run = play(tmp_path, [at(name, lambda _: said)], DONE)
        assert (run.ended, run.outcome.message) == (("BUDGET_STOP", "cancelled"), "Not on Sundays.")


ANSWERS: list[tuple[str, Any, str]] = [
    ("before_model", {"messages": [RemoveMessage(id="__remove_all__")]}, "adds or removes messages"),
    ("before_agent", {"messages": [HumanMessage("And this.")]}, "adds or removes messages"),
    ("after_model", {"messages": [ToolMessage("no", tool_call_id="1")]}, "adds or removes messages"),
    ("before_model", {"jump_to": "tools"}, 'can only jump to "end"'),
    ("before_model", {"todos": []}, "it may change messages"),
    ("before_model", ["x"], "it may change messages"),
    ("wrap_model_call", "hello", "give back an AIMessage, or a ModelResponse with one"),
    ("wrap_tool_call", "hello", "give back a ToolMessage with its id"),
]


def answer(given: Any, _: Any) -> Any:
    return given


@rows(*ANSWERS)
def test_answer_of_a_hook_replaces_no_history(name: str, given: Any, problem: str, tmp_path: Path) -> None:
    run = play(tmp_path, [at(name, partial(answer, given))], READ, DONE)
    assert run.ended == ("SYSTEM_ERROR", "hook_failed")
    assert run.outcome.message.startswith(f"The hook {name} of Noted ")
    assert problem in run.outcome.message


def test_hook_may_not_change_a_call_of_the_history_or_interrupt_a_step(tmp_path: Path) -> None:
    def other(state: Any) -> Any:
        called = [each for each in state["messages"] if getattr(each, "tool_calls", None)]
        return {"messages": [each.model_copy(update={"tool_calls": []}) for each in called]}

    def asks(_: Any) -> Any:
        raise GraphInterrupt

    for act, words in ((other, "changes the calls of the history"), (asks, 'AgentContext(mode="ask") asks a person')):
        run = play(tmp_path, [at("before_model", act)], READ, DONE)
        assert run.ended == ("SYSTEM_ERROR", "hook_failed")
        assert words in run.outcome.message


def test_hook_rewords_the_result_of_a_tool(tmp_path: Path) -> None:
    for status in ("success", "error"):

        @ready_made.wrap_tool_call
        def brief(request: Any, handler: Any, status: str = status) -> Any:
            return handler(request).model_copy(update={"content": "hunter2-hunter2 is short.", "status": status})

        told = play(tmp_path, [brief], READ, DONE, secrets=["hunter2-hunter2"]).told
        assert "[redacted secret] is short." in told
        assert ("io_error" in told) == (status == "error")


def test_hook_offers_fewer_tools_and_asks_the_models_of_the_run_by_its_handler_alone(tmp_path: Path) -> None:
    @ready_made.wrap_model_call
    def fewer(request: Any, handler: Any) -> Any:
        with pytest.raises(NotImplementedError, match="reserved and paid"):
            request.model.invoke("hello")
        offered = [each for each in request.tools if "read" in str(each["function"]["name"])]
        return handler(request.override(tools=offered))

    run = play(tmp_path, [fewer], DONE)
    assert [each["function"]["name"] for each in run.requests[0]["tools"]] == ["read_file"]


REQUESTS: list[tuple[JsonMap, str]] = [
    ({"messages": [AIMessage("", tool_calls=[{"name": "x", "args": {}, "id": "1"}])]}, "no endpoint takes"),
    ({"tools": [{"type": "function", "function": {"name": "fly"}}]}, "offers fly"),
    ({"tool_choice": "any"}, "sets tool_choice"),
    ({"model_settings": {"max_tokens": 10**6}}, "sets model_settings"),
]


@rows(*REQUESTS)
def test_request_of_a_hook_is_checked(wanted: JsonMap, problem: str, tmp_path: Path) -> None:

    @ready_made.wrap_model_call
    def asks(request: Any, handler: Any, wanted: JsonMap = wanted) -> Any:
        return handler(request.override(**wanted))

    run = play(tmp_path, [asks], DONE)
    assert (run.ended, len(run.requests)) == (("SYSTEM_ERROR", "hook_failed"), 0)
    assert problem in run.outcome.message


def test_tools_of_a_middleware_are_tools_of_the_machine(tmp_path: Path) -> None:
    @tool(effect=Effect.NONE)
    def moon() -> str:
        """The phase of the moon."""
        return "full"

    given = Noted()
    given.tools = [moon]  # type: ignore[list-item]
    run = play(tmp_path, [given], Calls([("moon", "{}")]), DONE)
    assert "full" in run.told
    assert len(run.requests[0]["tools"]) > 2


# --- What LangChain brings along


class _Counting(ready_made.AgentState[Any]):
    count: int


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: ready_made.HumanInTheLoopMiddleware({"write_file": True}), 'mode="ask"'),
    (lambda: ready_made.ModelCallLimitMiddleware(run_limit=3), "max_calls_per_turn"),
    (lambda: ready_made.SummarizationMiddleware(_Bindable(messages=iter(()))), "window_tokens"),
    (ready_made.TodoListMiddleware, "update_plan"),
    (lambda: ready_made.ToolCallLimitMiddleware(run_limit=3), "tool_quotas"),
    (ready_made.ShellToolMiddleware, "allowed_programs"),
    (type("Counts", (AgentMiddleware,), {"state_schema": _Counting}), "no count (state_schema)"),
    (lambda: ready_made.before_model(can_jump_to=["tools"])(lambda _, __: None), "jumps to 'tools'"),
]


def test_middleware_that_the_machine_has_itself_is_refused_by_name(subtests: pytest.Subtests) -> None:
    for given, instead in REFUSED:
        middleware = given()
        with subtests.test(name=middleware.name):
            with pytest.raises(ValueError, match=f"middleware: .*{middleware.name}") as caught:
                build_graph(middleware=[middleware])
            assert instead in str(caught.value)
    with pytest.raises(TypeError, match="the class Noted does not fit: give instances of LangChain's AgentMiddleware"):
        build_graph(middleware=[Noted])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="Noted cannot be used here: two have this name"):
        build_graph(middleware=[Noted(), Noted()])


@pytest.mark.parametrize("asynchronous", [False, True])
def test_handler_makes_the_retries_of_the_run(tmp_path: Path, waits: list[float], asynchronous: bool) -> None:
    noted, settings = Noted(), {"provider_retries": 2}
    run = play(tmp_path, [noted], Status(500), Status(500), DONE, asynchronous=asynchronous, settings=settings)
    assert (run.ended[0], run.outcome.usage["total_calls"], waits) == ("FINISHED", 3, [0.5, 1.0])
    assert noted.heard == ["before_agent", "before_model", "wrap_model_call", "after_model", "after_agent"]


def test_model_fallback_asks_the_other_model_inside_the_budget(tmp_path: Path) -> None:
    with ScriptedServer([DONE]) as other:
        model = ChatOpenAI(model="second", base_url=other.base_url, api_key=SecretStr("k"))
        fallback = ready_made.ModelFallbackMiddleware(model)
        run = play(tmp_path, [fallback], Status(500))
        assert (run.ended[0], run.outcome.usage["total_calls"]) == ("FINISHED", 2)
        assert [each["model"] for each in other.requests] == ["second"]
        run = play(tmp_path, [fallback], Status(500), settings={"max_calls_per_turn": 1})
        assert (run.ended, len(other.requests)) == (("BUDGET_STOP", "max_calls_per_turn"), 1)
        run = play(tmp_path, [fallback], Status(500), settings={"model": "gpt-5-mini", "max_cost_usd": 1.0})
        assert (run.ended[1], len(other.requests)) == ("hook_failed", 1)
        assert "no price is known for the model 'second'" in run.outcome.message


def test_other_model_of_a_hook_has_the_price_that_the_context_gives(tmp_path: Path) -> None:
    prices = {"usd_per_million_input": 1_000.0, "usd_per_million_output": 2_000.0}
    with ScriptedServer([Say("Done.", usage=(100, 10))]) as other:
        model = ChatOpenAI(model="gpt-5-mini", base_url=other.base_url, api_key=SecretStr("k"))
        fallback = ready_made.ModelFallbackMiddleware(model)
        run = play(tmp_path, [fallback], Status(500), settings={"max_cost_usd": 100.0, **prices})
    assert (run.ended[0], run.outcome.usage["total_calls"]) == ("FINISHED", 2)
    assert run.outcome.usage["cost_usd"] == pytest.approx(0.1 + 0.02)


def test_pii_is_taken_out_of_what_is_stored_and_sent(tmp_path: Path) -> None:
    write_files(tmp_path, CALC)
    pii = ready_made.PIIMiddleware("email", strategy="redact", apply_to_output=True)
    with ScriptedServer([Say("I wrote to eve@example.com.")]) as server:
        context = AgentContext(workspace=str(tmp_path), base_url=server.base_url, model="m", evidence=False)
        graph = build_graph(InMemorySaver(serde=serializer()), middleware=[pii])
        thread: Any = {"configurable": {"thread_id": "1"}}
        ended = graph.invoke({"messages": [HumanMessage("Ask ann@example.com")]}, thread, context=context)
        assert "ann@" not in str(server.requests)
    said = [each.text for each in graph.get_state(thread).values["messages"]]
    assert said == ["Ask [REDACTED_EMAIL]", "I wrote to [REDACTED_EMAIL]."]
    assert ended["outcome"].answer == "I wrote to [REDACTED_EMAIL]."


def test_context_editing_and_dynamic_prompts_work(tmp_path: Path) -> None:
    @ready_made.dynamic_prompt
    def prompt(request: ModelRequest[Any]) -> str:
        return f"There are {len(request.messages)} messages."

    editing = ready_made.ContextEditingMiddleware(edits=[ready_made.ClearToolUsesEdit(trigger=10, keep=0)])
    run = play(tmp_path, [editing, prompt], READ, DONE)
    assert (run.ended[0], run.told) == ("FINISHED", "[cleared]")
    assert run.requests[1]["messages"][0]["content"].endswith("There are 3 messages.")


@pytest.mark.parametrize(
    ("where", "asynchronous"), [("stop", False), ("stop", True), ("before_model", False), ("wrap_tool_call", True)]
)
def test_only_keyboard_interrupt_of_a_tool_or_a_hook_ends_the_process(
    tmp_path: Path, where: str, asynchronous: bool
) -> None:
    class EndedError(KeyboardInterrupt):
        """What Ctrl-C raises, as a class of our own."""

    def ends(here: str, kind: type[BaseException]) -> None:
        if here == where:
            raise kind

    def run(kind: type[BaseException]) -> Run:
        def stop() -> str:
            """Stop it all."""
            ends("stop", kind)
            return "stopped"

        script, hook = (Calls([("stop", "{}")]), DONE), Noted(then=lambda name, _: ends(name, kind))
        options: Any = {"tools": [stop], "effects": {"stop": Effect.READ}, "asynchronous": asynchronous}
        return play(tmp_path, [hook], *script, **options)

    with pytest.raises(EndedError):
        run(EndedError)
    assert run(SystemExit).ended == (("FINISHED", "answered") if where == "stop" else ("SYSTEM_ERROR", "hook_failed"))
