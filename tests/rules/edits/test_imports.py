from mendgraph.nodes.execute_tools.edits.imports import with_imports
from tests.row_tables import rows


@rows(
    ('"""A."""\n\nX = re.A\n', "", '"""A."""\n\nimport re\n\nX = re.A\n'),
    (
        "import os.path\n\nX = [json.x, os.sep, math.pi]\n",
        "",
        "import os.path\nimport json\nimport math\n\nX = [json.x, os.sep, math.pi]\n",
    ),
    ("X = re.A\r\n", "", "import re\r\n\r\nX = re.A\r\n"),
    ("# License\n\n# The answer.\nX = re.A\n", "", "# License\n\nimport re\n\n# The answer.\nX = re.A\n"),
    ("#!/bin/python\n# License\nX = re.A\n", "", "#!/bin/python\n# License\nimport re\n\nX = re.A\n"),
    ("# License\n\n# Paths.\nimport os\nX = re.A\n", "", "# License\n\n# Paths.\nimport os\nimport re\nX = re.A\n"),
    *(
        (text, "", text)
        for text in (
            "def f(re):\n    re.A\n",
            "from regex import re\nre.A\n",
            "re = 1\nre.A\n",
            "numpy.x\n",
            "from a import *\nre.A\n",
            "(",
        )
    ),
    ("X = re.A\n", "Y = re.B\n", "X = re.A\n"),
)
def test_modules_used_by_new_text_are_imported(text: str, before: str, expected: str) -> None:
    assert with_imports(text, before, {}) == expected
