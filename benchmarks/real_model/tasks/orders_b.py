"""More orders as people type them in passing."""

from benchmarks.real_model.checking import Every, Holds, Keeps
from benchmarks.real_model.tasks.orders_a import order

TAX = """def calculate_vat(amount, rate=0.2):
    return round(amount * rate, 2)


def gross(amount):
    return amount + calculate_vat(amount)
"""
INVOICE = """import tax


def line(name, amount):
    return f"{name}: {amount:.2f} + {tax.calculate_vat(amount):.2f}"
"""
HASHING = """import hashlib
import zlib


def old_hash(text):
    return zlib.crc32(text.encode())


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()
"""
READER = """from pathlib import Path


def parse_line(line):
    key, _, value = line.partition("=")
    return key.strip(), value.strip()


def read(path):
    return dict(parse_line(line) for line in Path(path).read_text().splitlines() if "=" in line)
"""
LINES = """def is_comment(line):
    return line.lstrip().startswith("#")
"""
UTIL = """import re


def slugify(text):
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
"""
HELPERS = """import re


def slugify(text):
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def link(title):
    return f"/posts/{slugify(title)}"
"""
STATS = """def mean(values):
    return sum(values) / len(values)


def spread(values):
    return max(values) - min(values) if values else 0
"""
TEST_STATS = """import unittest

from stats import mean, spread


class Stats(unittest.TestCase):
    def test_mean(self):
        self.assertEqual(mean([1, 3]), 2)

    def test_spread(self):
        self.assertEqual(spread([1, 4]), 3)
"""
DEPLOY = """# the web service
web:
  image: shop:1.3   # see releases
  replicas: 2
  ports: [80]
db:
  image: pg:16
  replicas: 1
"""
NAMES = '''def join_names(names):
    """All names in one line."""
    return " and ".join(names)


def title(names):
    return f"By {join_names(names)}"
'''
HELLO = """def greet(name):
    return f"Hello, {name}."


def part(name):
    return f"Goodbye, {name}."
"""
ACCOUNT = """class Account:
    def __init__(self, balance=0):
        self.balance = balance

    def deposit(self, amount):
        self.balance += amount

    def withdraw(self, amount):
        if amount > self.balance:
            raise ValueError("not enough")
        self.balance -= amount
"""
CLIENT = """import settings


def fetch(get):
    for attempt in range(5):
        answer = get(attempt)
        if answer is not None:
            return answer
    return None
"""
POINT = """from dataclasses import dataclass


@dataclass
class Point:
    x: float
    y: float

    def length(self):
        return (self.x**2 + self.y**2) ** 0.5
"""
MAIN = """import sys


def main(arguments):
    print(" ".join(arguments).upper())


if __name__ == "__main__":
    main(sys.argv[1:])
"""
LOGS = """from pathlib import Path


def name_of(day):
    return f"{day}.txt"


def write(folder, day, text):
    (Path(folder) / name_of(day)).write_text(text)
"""
CLEANUP = """from pathlib import Path


def old_logs(folder):
    return sorted(Path(folder).glob("*.txt"))
"""
OLD_HASH = "def old_hash(text):\n    return zlib.crc32(text.encode())\n\n\n"
PARSE_LINE = """def parse_line(line):
    key, _, value = line.partition("=")
    return key.strip(), value.strip()


"""
REFUSED = """import account


def bad(amount):
    try:
        account.Account(5).withdraw(amount)
    except ValueError:
        return True
    return False
"""

ORDERS_B = (
    order(
        "name_of_import",
        "Please rename calculate_vat in tax.py to vat.",
        {"tax.py": TAX, "invoice.py": INVOICE},
        Holds(
            "import tax, invoice",
            (
                "tax.vat(10)==2.0",
                "not hasattr(tax,'calculate_vat')",
                "tax.gross(10)==12.0",
                "invoice.line('a',10)=='a: 10.00 + 2.00'",
            ),
        ),
        {"tax.py": TAX.replace("calculate_vat", "vat"), "invoice.py": INVOICE.replace("calculate_vat", "vat")},
    ),
    order(
        "removed_unused",
        "Remove the function old_hash from hashing.py; nothing uses it.",
        {"hashing.py": HASHING},
        Holds("import hashing", ("not hasattr(hashing,'old_hash')", "len(hashing.digest('a'))==64")),
        {"hashing.py": HASHING.replace(OLD_HASH, "")},
    ),
    order(
        "function_moved",
        "Move parse_line from reader.py to lines.py.",
        {"reader.py": READER, "lines.py": LINES, "a.cfg": "x = 1\n"},
        Holds(
            "import reader, lines",
            (
                "lines.parse_line('a=b')==('a','b')",
                "'def parse_line' not in read('reader.py')",
                "reader.read('a.cfg')=={'x':'1'}",
                "lines.is_comment('# a')",
            ),
        ),
        {
            "reader.py": READER.replace(PARSE_LINE, "from lines import parse_line\n\n\n"),
            "lines.py": f"{PARSE_LINE}{LINES}",
        },
    ),
    order(
        "copy_kept",
        "helpers.py and util.py both define slugify. Keep the one in util.py and import it in helpers.py.",
        {"util.py": UTIL, "helpers.py": HELPERS},
        Holds(
            "import util, helpers",
            (
                "helpers.link('A b')=='/posts/a-b'",
                "'def slugify' not in read('helpers.py')",
                "util.slugify('A b')=='a-b'",
            ),
        ),
        {"helpers.py": HELPERS.replace(UTIL, "from util import slugify\n")},
    ),
    order(
        "test_added",
        "Add a test for the empty list to test_stats.py: spread([]) is 0.",
        {"stats.py": STATS, "test_stats.py": TEST_STATS},
        Every(
            (
                Keeps({"stats.py": STATS}),
                Holds(
                    "", ("run('-m','unittest','-q','test_stats')[0]==0", "read('test_stats.py').count('spread([])')>=1")
                ),
            )
        ),
        {"test_stats.py": TEST_STATS + "\n    def test_nothing(self):\n        self.assertEqual(spread([]), 0)\n"},
    ),
    order(
        "yaml_two",
        "Set replicas of web to 3 and its image to shop:1.4 in deploy.yaml.",
        {"deploy.yaml": DEPLOY},
        Holds(
            "",
            (
                "read('deploy.yaml') == "
                + repr(DEPLOY.replace("shop:1.3", "shop:1.4").replace("replicas: 2", "replicas: 3")),
            ),
        ),
        {"deploy.yaml": DEPLOY.replace("shop:1.3", "shop:1.4").replace("replicas: 2", "replicas: 3")},
    ),
    order(
        "mean_of_nothing",
        "When the list is empty, mean should return 0 rather than raise.",
        {"stats.py": STATS, "test_stats.py": TEST_STATS},
        Holds(
            "import stats",
            (
                "stats.mean([])==0",
                "stats.mean([1,3])==2",
                "stats.spread([])==0",
                "run('-m','unittest','-q','test_stats')[0]==0",
            ),
        ),
        {"stats.py": STATS.replace("len(values)", "len(values) if values else 0")},
    ),
    order(
        "parameter_given",
        'Give join_names in names.py a parameter sep with " and " as its default.',
        {"names.py": NAMES},
        Holds(
            "import names",
            (
                "names.join_names(['a','b'])=='a and b'",
                "names.join_names(['a','b'], sep=', ')=='a, b'",
                "names.title(['a','b'])=='By a and b'",
            ),
        ),
        {
            "names.py": NAMES.replace("join_names(names):\n", 'join_names(names, sep=" and "):\n').replace(
                '" and ".join', "sep.join"
            )
        },
    ),
    order(
        "greeting_stated",
        "The greeting should end with an exclamation mark.",
        {
            "hello.py": HELLO,
            "main.py": 'from hello import greet\n\nif __name__ == "__main__":\n    print(greet("Ann"))\n',
        },
        Holds(
            "import hello",
            (
                "hello.greet('Bo')=='Hello, Bo!'",
                "hello.part('Bo')=='Goodbye, Bo.'",
                "run('main.py')==(0,'Hello, Ann!\\n')",
            ),
        ),
        {"hello.py": HELLO.replace("Hello, {name}.", "Hello, {name}!")},
    ),
    order(
        "method_raises",
        "Make Account.withdraw raise a ValueError if the amount is negative.",
        {"account.py": ACCOUNT},
        Holds(REFUSED, ("bad(-1)", "bad(6)", "not bad(5)", "hasattr(account.Account,'deposit')")),
        {"account.py": ACCOUNT.replace("if amount > self.balance", "if not 0 <= amount <= self.balance")},
    ),
    order(
        "constant_used",
        "Use MAX_RETRIES from settings.py in client.py instead of the number 5.",
        {"client.py": CLIENT, "settings.py": "MAX_RETRIES = 3\nDEBUG = False\n"},
        Holds(
            "import client, settings\nseen=[]",
            (
                "client.fetch(lambda n: seen.append(n)) is None and len(seen)==3",
                "'MAX_RETRIES' in read('client.py')",
                "settings.MAX_RETRIES==3",
            ),
        ),
        {"client.py": CLIENT.replace("range(5)", "range(settings.MAX_RETRIES)")},
    ),
    order(
        "class_method",
        'Add a class method from_dict to Point in point.py that takes {"x": 1, "y": 2}.',
        {"point.py": POINT},
        Holds(
            "import point", ("point.Point.from_dict({'x':1,'y':2})==point.Point(1,2)", "point.Point(3,4).length()==5")
        ),
        {"point.py": POINT + "\n    @classmethod\n    def from_dict(cls, data):\n        return cls(**data)\n"},
    ),
    order(
        "readme_written",
        "Write a README.md that says how to run main.py.",
        {"main.py": MAIN},
        Every((Keeps({"main.py": MAIN}), Holds("", ("'main.py' in read('README.md')",)))),
        {"README.md": "Run it: python main.py WORDS\n"},
    ),
    order(
        "suffix_changed",
        "Log files are called .log from now on, not .txt. Change logs.py and cleanup.py.",
        {"logs.py": LOGS, "cleanup.py": CLEANUP},
        Holds("import logs, cleanup", ("logs.name_of('mon')=='mon.log'", "'*.log' in read('cleanup.py')")),
        {"logs.py": LOGS.replace(".txt", ".log"), "cleanup.py": CLEANUP.replace(".txt", ".log")},
    ),
)
