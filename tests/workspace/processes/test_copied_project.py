"""Programs and test runners in a copy of a project, whose environments stay beside the original."""

from pathlib import Path

from mendgraph.nodes.execute_tools.commands.commands import CommandResult
from mendgraph.nodes.execute_tools.evidence.runners import find_runners
from tests.workspace.copies.copy_actions import made_copy
from tests.workspace.processes.command_place import opened
from tests.workspace.processes.git_places import repository, write

FINDER = "MAPPING: dict[str, str] = {{'shop': '{project}/lib/shop', 'gone': '/elsewhere/gone'}}"


def test_editable_packages_of_the_project_are_those_of_the_copy(tmp_path: Path) -> None:
    project = repository(
        tmp_path / "project",
        {"src/cart.py": "", "src/queue.copy": "", "lib/shop/__init__.py": "", ".gitignore": ".venv\n"},
    )
    packages = ".venv/lib/python3.12/site-packages"
    finder = FINDER.format(project=project)
    write(
        project, {f"{packages}/_cart.pth": f"{project}/src\n/usr\n", f"{packages}/__editable___shop_finder.py": finder}
    )
    copy = made_copy(project, tmp_path / "copy").root

    result = opened(Path(copy)).run(["python3", "-c", "import cart, shop; print(cart.__file__, shop.__file__)"])
    assert isinstance(result, CommandResult)
    assert result.stdout.head.decode().split() == [f"{copy}/src/cart.py", f"{copy}/lib/shop/__init__.py"]

    in_project = opened(project).run(["python3", "-c", "import os; print(os.environ.get('PYTHONPATH'))"])
    assert isinstance(in_project, CommandResult)
    assert in_project.stdout.head == b"None\n"


def test_modules_of_the_copy_do_not_replace_the_standard_library(tmp_path: Path) -> None:
    files = dict.fromkeys(("queue.py", "a/json/__init__.py", "b/json/data.txt", "b/cart.py", "b/queue.txt"), "")
    project = repository(tmp_path / "project", {**files, ".gitignore": ".venv\n"})
    folders = "".join(f"{project / name}\n" for name in ("", "a", "b"))
    write(project, {".venv/lib/python3.12/site-packages/all.pth": folders})
    copy = made_copy(project, tmp_path / "copy").root

    result = opened(Path(copy)).run(["python3", "-c", "import os; print(os.environ['PYTHONPATH'])"])

    assert isinstance(result, CommandResult)
    assert result.stdout.head.decode() == f"{copy}/b\n"


def test_environment_of_a_tool_has_editable_packages_of_the_copy(tmp_path: Path) -> None:
    project = repository(tmp_path / "project", {"src/cart.py": ""})
    environment = write(tmp_path / "poetry", {"lib/python3.12/site-packages/cart.pth": f"{project}/src\n"})
    copy = made_copy(project, tmp_path / "copy").root

    commands = opened(Path(copy)).read_only({}, {}, readable=(str(environment),))
    result = commands.run(["python3", "-c", "import cart; print(cart.__file__)"])

    assert isinstance(result, CommandResult)
    assert result.stdout.head.decode() == f"{copy}/src/cart.py\n"


def test_environments_of_the_project_run_the_tests_of_the_copy(tmp_path: Path) -> None:
    project = repository(tmp_path / "project", {"web/a.py": ""})
    environment = "web/.tox/py312"
    files = ("pyvenv.cfg", "bin/python", "lib/python3.12/site-packages/pytest/__init__.py")
    write(project, {f"{environment}/{name}": "" for name in files})
    copy = made_copy(project / "web", tmp_path / "copy").root

    runners = find_runners(copy)
    folder = str(project / environment)
    assert (runners.pytest, runners.pythons[0], folder in runners.readable) == (folder, f"{folder}/bin/python", True)

    Path(copy).parent.joinpath(".git").write_text(f"gitdir: {project}/.git/worktrees/other\n")
    assert find_runners(copy).pytest == ""
