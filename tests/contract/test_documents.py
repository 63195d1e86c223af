"""README.md and docs/ are true: their examples run, their commands parse, and what they name exists.

How a block is prepared is written at the top of `tests/contract/documents.py`.
"""

import io
import os
import re
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest
import typer

import mendgraph
from mendgraph.graph.cli import app
from mendgraph.graph.configuration.loading import Settings, parse_settings
from mendgraph.graph.fleet.serving.tenants import Tenants, parse_tenants
from tests.architecture.product import ROOT, text_of
from tests.contract import documents
from tests.contract.documents import Block, Saying
from tests.doubles.scripted_server import ScriptedServer
from tests.providers.servers import FAMILIES, ProviderServer, say, use
from tests.workspace_files import write_files

pytest_plugins = ("pytester",)

GROUPS: Final = documents.of_python()
PROGRAM: Final = typer.main.get_command(app)
TEXT: Final = "\n".join(documents.pages().values())
PATHS: Final = re.compile(r"(?:graph|nodes|tests|benchmarks|cassettes)/[\w/.]*|[\w-]+\.(?:toml|json|lock|md)|Makefile")


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace as the pages speak of it, which is the current folder; `python` is this one."""
    folder = tmp_path / "scene"
    write_files(folder, documents.SCENE)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-of-nobody")
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))
    return folder


@pytest.mark.filterwarnings("ignore::langgraph.warnings.LangGraphDeprecatedSinceV10")  # of langgraph-supervisor
@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group[0].name)
def test_python_block_runs(
    group: list[Block], scene: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    for block in group:
        write_files(scene, block.how.get("files", {}))
    if "provider" in group[0].how:
        with provider_of(group[0], monkeypatch) as provider:
            run_as_program(group, monkeypatch)
        assert len(provider.requests) == len(provider.script)
        return
    with ScriptedServer(then=Saying(group)) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        if "def test_" in group[0].text:
            # It forgets at its end what was imported since, which would then be there twice: not where nobody needs it.
            run_as_tests(group[0], request.getfixturevalue("pytester"), monkeypatch)
        else:
            monkeypatch.chdir(scene)
            run_as_program(group, monkeypatch)


EDIT: Final = ("edit_file", '{"path": "calc.py", "old_str": "a - b", "new_str": "a + b"}')


@contextmanager
def provider_of(block: Block, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProviderServer]:
    """The server that mends calc.py by the provider's own rules, where its package looks for it."""
    with FAMILIES[block.how["provider"]]([use(EDIT), say("add now adds.")], play="position") as server:
        (named,) = re.findall(r'model="([^"]+)"', block.text)
        monkeypatch.setattr(server, "model", named)
        for name in ("ANTHROPIC_BASE_URL", "OLLAMA_HOST", "OPENAI_BASE_URL"):
            monkeypatch.setenv(name, server.url)
        for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
            monkeypatch.setenv(name, server.key)
        yield server


def run_as_program(group: list[Block], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the blocks as one module, and look at what each prints."""
    module = ModuleType(group[0].module)
    monkeypatch.setitem(sys.modules, module.__name__, module)  # where a tool's annotations are looked up
    for block in group:
        padded = "\n" * block.line + block.text  # a traceback names the line of the page
        with redirect_stdout(io.StringIO()) as output:
            exec(compile(padded, str(ROOT / block.page), "exec"), vars(module))  # noqa: S102 - that is the point
        if "expects" in block.how:
            expected = block.how["expects"]
            assert expected in output.getvalue() if expected else output.getvalue() == ""


def run_as_tests(block: Block, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Record the tests of the block, then replay them, each in a session of pytest inside of this one."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    options = ("-p", "mendgraph.graph.cassettes.plugin", "-p", "no:cacheprovider", "--import-mode=importlib")
    pytester.makepyfile(test_block=block.text)
    for more in (["--mendgraph-record"], []):
        done = pytester.runpytest_inprocess(*options, *more)
        assert (done.ret, done.parseoutcomes().get("passed", 0)) == (0, block.text.count("def test_"))


def test_every_code_fence_is_read() -> None:
    """An example in a fence that is not read would not be tested."""
    fences = re.findall(r"^```+(\w*)", TEXT, re.MULTILINE)
    assert len(fences) == 2 * len(documents.all_blocks())
    assert {name for name in fences if name} <= {"python", "text", "mermaid", "json", "toml", "yaml", *documents.SHELLS}


def test_readme_is_short_and_its_pictures_are_small_and_self_contained() -> None:
    assert len(text_of("README.md").encode()) <= 9_000
    for picture in (ROOT / "docs" / "pictures").iterdir():
        assert picture.stat().st_size < 150_000
        assert f"docs/pictures/{picture.name}" in text_of("README.md")
    assert not re.search(r"(?:href|url\(|src)[=\"']*https?:", text_of("docs/pictures/terminal.svg"))


def test_public_name_is_in_the_reference() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "reference").iterdir())
    assert sorted(re.findall(r"^::: mendgraph\.(\w+)$", pages, re.MULTILINE)) == sorted(mendgraph.__all__)


def test_function_linked_by_the_architecture_page_is_defined_there() -> None:
    links = re.findall(r"\[`(\w+)`\]\(\.\./([\w/]+\.py)\)", text_of("docs/architecture.md"))
    assert links
    lacking = [
        (name, path)
        for name, path in links
        if not re.search(rf"^(?:(?:async )?def|class) {name}\b|^{name}\b.*=", text_of(path), re.MULTILINE)
    ]
    assert lacking == []


def test_toml_block_is_valid_settings_or_tenants() -> None:
    texts = [block.text for block in documents.all_blocks() if block.language == "toml"]
    settings = [text for text in texts if "users" not in tomllib.loads(text)]
    assert settings
    for text in settings:
        assert isinstance(parse_settings(text, "config.toml"), Settings), text
    (tenants,) = (text for text in texts if "[users." in text)
    assert isinstance(parse_tenants(tenants, "tenants.toml"), Tenants)


# --- The command line


def parse(words: list[str]) -> None:
    """Read a command line as the program does, and do nothing."""
    context: Any = PROGRAM.make_context("mendgraph", [*words])
    with context:
        command: Any = PROGRAM
        while hasattr(command, "resolve_command"):
            remaining = [*context._protected_args, *context.args]
            if not remaining:
                return
            _, command, remaining = command.resolve_command(context, remaining)
            assert command is not None
            context = command.make_context(command.name, remaining, parent=context)


USAGE_ERROR: Final[Any] = typer.BadParameter.__base__
OWN: Final = [(name, words[1:]) for name, words in documents.command_lines() if words[0] == "mendgraph"]


def test_own_command_parses(scene: Path) -> None:
    for name, words in OWN:
        for word in words:  # files that a command reads have to be there
            if re.fullmatch(r"[\w/-]+\.(?:yaml|json|html)", word):
                write_files(scene, {word: ""})
        try:
            parse(words)
        except typer.Exit:  # `--help` and `--version` end at once
            continue
        except USAGE_ERROR as error:
            pytest.fail(f"{name}: mendgraph {' '.join(words)}: {error}")
    for line in ("--modle x task", "runs show a b c", "model pul", "usage --days many"):
        with pytest.raises(USAGE_ERROR):
            parse(line.split())


def test_other_commands_name_existing_targets_and_extras() -> None:
    targets = {word for _, (program, *words) in documents.command_lines() if program == "make" for word in words}
    targets |= {span.split()[1] for span in documents.spans() if re.match(r"make [\w-]+", span)}
    assert {word for word in targets if "=" not in word} <= documents.make_targets()
    assert documents.extras_named() <= documents.extras()


def options(command: Any) -> set[str]:
    """All options of a command and of those below it."""
    names = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
    for below in getattr(command, "commands", {}).values():
        names |= options(below)
    return names


FOREIGN: Final = frozenset(
    re.findall(
        r"\S+",
        "--mendgraph-record --ignore --deselect --body-file --format --hook-stage --title --extra"
        " --with --config --head --disable-usage-stats --plan --code --gitleaks --directory --agent --dataset"
        " --agent-kwarg --ae",
    )
)
"""Options of pytest, uv, langgraph, ray, harbor and our benchmarks that the pages name."""


def test_named_option_exists() -> None:
    text = re.sub(r"<!--.*?-->", "", TEXT, flags=re.DOTALL)
    named = set(re.findall(r"(?<![\w-])--[a-z][\w-]+", text))
    assert named - FOREIGN <= options(PROGRAM)


def test_named_command_exists() -> None:
    commands = set(PROGRAM.commands)  # type: ignore[attr-defined]  # a group
    below = {name: set(getattr(command, "commands", {})) for name, command in PROGRAM.commands.items()}  # type: ignore[attr-defined]
    for span in documents.spans():
        words = re.match(r"mendgraph ([a-z]+)(?: ([a-z][a-z-]+))?(?= |$)", span)
        if words is None or span.startswith("mendgraph run "):
            continue
        assert words[1] in commands, span
        if below[words[1]] and words[2]:
            assert words[2] in below[words[1]], span


# --- Names


OF_USERS: Final = {
    "prices.toml",
    "config.toml",
    "permissions.json",
    "AGENTS.md",
    "CLAUDE.md",
    "GEMINI.md",
    "SKILL.md",
    "package.json",
    "Cargo.toml",
    "Cargo.lock",
    "ruff.toml",
    "pyrightconfig.json",
    "tsconfig.json",
}
"""Files that users have, not we."""


def test_named_file_exists() -> None:
    missing = []
    for document in (*documents.pages(), "SECURITY.md"):
        text = text_of(document)
        linked = [(ROOT / document).parent / link for link in re.findall(r"\]\((?!https?:|#)([^)#]+)[^)]*\)", text)]
        named = [ROOT / span for span in documents.spans(text) if PATHS.fullmatch(span) and span not in OF_USERS]
        missing += [f"{document}: {path}" for path in (*linked, *named) if not path.exists()]
    assert missing == []


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_link_to_a_heading_resolves() -> None:
    for page, text in documents.pages().items():
        for file, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#([\w-]+)\)", text):
            linked = str(((ROOT / page).parent / file).resolve().relative_to(ROOT)) if file else page
            assert anchor in anchors(documents.pages()[linked]), f"{page}: {file}#{anchor}"
