"""LangChain's middleware on the machine: what a hook may do, what it cannot change, and what is refused."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from langchain.agents import middleware as ready_made
from langchain.agents.middleware import AgentMiddleware, ModelRequest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from mendgraph import AgentContext, Effect, RunResult, arun_task, build_graph, run_task, tool
from mendgraph.graph.langchain import hooks
from tests.doubles.model_clock import set_clock
from tests.doubles.scripted_server import Calls, Reply, Say, ScriptedServer, Status
from tests.extent import slow
from tests.row_tables import rows
from tests.workspace_files import write_files

JsonMap = dict[str, Any]

CALC = {"calc.py": "def add(a, b):\n    return a - b\n", ".env": "TOKEN=abc\n", "notes.txt": "none\n"}
READ = Calls([("read_file", '{"path": "calc.py"}')], usage=(100, 10))
WRITE = Calls([("write_file", '{"path": "new.txt", "content": "one"}')], usage=(100, 10))
DONE = Say("Done.", usage=(100, 10))
HOOKS = ("before_model", "wrap_model_call", "after_model", "wrap_tool_call")


class Noted(AgentMiddleware[Any, Any, Any]):
    """Notes each model call; `act` may return a response of its own."""

    def __init__(self, name: str = "Noted", act: Callable[[Any], Any] = lambda _: None) -> None:
        super().__init__()
        self._name = name
        self._act = act

    @property
    def name(self) -> str:
        return self._name

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        return self._act(request) or handler(request)

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        return self._act(request) or await handler(request)


class Run:
    """The result of a run, and the requests to its endpoint."""

    def __init__(self, result: RunResult, server: ScriptedServer, folder: Path) -> None:
        self.outcome, self.requests, self.folder = result.outcome, server.requests, folder
        self.ended = (result.outcome.kind.value, result.outcome.reason.value)

    @property
    def last_result(self) -> str:
        """The last result that the model was sent."""
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


@pytest.mark.parametrize("asynchronous", [False, True])
def test_first_middleware_is_the_outermost_in_sync_and_async_runs(tmp_path: Path, asynchronous: bool) -> None:
    called: list[str] = []

    def note(name: str, _: Any) -> None:
        called.append(name)

    pair = [Noted(name, partial(note, name)) for name in ("first", "second")]
    run = play(tmp_path / "w", pair, READ, DONE, asynchronous=asynchronous)
    assert run.ended == ("FINISHED", "answered")
    assert called == ["first", "second"] * 2


@pytest.mark.parametrize("asynchronous", [False, True])
def test_async_hook_works_in_sync_and_async_runs(tmp_path: Path, asynchronous: bool) -> None:
    @ready_made.wrap_model_call
    async def brief(request: ModelRequest[Any], handler: Any) -> Any:
        context: Any = request.runtime.context
        system = SystemMessage(f"Answer in rhymes about {Path(context.workspace).name}.")
        return await handler(request.override(system_message=system))

    run = play(tmp_path / "w", [brief], READ, DONE, asynchronous=asynchronous)
    assert run.ended == ("FINISHED", "answered")
    prompt = run.requests[0]["messages"][0]["content"]
    assert "through tools" in prompt
    assert prompt.endswith("\n\nAnswer in rhymes about w.")


# --- Rules that hooks cannot change


def call_again_after_errors(times: int) -> Any:
    @ready_made.wrap_model_call
    def insists(request: Any, handler: Any) -> Any:
        for _ in range(times):
            try:
                last = handler(request)
            except BaseException:  # noqa: BLE001 - even that
                last = AIMessage("I am done all the same.")
        return last

    return insists


def test_requests_of_a_hook_are_charged_and_cannot_exceed_the_limit(tmp_path: Path) -> None:
    run = play(tmp_path / "a", [call_again_after_errors(3)], DONE, DONE, DONE)
    assert (run.ended[0], run.outcome.usage["total_calls"], run.outcome.usage["total_input_tokens"]) == (
        "FINISHED",
        3,
        300,
    )
    run = play(tmp_path / "b", [call_again_after_errors(5)], DONE, DONE, DONE, settings={"max_calls_per_turn": 2})
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


def test_hook_of_a_cancelled_run_sends_no_request(tmp_path: Path) -> None:
    sleeping, woken, ended = Event(), Event(), Event()

    @ready_made.wrap_model_call
    def sleeps(request: Any, handler: Any) -> Any:
        sleeping.set()
        woken.wait(10)
        try:
            return handler(request)
        finally:
            ended.set()

    async def cancelled(server: ScriptedServer) -> None:
        context = AgentContext(workspace=str(tmp_path), base_url=server.base_url, model="m", evidence=False)
        run = asyncio.create_task(arun_task("What is this?", context, middleware=[sleeps]))
        await asyncio.to_thread(sleeping.wait, 10)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        woken.set()
        await asyncio.to_thread(ended.wait, 10)

    with ScriptedServer([DONE]) as server:
        asyncio.run(cancelled(server))
        assert (ended.is_set(), server.requests) == (True, [])


def test_guard_judges_calls_that_a_hook_has_changed(tmp_path: Path) -> None:
    def reading(path: str) -> Any:
        @ready_made.wrap_model_call
        def changes(request: Any, handler: Any) -> Any:
            reply = handler(request).result[0]
            calls = [{**call, "args": {"path": path}} for call in reply.tool_calls]
            return reply.model_copy(update={"tool_calls": calls})

        return changes

    assert "none" in play(tmp_path, [reading("notes.txt")], READ, DONE).last_result
    denied = play(tmp_path, [reading(".env")], READ, DONE).last_result
    assert ("permission_denied" in denied, "abc" in denied) == (True, False)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_hook_that_raises_ends_the_turn_and_is_named(tmp_path: Path, asynchronous: bool) -> None:
    def breaks(_: Any) -> None:
        raise ValueError("hunter2-hunter2 is wrong")

    options: Any = {"asynchronous": asynchronous, "secrets": ["hunter2-hunter2"]}
    run = play(tmp_path, [Noted("Outer"), Noted(act=breaks)], DONE, **options)
    assert run.ended == ("SYSTEM_ERROR", "hook_failed")
    words = "The hook wrap_model_call of Noted failed: ValueError: [redacted secret] is wrong."
    assert run.outcome.message.endswith(words)


@slow
@pytest.mark.parametrize("asynchronous", [False, True])
def test_hook_that_hangs_is_given_up_at_the_time_limit_of_its_turn(
    tmp_path: Path, asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "GRACE_S", 0.0)

    class Hangs(Noted):
        def wrap_model_call(self, request: Any, handler: Any) -> Any:
            woken.wait(20)
            return handler(request)

        async def awrap_model_call(self, request: Any, handler: Any) -> Any:
            await asyncio.sleep(20)
            return await handler(request)

    woken = Event()
    settings = {"max_seconds": 0.5}
    run = play(tmp_path, [Noted("Outer"), Hangs("Hangs")], DONE, asynchronous=asynchronous, settings=settings)
    woken.set()
    assert (run.ended, run.requests) == (("SYSTEM_ERROR", "hook_failed"), [])
    assert "The hook wrap_model_call of Hangs did not end within 0." in run.outcome.message


@pytest.mark.parametrize("asynchronous", [False, True])
def test_hook_that_cancels_itself_fails(tmp_path: Path, asynchronous: bool) -> None:
    @ready_made.wrap_model_call
    async def cancels(_: Any, __: Any) -> Any:
        raise asyncio.CancelledError

    run = play(tmp_path, [cancels], DONE, asynchronous=asynchronous)
    assert run.ended == ("SYSTEM_ERROR", "hook_failed")
    assert "The hook wrap_model_call of cancels cancelled itself." in run.outcome.message


def test_reply_of_a_hook_is_read_like_any_other(tmp_path: Path) -> None:
    message = AIMessage("The word is hunter2-hunter2.")
    run = play(tmp_path, [Noted(act=lambda _: message)], secrets=["hunter2-hunter2"])
    assert (run.ended[0], run.outcome.answer, run.requests) == ("FINISHED", "The word is [redacted secret].", [])

    @ready_made.wrap_model_call
    def shorter(request: Any, handler: Any) -> Any:
        return handler(request).result[0].model_copy(update={"content": "Short."})

    assert play(tmp_path, [shorter], DONE).outcome.answer == "Short."


def test_hook_must_return_exactly_one_reply(tmp_path: Path) -> None:
    run = play(tmp_path, [Noted(act=lambda _: "hello")], DONE)
    assert run.ended == ("SYSTEM_ERROR", "hook_failed")
    assert "return an AIMessage, or a ModelResponse with one" in run.outcome.message


def test_hook_can_offer_fewer_tools_and_calls_models_only_through_its_handler(tmp_path: Path) -> None:
    @ready_made.wrap_model_call
    def fewer(request: Any, handler: Any) -> Any:
        with pytest.raises(NotImplementedError, match="reserved and paid"):
            request.model.invoke("hello")
        offered = [schema for schema in request.tools if "read" in str(schema["function"]["name"])]
        return handler(request.override(tools=offered))

    run = play(tmp_path, [fewer], DONE)
    assert [schema["function"]["name"] for schema in run.requests[0]["tools"]] == ["read_file"]


REQUESTS: list[tuple[JsonMap, str]] = [
    ({"messages": [AIMessage("", tool_calls=[{"name": "x", "args": {}, "id": "1"}])]}, "no endpoint takes"),
    ({"tools": [{"type": "function", "function": {"name": "fly"}}]}, "offers fly"),
    ({"tool_choice": "any"}, "sets tool_choice"),
    ({"model_settings": {"max_tokens": 10**6}}, "sets model_settings"),
]


@slow
@rows(*REQUESTS)
def test_invalid_request_of_a_hook_ends_the_run_before_it_is_sent(
    changes: JsonMap, problem: str, tmp_path: Path
) -> None:

    @ready_made.wrap_model_call
    def asks(request: Any, handler: Any, changes: JsonMap = changes) -> Any:
        return handler(request.override(**changes))

    run = play(tmp_path, [asks], DONE)
    assert (run.ended, len(run.requests)) == (("SYSTEM_ERROR", "hook_failed"), 0)
    assert problem in run.outcome.message


def test_tools_of_a_middleware_are_offered_to_the_model(tmp_path: Path) -> None:
    @tool(effect=Effect.NONE)
    def moon() -> str:
        """The phase of the moon."""
        return "full"

    middleware = Noted()
    middleware.tools = [moon]  # type: ignore[list-item]
    run = play(tmp_path, [middleware], Calls([("moon", "{}")]), DONE)
    assert "full" in run.last_result
    assert len(run.requests[0]["tools"]) > 2


# --- Middleware of LangChain


class _Counting(ready_made.AgentState[Any]):
    count: int


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: ready_made.HumanInTheLoopMiddleware({"write_file": True}), 'mode="ask"'),
    (lambda: ready_made.ModelCallLimitMiddleware(run_limit=3), "max_calls_per_turn"),
    (lambda: ready_made.SummarizationMiddleware(GenericFakeChatModel(messages=iter(()))), "window_tokens"),
    (ready_made.TodoListMiddleware, "update_plan"),
    (lambda: ready_made.ToolCallLimitMiddleware(run_limit=3), "tool_quotas"),
    (ready_made.ShellToolMiddleware, "allowed_programs"),
    (ready_made.ToolRetryMiddleware, "tool_retries"),
    (type("Counts", (AgentMiddleware,), {"state_schema": _Counting}), "no count (state_schema)"),
    (lambda: ready_made.before_model(lambda _, __: None), "before_model is not called here: change the request"),
    (lambda: ready_made.after_agent(lambda _, __: None), "after_agent is not called here: use a node"),
    (lambda: ready_made.wrap_tool_call(lambda _, __: ToolMessage("", tool_call_id="")), "wrap_tool_call is not called"),
]


def test_middleware_that_duplicates_the_machine_is_refused_by_name(subtests: pytest.Subtests) -> None:
    for middleware_class, instead in REFUSED:
        middleware = middleware_class()
        with subtests.test(name=middleware.name):
            with pytest.raises(ValueError, match=f"middleware: .*{middleware.name}") as caught:
                build_graph(middleware=[middleware])
            assert instead in str(caught.value)
    with pytest.raises(
        TypeError, match="the class Noted is not accepted: use instances of LangChain's AgentMiddleware"
    ):
        build_graph(middleware=[Noted])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="Noted cannot be used here: two have this name"):
        build_graph(middleware=[Noted(), Noted()])


@pytest.mark.parametrize("asynchronous", [False, True])
def test_handler_retries_like_the_run(tmp_path: Path, waits: list[float], asynchronous: bool) -> None:
    settings = {"provider_retries": 2}
    run = play(tmp_path, [Noted()], Status(500), Status(500), DONE, asynchronous=asynchronous, settings=settings)
    assert (run.ended[0], run.outcome.usage["total_calls"], waits) == ("FINISHED", 3, [0.5, 1.0])


@slow
def test_model_fallback_middleware_stays_within_the_budget(tmp_path: Path) -> None:
    with ScriptedServer([DONE]) as other:
        model = ChatOpenAI(model="second", base_url=other.base_url, api_key=SecretStr("k"))
        fallback = ready_made.ModelFallbackMiddleware(model)
        run = play(tmp_path, [fallback], Status(500))
        assert (run.ended[0], run.outcome.usage["total_calls"]) == ("FINISHED", 2)
        assert [request["model"] for request in other.requests] == ["second"]
        run = play(tmp_path, [fallback], Status(500), settings={"max_calls_per_turn": 1})
        assert (run.ended, len(other.requests)) == (("BUDGET_STOP", "max_calls_per_turn"), 1)
        run = play(tmp_path, [fallback], Status(500), settings={"model": "gpt-5-mini", "max_cost_usd": 1.0})
        assert (run.ended[1], len(other.requests)) == ("hook_failed", 1)
        assert "no price is known for the model 'second'" in run.outcome.message


def test_model_chosen_by_a_hook_has_the_price_of_the_context(tmp_path: Path) -> None:
    prices = {"usd_per_million_input": 1_000.0, "usd_per_million_output": 2_000.0}
    with ScriptedServer([Say("Done.", usage=(100, 10))]) as other:
        model = ChatOpenAI(model="gpt-5-mini", base_url=other.base_url, api_key=SecretStr("k"))
        fallback = ready_made.ModelFallbackMiddleware(model)
        run = play(tmp_path, [fallback], Status(500), settings={"max_cost_usd": 100.0, **prices})
    assert (run.ended[0], run.outcome.usage["total_calls"]) == ("FINISHED", 2)
    assert run.outcome.usage["cost_usd"] == pytest.approx(0.1 + 0.02)


@slow
def test_context_editing_and_dynamic_prompts_work(tmp_path: Path) -> None:
    @ready_made.dynamic_prompt
    def prompt(request: ModelRequest[Any]) -> str:
        return f"There are {len(request.messages)} messages."

    editing = ready_made.ContextEditingMiddleware(edits=[ready_made.ClearToolUsesEdit(trigger=10, keep=0)])
    run = play(tmp_path, [editing, prompt], READ, DONE)
    assert (run.ended[0], run.last_result) == ("FINISHED", "[cleared]")
    assert run.requests[1]["messages"][0]["content"].endswith("There are 3 messages.")


@slow
@pytest.mark.parametrize(("in_hook", "asynchronous"), [(False, False), (False, True), (True, False), (True, True)])
def test_only_keyboard_interrupt_in_a_tool_or_hook_ends_the_process(
    tmp_path: Path, in_hook: bool, asynchronous: bool
) -> None:
    class EndedError(KeyboardInterrupt):
        """What Ctrl-C raises, as a class of our own."""

    def run(kind: type[BaseException]) -> Run:
        def end(_: object = None) -> str:
            """End it all."""
            raise kind

        def stop() -> str:
            """Stop it all."""
            return end()

        script = (Calls([("stop", "{}")]), DONE)
        middleware = [Noted(act=end)] if in_hook else []
        options: Any = {"tools": [stop], "effects": {"stop": Effect.READ}, "asynchronous": asynchronous}
        return play(tmp_path, middleware, *script, **options)

    with pytest.raises(EndedError):
        run(EndedError)
    assert run(SystemExit).ended == (("SYSTEM_ERROR", "hook_failed") if in_hook else ("FINISHED", "answered"))
