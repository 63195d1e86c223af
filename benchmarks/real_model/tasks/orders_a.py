"""Orders as people type them in passing, all of them looked at while the harness was tuned; a set of its own."""

from collections.abc import Mapping

from benchmarks.real_model.checking import Every, Holds, Keeps
from benchmarks.real_model.task import Check, Task


def order(name: str, request: str, files: Mapping[str, str], check: Check, solution: Mapping[str, str | None]) -> Task:
    """An order that changes something."""
    return Task(name, "order", "dev", request, files, check, changes=True, solution=solution)


LABELS = '''def fmt(name, price):
    """One line of a price list."""
    return f"{name:<12}{price:>8.2f}"


def sheet(items):
    lines = [fmt(name, price) for name, price in items]
    total = sum(price for _, price in items)
    lines.append(fmt("total", total))
    return "\\n".join(lines)
'''
KEYS = """import re


def _legacy_key(name):
    return re.sub(r"\\s", "-", name.lower())


def key(name):
    return "-".join(name.lower().split())


def index(names):
    return {key(name): name for name in names}
"""
SYNC = """import time

import config

PAUSE = 0.25


def attempt(action, tries=config.TRIES, sleep=time.sleep):
    for number in range(tries):
        if action(number):
            return number
        sleep(PAUSE)
    return None
"""
CONFIG = '''"""Values that an administrator may change."""

TRIES = 4
HOST = "localhost"
'''
DURATIONS = """def clock(seconds):
    minutes, rest = divmod(seconds, 60)
    return f"{minutes}:{rest:02}"
"""
RACE = """def clock(seconds):
    minutes, rest = divmod(seconds, 60)
    return f"{minutes}:{rest:02}"


def result(name, seconds):
    return f"{name} {clock(seconds)}"
"""
LOG = """def clock(seconds):
    minutes, rest = divmod(seconds, 60)
    return f"{minutes}:{rest:02}"


def entry(what, seconds):
    return f"[{clock(seconds)}] {what}"
"""
SITE_INI = """; main settings
[web]
; where the pages come from
root = /srv/www
workers = 2 ; one per core

[mail]
; smtp relay
host = relay.local
port = 25
"""
DEMO_TOML = """# build
[tool]
name = "demo"   # as on the label
retries = 3

[paths]
out = "build"
"""
RING = '''class Ring:
    """Keeps the last `size` values."""

    def __init__(self, size):
        self.size = size
        self.values = []

    def push(self, value):
        self.values.append(value)
        del self.values[: -self.size]

    def __len__(self):
        return len(self.values)
'''
BILL = """def net(prices):
    return sum(prices)


def tax(prices, rate=0.19):
    return net(prices) * rate
"""
TEST_BILL = """import unittest

from bill import net, tax


class Bill(unittest.TestCase):
    def test_net(self):
        self.assertEqual(net([1, 2]), 3)

    def test_tax(self):
        self.assertEqual(tax([10]), 1.9)
"""
AVERAGE = """import sys


def average(path):
    values = [float(line) for line in open(path)]
    return sum(values) / len(values)


if __name__ == "__main__":
    print(f"{average(sys.argv[1]):.1f}")
"""
SHOP = """import stock


def buy(name, count):
    if stock.LEVELS.get(name, 0) < count:
        return "sold out"
    stock.take(name, count)
    return "ok"
"""
STOCK = """LEVELS = {"tea": 5, "rice": 2}
LIMIT = 3


def take(name, count):
    LEVELS[name] -= count
"""
LEGACY = 'def _legacy_key(name):\n    return re.sub(r"\\s", "-", name.lower())\n\n\n'
TEST_RING = """import unittest

from ring import Ring


class Tests(unittest.TestCase):
    def test_push(self):
        ring = Ring(2)
        for value in (1, 2, 3):
            ring.push(value)
        self.assertEqual(ring.values, [2, 3])

    def test_len(self):
        self.assertEqual(len(Ring(2)), 0)
"""

PRICE_LINE_CHECK = Holds(
    "import labels",
    (
        "labels.price_line('a',1)==f\"{'a':<12}{1:>8.2f}\"",
        "not hasattr(labels,'fmt')",
        "labels.sheet([('a',1)]).count('\\n')==1",
    ),
)
PRICE_LINE_SOLUTION: dict[str, str | None] = {"labels.py": LABELS.replace("fmt", "price_line")}

PAUSE_MOVED_CHECK = Holds(
    "import sync, config",
    (
        "config.PAUSE==0.25",
        "config.TRIES==4",
        "'0.25' not in read('sync.py')",
        "sync.attempt(lambda n:n==2, sleep=lambda s:None)==2",
    ),
)
PAUSE_MOVED_SOLUTION: dict[str, str | None] = {
    "sync.py": SYNC.replace("PAUSE = 0.25\n\n\n", "\n").replace("sleep(PAUSE)", "sleep(config.PAUSE)"),
    "config.py": CONFIG + "PAUSE = 0.25\n",
}

ORDERS_A = (
    order(
        "name_in_words",
        "fmt in labels.py is a poor name. Call it price_line instead.",
        {"labels.py": LABELS},
        PRICE_LINE_CHECK,
        PRICE_LINE_SOLUTION,
    ),
    order(
        "name_given",
        "Rename the function fmt to price_line in labels.py.",
        {"labels.py": LABELS},
        PRICE_LINE_CHECK,
        PRICE_LINE_SOLUTION,
    ),
    order(
        "name_better",
        "Give fmt in labels.py a better name: price_line.",
        {"labels.py": LABELS},
        PRICE_LINE_CHECK,
        PRICE_LINE_SOLUTION,
    ),
    order(
        "dead_pronoun",
        "_legacy_key in keys.py isn't called anywhere any more. Get rid of it.",
        {"keys.py": KEYS},
        Holds(
            "import keys",
            ("not hasattr(keys,'_legacy_key')", "keys.key('A b')=='a-b'", "keys.index(['A b'])=={'a-b':'A b'}"),
        ),
        {"keys.py": KEYS.replace(LEGACY, "")},
    ),
    order(
        "dead_unused",
        "keys.py still has the unused function _legacy_key. Please drop it.",
        {"keys.py": KEYS},
        Holds("import keys", ("not hasattr(keys,'_legacy_key')", "keys.key('A b')=='a-b'")),
        {"keys.py": KEYS.replace(LEGACY, "")},
    ),
    order(
        "constant_pronoun",
        "PAUSE should be in config.py with the other settings. Move it there from sync.py.",
        {"sync.py": SYNC, "config.py": CONFIG},
        PAUSE_MOVED_CHECK,
        PAUSE_MOVED_SOLUTION,
    ),
    order(
        "constant_moved",
        "Move the constant PAUSE from sync.py into config.py.",
        {"sync.py": SYNC, "config.py": CONFIG},
        PAUSE_MOVED_CHECK,
        PAUSE_MOVED_SOLUTION,
    ),
    order(
        "copies_one",
        "race.py and log.py each have their own clock function. "
        "durations.py has the same one. Let both import it from there.",
        {"durations.py": DURATIONS, "race.py": RACE, "log.py": LOG},
        Holds(
            "import race, log, durations",
            (
                "race.result('a',61)=='a 1:01'",
                "log.entry('x',5)=='[0:05] x'",
                "'def clock' not in read('race.py')",
                "'def clock' not in read('log.py')",
                "'def clock' in read('durations.py')",
            ),
        ),
        {
            "race.py": RACE.replace(DURATIONS, "from durations import clock\n"),
            "log.py": LOG.replace(DURATIONS, "from durations import clock\n"),
        },
    ),
    order(
        "copies_removed",
        "clock is defined in race.py and again in log.py. "
        "Use the one from durations.py in both files and remove the copies.",
        {"durations.py": DURATIONS, "race.py": RACE, "log.py": LOG},
        Holds(
            "import race, log, durations",
            (
                "race.result('a',61)=='a 1:01'",
                "log.entry('x',5)=='[0:05] x'",
                "'def clock' not in read('race.py')",
                "'def clock' not in read('log.py')",
            ),
        ),
        {
            "race.py": RACE.replace(DURATIONS, "from durations import clock\n"),
            "log.py": LOG.replace(DURATIONS, "from durations import clock\n"),
        },
    ),
    order(
        "ini_two",
        "Set workers to 6 and the mail port to 587 in site.ini.",
        {"site.ini": SITE_INI},
        Holds(
            "",
            (
                "read('site.ini') == "
                + repr(SITE_INI.replace("workers = 2", "workers = 6").replace("port = 25", "port = 587")),
            ),
        ),
        {"site.ini": SITE_INI.replace("workers = 2", "workers = 6").replace("port = 25", "port = 587")},
    ),
    order(
        "ini_host",
        "In site.ini the mail host is now smtp.example.org.",
        {"site.ini": SITE_INI},
        Holds("", ("read('site.ini') == " + repr(SITE_INI.replace("relay.local", "smtp.example.org")),)),
        {"site.ini": SITE_INI.replace("relay.local", "smtp.example.org")},
    ),
    order(
        "toml_two",
        'Raise retries to 5 in demo.toml and set out to "dist".',
        {"demo.toml": DEMO_TOML},
        Holds(
            "",
            (
                "read('demo.toml') == "
                + repr(DEMO_TOML.replace("retries = 3", "retries = 5").replace('"build"', '"dist"')),
            ),
        ),
        {"demo.toml": DEMO_TOML.replace("retries = 3", "retries = 5").replace('"build"', '"dist"')},
    ),
    order(
        "tests_named",
        "Write unit tests for Ring into test_ring.py, with unittest.",
        {"ring.py": RING},
        Every(
            (
                Keeps({"ring.py": RING}),
                Holds(
                    "import re",
                    (
                        "run('-m','unittest','-q','test_ring')[0]==0",
                        "len(re.findall(r'def test\\w*', read('test_ring.py')))>=2",
                    ),
                ),
            )
        ),
        {"test_ring.py": TEST_RING},
    ),
    order(
        "tests_short",
        "Please add tests for ring.py in test_ring.py.",
        {"ring.py": RING},
        Every(
            (
                Keeps({"ring.py": RING}),
                Holds(
                    "import re",
                    (
                        "run('-m','unittest','-q','test_ring')[0]==0 or run('-m','pytest','-q','test_ring.py')[0]==0",
                        "len(re.findall(r'def test\\w*', read('test_ring.py')))>=2",
                    ),
                ),
            )
        ),
        {"test_ring.py": TEST_RING},
    ),
    order(
        "rounded_tested",
        "tax in bill.py has to be rounded to two decimals. Add a test for it to test_bill.py too.",
        {"bill.py": BILL, "test_bill.py": TEST_BILL},
        Holds(
            "import re, bill",
            (
                "bill.tax([0.33])==0.06",
                "run('-m','unittest','-q','test_bill')[0]==0",
                "read('test_bill.py').count('def test')>=3",
                "bill.net([1,2])==3",
            ),
        ),
        {
            "bill.py": BILL.replace("net(prices) * rate", "round(net(prices) * rate, 2)"),
            "test_bill.py": TEST_BILL + "\n    def test_round(self):\n        self.assertEqual(tax([0.33]), 0.06)\n",
        },
    ),
    order(
        "negative_tested",
        "Make net in bill.py ignore negative prices, and cover that in test_bill.py.",
        {"bill.py": BILL, "test_bill.py": TEST_BILL},
        Holds(
            "import re, bill",
            (
                "bill.net([1,-2,3])==4",
                "run('-m','unittest','-q','test_bill')[0]==0",
                "read('test_bill.py').count('def test')>=3",
                "bill.tax([10])==1.9",
            ),
        ),
        {
            "bill.py": BILL.replace("sum(prices)", "sum(price for price in prices if price > 0)"),
            "test_bill.py": TEST_BILL + "\n    def test_debts(self):\n        self.assertEqual(net([1, -2]), 1)\n",
        },
    ),
    order(
        "empty_average",
        "The average script crashes with a ZeroDivisionError when the file is empty. It should print 0.0 then.",
        {
            "average.py": AVERAGE,
            "values.txt": "1\n3\n",
            "none.txt": "",
            "README.md": "# Average\n\npython average.py FILE\n",
        },
        Holds(
            "import re", ("run('average.py','values.txt')==(0,'2.0\\n')", "run('average.py','none.txt')==(0,'0.0\\n')")
        ),
        {"average.py": AVERAGE.replace("len(values)", "len(values) if values else 0.0")},
    ),
    order(
        "limit_stated",
        'Nobody may buy more than LIMIT of anything at once: the answer then is "too many".',
        {"shop.py": SHOP, "stock.py": STOCK},
        Holds(
            "import shop, stock",
            ("shop.buy('tea',4)=='too many'", "shop.buy('tea',3)=='ok'", "shop.buy('rice',3)=='sold out'"),
        ),
        {"shop.py": SHOP.replace("    if", '    if count > stock.LIMIT:\n        return "too many"\n    if')},
    ),
    order(
        "unknown_stated",
        "Buying something we never had fails with a KeyError in take when count is 0. "
        'Let it answer "unknown" for such names.',
        {"shop.py": SHOP, "stock.py": STOCK},
        Holds(
            "import shop, stock",
            ("shop.buy('tea',1)=='ok'", "shop.buy('x',0)=='unknown'", "shop.buy('x',2)=='unknown'"),
        ),
        {"shop.py": SHOP.replace("    if", '    if name not in stock.LEVELS:\n        return "unknown"\n    if')},
    ),
)
