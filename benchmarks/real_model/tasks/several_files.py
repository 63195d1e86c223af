"""Edit instructions that are about two or three files."""

from benchmarks.real_model.checking import Every, Holds, Keeps
from benchmarks.real_model.task import Task, replace_once

STORE = '''USERS = {1: "ann", 2: "bob"}


def fetch_user(number):
    """The name of a user; a KeyError if there is none."""
    return USERS[number]


def fetch_all():
    return [fetch_user(number) for number in sorted(USERS)]
'''
STORE_API = """import store


def handle(path):
    if path == "/users":
        return 200, store.fetch_all()
    try:
        return 200, store.fetch_user(int(path.rpartition("/")[2]))
    except (KeyError, ValueError):
        return 404, None
"""
STORE_REPORT = """from store import fetch_user


def line(number):
    return f"{number}: {fetch_user(number).title()}"
"""

CLIENT = """from urllib.request import urlopen

import settings

DEFAULT_TIMEOUT = 12.5


def get(path, timeout=DEFAULT_TIMEOUT, opener=urlopen):
    with opener(settings.BASE_URL + path, timeout=timeout) as response:
        return response.read()
"""
SETTINGS = '''"""What differs from one installation to the next."""

BASE_URL = "http://localhost:8080"
RETRIES = 3
'''

ORDER = """from dataclasses import dataclass


@dataclass
class Order:
    product: str
    count: int
    price: float
"""
PRICING = """from order import Order


def total(order: Order) -> float:
    return round(order.count * order.price, 2)
"""
SUMMARY = """from order import Order
from pricing import total


def summary(order: Order) -> str:
    text = f"{order.count} x {order.product}"
    return f"{text}: {total(order):.2f}"
"""

MONEY = '''def format_money(cents, currency="EUR"):
    """1234567 -> '12,345.67 EUR'."""
    return f"{cents / 100:,.2f} {currency}"
'''
MONEY_REPORT = """def format_money(cents):
    return str(cents / 100) + " EUR"


def report(sales):
    lines = [f"{name}: {format_money(cents)}" for name, cents in sorted(sales.items())]
    lines.append("total: " + format_money(sum(sales.values())))
    return "\\n".join(lines)
"""

MAILER = '''OUTBOX = []


def send(to, subject, text, *, reply_to):
    """Queue a mail. Answers go to `reply_to`, which has to be given since version 2."""
    OUTBOX.append({"to": to, "subject": subject, "text": text, "reply_to": reply_to})
'''
SIGNUP = """from mailer import send


def welcome(address, name):
    send(address, "Welcome", f"Hello {name}, good to have you here.")
"""
REMINDERS = """import mailer


def remind(address, days):
    if days > 30:
        mailer.send(address, "Last reminder", "Please pay now.")
    elif days > 14:
        mailer.send(address, "Reminder", "Please pay soon.")
"""

SEVERAL_FILES = (
    Task(
        name="rename_fetch_user",
        kind="several_files",
        half="dev",
        request=(
            "Rename fetch_user to load_user in store.py and wherever it is used (api.py and report.py). "
            "fetch_all keeps its name."
        ),
        files={"store.py": STORE, "api.py": STORE_API, "report.py": STORE_REPORT},
        check=Holds(
            "import api, report, store",
            (
                "store.load_user(1) == 'ann' and store.fetch_all() == ['ann', 'bob']",
                "not any('fetch_user' in read(name) for name in ('store.py', 'api.py', 'report.py'))",
                "api.handle('/users/2') == (200, 'bob') and api.handle('/users') == (200, ['ann', 'bob'])",
                "api.handle('/users/3') == (404, None) and api.handle('/x') == (404, None)",
                "report.line(1) == '1: Ann'",
            ),
        ),
        changes=True,
        solution={
            "store.py": STORE.replace("fetch_user", "load_user"),
            "api.py": STORE_API.replace("fetch_user", "load_user"),
            "report.py": STORE_REPORT.replace("fetch_user", "load_user"),
        },
    ),
    Task(
        name="move_timeout",
        kind="several_files",
        half="held_out",
        request=(
            "DEFAULT_TIMEOUT belongs into settings.py, beside the other settings. Move it there from client.py; the "
            "client should take it from settings."
        ),
        files={"client.py": CLIENT, "settings.py": SETTINGS},
        check=Holds(
            "import inspect, io, client, settings\n"
            "def opened(*arguments):\n"
            "    seen = []\n"
            "    def opener(url, timeout):\n"
            "        seen.append((url, timeout))\n"
            "        return io.BytesIO(b'ok')\n"
            "    return client.get(*arguments, opener=opener), seen[0]\n",
            (
                "settings.DEFAULT_TIMEOUT == 12.5",
                "'12.5' not in read('client.py')",
                "settings.RETRIES == 3 and settings.BASE_URL == 'http://localhost:8080'",
                "opened('/a') == (b'ok', ('http://localhost:8080/a', 12.5))",
                "opened('/a', 3) == (b'ok', ('http://localhost:8080/a', 3))",
            ),
        ),
        changes=True,
        solution={
            "client.py": replace_once(CLIENT, "DEFAULT_TIMEOUT = 12.5\n\n\n", "\n").replace(
                "timeout=DEFAULT_TIMEOUT", "timeout=settings.DEFAULT_TIMEOUT"
            ),
            "settings.py": SETTINGS + "DEFAULT_TIMEOUT = 12.5\n",
        },
    ),
    Task(
        name="order_discount",
        kind="several_files",
        half="dev",
        request=(
            "Orders get a discount. Add a field discount (in percent, default 0) to Order in order.py, and let total() "
            "in pricing.py subtract it: Order('pen', 2, 10.0, discount=25) costs 15.0."
        ),
        files={"order.py": ORDER, "pricing.py": PRICING, "summary.py": SUMMARY},
        check=Every(
            (
                Holds(
                    "from order import Order\nfrom pricing import total\nfrom summary import summary",
                    (
                        "total(Order('pen', 2, 10.0, discount=25)) == 15.0",
                        "total(Order('pen', 2, 10.0)) == 20.0 and Order('pen', 2, 10.0).discount == 0",
                        "total(Order('ink', 3, 3.33, 10)) == 8.99 and total(Order('ink', 1, 5.0, 100)) == 0",
                        "summary(Order('pen', 2, 10.0, discount=50)) == '2 x pen: 10.00'",
                        "Order('a', 1, 2.0) == Order('a', 1, 2.0)",
                    ),
                ),
                Keeps({"summary.py": SUMMARY}),
            )
        ),
        changes=True,
        solution={
            "order.py": ORDER + "    discount: float = 0\n",
            "pricing.py": replace_once(PRICING, "order.price, 2", "order.price * (1 - order.discount / 100), 2"),
        },
    ),
    Task(
        name="shared_format_money",
        kind="several_files",
        half="held_out",
        request=(
            "report.py has its own format_money, which is worse than the one in money.py. Remove it from report.py and "
            "import the one from money.py instead."
        ),
        files={"money.py": MONEY, "report.py": MONEY_REPORT},
        check=Every(
            (
                Holds(
                    "import money, report\nLINES = ['a: 1,234.50 EUR', 'b: 0.50 EUR', 'total: 1,235.00 EUR']",
                    (
                        "report.report({'b': 50, 'a': 123450}).split('\\n') == LINES",
                        "'def format_money' not in read('report.py')",
                        "report.report({}) == 'total: 0.00 EUR'",
                    ),
                ),
                Keeps({"money.py": MONEY}),
            )
        ),
        changes=True,
        solution={
            "report.py": "from money import format_money\n\n\n" + MONEY_REPORT[MONEY_REPORT.index("def report") :]
        },
    ),
    Task(
        name="reply_to_argument",
        kind="several_files",
        half="dev",
        request=(
            "send() in mailer.py now wants the keyword argument reply_to, but signup.py and reminders.py still call it "
            'without. Please update their calls: welcome mails use reply_to="hello@example.com", reminders '
            'reply_to="billing@example.com".'
        ),
        files={"mailer.py": MAILER, "signup.py": SIGNUP, "reminders.py": REMINDERS},
        check=Every(
            (
                Holds(
                    "import mailer, reminders, signup\n"
                    "def sent(function, *arguments):\n"
                    "    mailer.OUTBOX.clear()\n"
                    "    function(*arguments)\n"
                    "    return [tuple(mail.values()) for mail in mailer.OUTBOX]\n"
                    "HELLO = 'Hello Ann, good to have you here.'\n"
                    "BILLING = 'billing@example.com'\n",
                    (
                        "sent(signup.welcome, 'a@b', 'Ann') == [('a@b', 'Welcome', HELLO, 'hello@example.com')]",
                        "sent(reminders.remind, 'c', 15) == [('c', 'Reminder', 'Please pay soon.', BILLING)]",
                        "sent(reminders.remind, 'c', 31) == [('c', 'Last reminder', 'Please pay now.', BILLING)]",
                        "sent(reminders.remind, 'a@b', 14) == []",
                    ),
                ),
                Keeps({"mailer.py": MAILER}),
            )
        ),
        changes=True,
        solution={
            "signup.py": replace_once(SIGNUP, 'here.")', 'here.", reply_to="hello@example.com")'),
            "reminders.py": REMINDERS.replace('.")\n', '.", reply_to="billing@example.com")\n'),
        },
    ),
)
