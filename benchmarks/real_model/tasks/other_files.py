"""Edit instructions for files that hold no Python: JSON, YAML, TOML, Markdown, INI."""

from benchmarks.real_model.checking import Every, Holds, Keeps
from benchmarks.real_model.task import Task, replace_once

EDITOR = """{
  "editor": {
    "fontSize": 12,
    "tabSize": 4,
    "rulers": [80, 120]
  },
  "terminal": {
    "fontSize": 12,
    "shell": "/bin/bash"
  },
  "telemetry": false
}
"""

PIPELINE = """# Built on every push to main.
name: build

python: "3.10"  # keep in step with the servers

steps:
  - name: install
    run: pip install -r requirements.txt
  - name: test
    run: pytest -q
    timeout: 10

notify:
  - dev@example.com
"""

PYPROJECT = """[project]
name = "ferry"
version = "1.4.2"
requires-python = ">=3.10"
dependencies = [
    "rich>=13",
]

[tool.ferry]
schema-version = "1.4.2"
"""

README = """# ferry

Copies files between buckets.

## Installation

    pip install ferry

## License

MIT
"""

APP_INI = """; read once, when the program starts

[server]
host = 127.0.0.1
port = 8000
debug = yes

[database]
host = db.internal
port = 5432
debug = yes
"""

OTHER_FILES = (
    Task(
        name="json_terminal_font",
        kind="other_files",
        half="held_out",
        request="In preferences.json, set the font size of the terminal to 14. The editor stays at 12.",
        files={"preferences.json": EDITOR},
        check=Holds(
            "import json\ndata = json.loads(read('preferences.json'))",
            (
                "data['terminal'] == {'fontSize': 14, 'shell': '/bin/bash'}",
                "data['editor'] == {'fontSize': 12, 'tabSize': 4, 'rulers': [80, 120]}",
                "data['telemetry'] is False and list(data) == ['editor', 'terminal', 'telemetry']",
            ),
        ),
        changes=True,
        solution={"preferences.json": replace_once(EDITOR, '12,\n    "shell"', '14,\n    "shell"')},
    ),
    Task(
        name="yaml_python_version",
        kind="other_files",
        half="dev",
        request="pipeline.yaml should build with Python 3.12 and give the tests 20 minutes (timeout) instead of 10.",
        files={"pipeline.yaml": PIPELINE},
        check=Holds(
            "import yaml\ntext = read('pipeline.yaml')\ndata = yaml.safe_load(text)",
            (
                "data['python'] == '3.12'",
                "data['steps'][1] == {'name': 'test', 'run': 'pytest -q', 'timeout': 20}",
                "data['steps'][0] == {'name': 'install', 'run': 'pip install -r requirements.txt'}",
                "data['name'] == 'build' and data['notify'] == ['dev@example.com'] and len(data['steps']) == 2",
                "'# Built on every push to main.' in text and '# keep in step with the servers' in text",
            ),
        ),
        changes=True,
        solution={"pipeline.yaml": replace_once(PIPELINE, "3.10", "3.12").replace("timeout: 10", "timeout: 20")},
    ),
    Task(
        name="toml_version",
        kind="other_files",
        half="held_out",
        request="We release 1.5.0 today: raise the version in pyproject.toml. The schema version stays.",
        files={"pyproject.toml": PYPROJECT, "README.md": README},
        check=Every(
            (
                Holds(
                    "import tomllib\ndata = tomllib.loads(read('pyproject.toml'))",
                    (
                        "data['project']['version'] == '1.5.0'",
                        "data['tool'] == {'ferry': {'schema-version': '1.4.2'}}",
                        "data['project']['name'] == 'ferry' and data['project']['requires-python'] == '>=3.10'",
                        "data['project']['dependencies'] == ['rich>=13']",
                    ),
                ),
                Keeps({"README.md": README}),
            )
        ),
        changes=True,
        solution={"pyproject.toml": replace_once(PYPROJECT, '\nversion = "1.4.2"', '\nversion = "1.5.0"')},
    ),
    Task(
        name="markdown_usage",
        kind="other_files",
        half="dev",
        request=(
            "README.md lacks a section Usage. Please add one between Installation and License that shows the command "
            "`ferry copy SOURCE TARGET`."
        ),
        files={"README.md": README},
        check=Holds(
            "text = read('README.md')\n"
            "heads = [line for line in text.splitlines() if line.startswith('#')]\n"
            "usage = text.partition('## Usage')[2].partition('## License')[0]\n",
            (
                "heads[:3] == ['# ferry', '## Installation', '## Usage'] and heads[-1] == '## License'",
                "'ferry copy SOURCE TARGET' in usage",
                "all(part in text for part in ('Copies files between buckets.', 'pip install ferry', 'MIT'))",
                "text.partition('## License')[2].strip() == 'MIT'",
            ),
        ),
        changes=True,
        solution={
            "README.md": replace_once(README, "## License", "## Usage\n\n    ferry copy SOURCE TARGET\n\n## License")
        },
    ),
    Task(
        name="ini_server",
        kind="other_files",
        half="held_out",
        request="app.ini: the server must listen on port 8443 and not run in debug mode. The database part stays.",
        files={"app.ini": APP_INI},
        check=Holds(
            "import configparser\ndata = configparser.ConfigParser()\ndata.read_string(read('app.ini'))",
            (
                "data['server'].getint('port') == 8443 and data['server'].getboolean('debug') is False",
                "data['server']['host'] == '127.0.0.1' and data.sections() == ['server', 'database']",
                "dict(data['database']) == {'host': 'db.internal', 'port': '5432', 'debug': 'yes'}",
                "'; read once, when the program starts' in read('app.ini')",
            ),
        ),
        changes=True,
        solution={"app.ini": replace_once(APP_INI, "port = 8000\ndebug = yes", "port = 8443\ndebug = no")},
    ),
)
