import pytest
from hypothesis import given, strategies as st

from nodes.language.meant_paths import Candidates, meant_path

FILES = (
    ".env",
    "app.py",
    "config.json",
    "docs/guide.md",
    "src/report.py",
    "src/text_tools.py",
    "src/users/models.py",
    "tests/test_report.py",
    "web/models.py",
    "web/settings.yaml",
)
TWO = Candidates(("src/users/models.py", "web/models.py"))


@pytest.mark.parametrize(
    ("named", "shown", "meant"),
    [
        ("/path/to/report.py", (), "src/report.py"),
        ("path/to/report.py", (), "src/report.py"),
        ("/path/to/your/project/src/report.py", (), "src/report.py"),
        ("/home/me/work/src/users/models.py", (), "src/users/models.py"),
        ("C:\\work\\src\\report.py", (), "src/report.py"),
        ("~/report.py", (), "src/report.py"),
        ("/app.py", (), "app.py"),
        ("`app.PY`", (), "app.py"),
        ("/tmp/models.py", (), TWO),
        ("/tmp/models.py", ("web/models.py",), "web/models.py"),
        ("/tmp/models.py", ("web/models.py", "src/users/models.py"), TWO),
        ("/tmp/reports.py", (), "src/report.py"),
        ("<file>", ("app.py",), "app.py"),
        ("<path>", (), Candidates(FILES[1:])),
        ("your_file.py", ("src/report.py", "config.json"), "src/report.py"),
        ("/path/to/file.py", ("src/report.py",), "src/report.py"),
        ("path/to/your_script.json", (), "config.json"),
        ("PATH", ("app.py",), "app.py"),
        ("file.yaml", (), "web/settings.yaml"),
        ("Report.py", (), "src/report.py"),
        ("SRC/REPORT.PY", (), "src/report.py"),
        ("report.py", (), "src/report.py"),
        ("src/app.py", (), "app.py"),
        ("lib/report.py", (), "src/report.py"),
        ("users/models.py", (), "src/users/models.py"),
        ("models.py", (), TWO),
        ("src/models.py", (), TWO),
        ("text-tools.py", (), "src/text_tools.py"),
        ("src/TextTools.py", (), "src/text_tools.py"),
        ("src/report", (), "src/report.py"),
        ("guide", (), "docs/guide.md"),
        ("text_tool.py", (), "src/text_tools.py"),
        ("web/setting.yaml", (), "web/settings.yaml"),
        ("./report.py", (), "src/report.py"),
    ],
)
def test_a_path_that_is_not_there(named: str, shown: tuple[str, ...], meant: str | Candidates) -> None:
    assert meant_path(named, FILES, shown, for_new=False) == meant


@pytest.mark.parametrize(
    "named",
    [
        "",
        " ",
        ".",
        "/",
        "app.py",
        "./app.py",
        "src",
        "src/",
        "src/users",
        "../report.py",
        "/home/me/../report.py",
        ".env",
        "env",
        "/home/me/.env",
        "prod.env",
        ".git/config.json",
        "/home/me/.ssh/config.json",
        "secrets/app.py",
        "/etc/app.py",
        "/usr/lib/app.py",
        "server.key",
        "zebra.py",
        "main.py",
        "report.js",
        "your_file.js",
        "a" * 5000,
    ],
)
def test_what_is_left_as_it_is(named: str) -> None:
    assert meant_path(named, FILES, (), for_new=False) is None


@pytest.mark.parametrize(
    ("named", "meant"),
    [
        ("/path/to/report.py", "src/report.py"),
        ("path/to/report.py", "src/report.py"),
        ("/tmp/models.py", TWO),
        ("<file>", "app.py"),
        ("your_file.py", "app.py"),
        ("/tmp/reports.py", None),
        ("path/to/new_module.py", None),
        ("report.py", None),
        ("Report.py", None),
        ("src/reports.py", None),
        ("file.py", None),
        ("module.py", None),
        ("src/text_tool.py", None),
    ],
)
def test_a_new_name_is_a_new_file(named: str, meant: str | Candidates | None) -> None:
    assert meant_path(named, FILES, ("app.py",), for_new=True) == meant


NAMES = st.sampled_from(["a", "b", "A", "ab", "a_b", "a-b", "abs"])
PATHS = st.builds(
    lambda folders, name, suffix: "/".join([*folders, name]) + suffix,
    st.lists(NAMES, max_size=2),
    NAMES,
    st.sampled_from([".py", ".md", ""]),
)
ODD = st.one_of(PATHS, PATHS.map("/x/{}".format), PATHS.map("path/to/{}".format), st.text(max_size=12))


@given(ODD, st.lists(PATHS, max_size=6, unique=True), st.lists(PATHS, max_size=2), st.booleans())
def test_what_exists_is_never_another_file_and_what_is_meant_exists(
    named: str, files: list[str], shown: list[str], for_new: bool
) -> None:
    meant = meant_path(named, files, shown, for_new=for_new)
    if named in files:
        assert meant is None
    if isinstance(meant, Candidates):
        assert len(meant.paths) > 1
        assert set(meant.paths) <= set(files)
    elif meant is not None:
        assert meant in files


@given(PATHS, st.lists(PATHS, max_size=6, unique=True))
def test_a_relative_name_for_a_new_file_stays(named: str, files: list[str]) -> None:
    assert meant_path(named, files, (), for_new=True) is None


@given(
    PATHS, st.lists(PATHS, min_size=1, max_size=6, unique=True), st.sampled_from(["/home/me/", "path/to/", "C:\\x\\"])
)
def test_the_whole_end_of_an_absolute_path_decides(named: str, files: list[str], folder: str) -> None:
    if named in files:
        assert meant_path(folder + named, files, (), for_new=True) == named
