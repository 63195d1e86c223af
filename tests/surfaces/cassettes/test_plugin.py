"""pytest sessions inside this one, most of them in this process."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import mendgraph.graph.cassettes.fixture
import mendgraph.graph.runs.run  # noqa: F401 - the same
from mendgraph.graph.cassettes.plugin import FIXTURE, CassetteSession
from tests.doubles.scripted_server import LenientServer, Say
from tests.extent import slow

pytest_plugins = ("pytester",)

Run = Callable[..., pytest.RunResult]

ASKING = """\
import asyncio, contextlib, httpx2, pytest

def ask(cassette, word, **more):
    body = {"messages": [{"role": "user", "content": word}], **more}
    return httpx2.post(f"{cassette.base_url}/chat/completions", json=body).text
"""
ONE = (
    ASKING
    + """
def test_one(mendgraph_cassette):
    assert "Hello" in ask(mendgraph_cassette, "one")
"""
)
FILE = "cassettes/test_it/test_one.yaml"


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[LenientServer]:
    """A model that answers Hello, named in the environment."""
    with LenientServer(then=lambda _: Say("Hello")) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "a-key-of-ours")
        yield server


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run pytest with our plugin and no other, in this process."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    options = ("-p", "mendgraph.graph.cassettes.plugin", "-p", "no:cacheprovider", "-p", "no:randomly")

    def runs(*arguments: str) -> pytest.RunResult:
        return pytester.runpytest_inprocess(*options, *arguments)

    return runs


@pytest.fixture
def recorded_cassette(pytester: pytest.Pytester, run: Run, endpoint: LenientServer) -> Path:
    """A module of one test, with its cassette."""
    pytester.makepyfile(test_it=ONE)
    run("--mendgraph-record").assert_outcomes(passed=1)
    assert len(endpoint.requests) == 1
    return pytester.path / FILE


def test_recording_replays_offline(recorded_cassette: Path, run: Run, endpoint: LenientServer) -> None:
    text = recorded_cassette.read_text(encoding="utf-8")
    assert text.startswith("recorded_from: model at 127.0.0.1\nsettings:\n  model: scripted\n  protocol: native\n")
    assert "a-key-of-ours" not in text
    result = run("--strict-markers", "-W", "error", "-W", "ignore:Module already imported")
    result.assert_outcomes(passed=1)
    assert (result.ret, len(endpoint.requests), "mendgraph cassettes" in result.stdout.str()) == (0, 1, False)


def test_missing_cassette_error_says_how_to_record_it(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makepyfile(test_it=ONE)
    result = run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"there is no cassette {FILE}: record it with `pytest --mendgraph-record=missing`"])


NONSENSE = {
    "'a/b'": "name: String should match pattern *",
    "url='x'": "url: there is no such setting*",
    "'a', 'b'": "a second name: there is no such setting*",
    "allow_hosts=5": "allow_hosts: must be a list",
    "model='anthropic:m'": "*cannot be recorded: 'anthropic:m' names a provider, *: give the chat model *",
}
"""What a marker says; the last one is told where a test asks for its endpoint."""


def test_invalid_marker_fails_its_test(pytester: pytest.Pytester, run: Run) -> None:
    marked = [
        ONE.removeprefix(ASKING).replace("\ndef test_one", f"\n@pytest.mark.mendgraph_cassette({marker})\ndef test_{n}")
        for n, marker in enumerate(NONSENSE)
    ]
    pytester.makepyfile(test_it="\n".join([ASKING, *marked]))
    result = run("--mendgraph-record")
    result.assert_outcomes(failed=1, errors=len(NONSENSE) - 1)
    for message in NONSENSE.values():
        result.stdout.fnmatch_lines([f"*{message}"])


@pytest.mark.usefixtures("recorded_cassette")
def test_partly_played_cassette_fails_its_test(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=ASKING + "\ndef test_one(mendgraph_cassette):\n    pass\n")
    result = run()
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(
        [
            f"0 of 1 exchanges of {FILE} were asked for; nobody asked for:",
            "  number 1 of 1: POST /v1/chat/completions, 1 messages, the last by user: 'one'",
        ]
    )


@pytest.mark.usefixtures("recorded_cassette")
@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        ("ask(mendgraph_cassette, 'two')", {"failed": 1}),
        (
            "try:\n        ask(mendgraph_cassette, 'two')\n    except BaseException:\n        pass",
            {"passed": 1, "errors": 1},
        ),
    ],
)
def test_miss_is_shown_even_if_the_agent_hides_it(
    run: Run, pytester: pytest.Pytester, body: str, outcome: dict[str, int]
) -> None:
    pytester.makepyfile(test_it=f"{ASKING}\ndef test_one(mendgraph_cassette):\n    {body}\n")
    result = run()
    result.assert_outcomes(**outcome)
    lines = [f"*was not recorded in {FILE}. The exchange that is left*", "*content: recorded 'one', sent 'two'*"]
    result.stdout.fnmatch_lines(lines)


@slow
def test_failed_test_writes_nothing(recorded_cassette: Path, run: Run, pytester: pytest.Pytester) -> None:
    before = recorded_cassette.read_bytes()
    body = "\ndef test_one(mendgraph_cassette):\n    ask(mendgraph_cassette, 'two')\n    assert 0\n"
    pytester.makepyfile(test_it=ASKING + body)
    result = run("--mendgraph-record")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"{FILE} was not written, because the test failed"])
    assert (recorded_cassette.read_bytes(), [path.name for path in recorded_cassette.parent.iterdir()]) == (
        before,
        ["test_one.yaml"],
    )


@slow
@pytest.mark.usefixtures("endpoint")
def test_names_settings_and_folders_can_be_chosen(pytester: pytest.Pytester, run: Run) -> None:
    pytester.makeini("[pytest]\nmendgraph_cassettes = kept/here\n")
    body = """
pytestmark = pytest.mark.mendgraph_cassette(model="other", protocol="text")

@pytest.mark.mendgraph_cassette("sums", edit_form="patch")
@pytest.mark.parametrize("word", ["a", "A"])
def test_one(mendgraph_cassette, word, tmp_path):
    context = mendgraph_cassette.context(tmp_path, seed=3)
    assert (context.model, context.protocol, context.edit_form, context.seed) == ("other", "text", "patch", 3)
    assert (context.evidence, context.base_url) == (False, mendgraph_cassette.base_url)
    ask(mendgraph_cassette, word)

class TestClass:
    def test_two(self, mendgraph_cassette):
        async def wait():
            async with httpx2.AsyncClient() as client:
                await client.post(f"{mendgraph_cassette.base_url}/chat/completions", json={})
        asyncio.run(wait())
"""
    pytester.makepyfile(test_it=ASKING + body)
    for arguments in (["--mendgraph-record"], []):
        run(*arguments).assert_outcomes(passed=3)
    names = sorted(path.name for path in (pytester.path / "kept" / "here" / "test_it").iterdir())
    assert (names[0], names[-1], len(names)) == ("TestClass.test_two.yaml", "sums-a.yaml", 3)
    assert names[1].startswith("sums-A-")


@slow
def test_served_cassette_is_recorded_and_replayed(pytester: pytest.Pytester, run: Run, endpoint: LenientServer) -> None:
    body = """
def test_one(mendgraph_cassette):
    with mendgraph_cassette.serve() as server:
        assert "Hello" in ask(server, "one")
        assert "Hello" in ask(mendgraph_cassette, "two")
"""
    pytester.makepyfile(test_it=ASKING + body)
    run("--mendgraph-record").assert_outcomes(passed=1)
    run().assert_outcomes(passed=1)
    assert len(endpoint.requests) == 2


@slow
def test_xdist_worker_records_and_reports(pytester: pytest.Pytester, run: Run, endpoint: LenientServer) -> None:
    many = """
@pytest.mark.parametrize("n", range(2))
def test_n(mendgraph_cassette, n):
    ask(mendgraph_cassette, str(n))
"""
    pytester.makepyfile(test_it=ONE + many)
    result = run("-p", "xdist", "-n", "1", "--mendgraph-record")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines([f"recorded {FILE.replace('one', 'n-1')}", f"recorded {FILE}"])
    run().assert_outcomes(passed=3)
    assert len(endpoint.requests) == 3


@slow
def test_pytest_starts_without_importing_heavy_libraries(pytester: pytest.Pytester) -> None:
    program = (
        "import sys, mendgraph.graph.cassettes.plugin\n"
        "print(sorted({'vcr', 'yaml', 'pydantic', 'langgraph', 'httpx2', 'mendgraph.nodes'} & set(sys.modules)))"
    )
    assert pytester.runpython_c(program).stdout.str().strip() == "[]"


def item(name: str, /, *chosen: object, **arguments: object) -> Any:
    marks = [pytest.Mark(FIXTURE, chosen, arguments, _ispytest=True)] if chosen or arguments else []
    return SimpleNamespace(nodeid=name, own_markers=marks, fixturenames=[FIXTURE], iter_markers=lambda _: marks)


def test_two_tests_with_the_same_name_do_not_share_a_cassette(tmp_path: Path) -> None:
    account = CassetteSession(str(tmp_path), str(tmp_path / "kept"), "")
    first, second = item("a.py::b", "d"), item("a.py::c", "d")
    account.register([first, second])
    with pytest.raises(pytest.fail.Exception, match=r"^there is no cassette kept/a/d\.yaml: "):
        account.open(first)
    with pytest.raises(pytest.fail.Exception) as caught:
        account.open(second)
    assert str(caught.value) == "kept/a/d.yaml is also the cassette of a.py::b: rename one of the two"
