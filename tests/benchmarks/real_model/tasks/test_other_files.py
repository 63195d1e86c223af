import pytest

from tests.benchmarks.real_model.tasks.verdicts import TASKS, after, after_more, verdict


@pytest.mark.parametrize(
    ("name", "path", "old", "new"),
    [
        ("json_terminal_font", "preferences.json", '12,\n    "tabSize"', '14,\n    "tabSize"'),
        ("json_terminal_font", "preferences.json", '12,\n    "shell"', '"14",\n    "shell"'),
        ("yaml_python_version", "pipeline.yaml", '"3.10"', "3.12"),
        ("toml_version", "pyproject.toml", 'schema-version = "1.4.2"', 'schema-version = "1.5.0"'),
        ("markdown_usage", "README.md", "MIT\n", "MIT\n\n## Usage\n\nferry copy SOURCE TARGET\n"),
        ("ini_server", "app.ini", "port = 5432\ndebug = yes", "port = 8443\ndebug = no"),
    ],
)
def test_the_wrong_place_is_not_accepted(name: str, path: str, old: str, new: str) -> None:
    assert after(name, path, old, new) is not None


@pytest.mark.parametrize(
    ("name", "path", "old", "new"),
    [
        ("json_terminal_font", "preferences.json", '"telemetry": false', '"telemetry": true'),
        ("yaml_python_version", "pipeline.yaml", "  # keep in step with the servers", ""),
        ("toml_version", "pyproject.toml", 'schema-version = "1.4.2"', 'schema-version = "1.5.0"'),
        ("toml_version", "README.md", "MIT", "BSD"),
        ("markdown_usage", "README.md", "Copies files between buckets.", "Copies files."),
        ("ini_server", "app.ini", "; read once, when the program starts\n", ""),
    ],
)
def test_what_stood_beside_it_stays(name: str, path: str, old: str, new: str) -> None:
    assert after_more(name, path, old, new) is not None


def test_a_broken_file_is_not_accepted() -> None:
    assert verdict(TASKS["json_terminal_font"], {"preferences.json": '{"terminal": {"fontSize": 14'}) is not None
