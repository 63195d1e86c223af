"""Bug repairs, third part."""

from benchmarks.real_model.checking import Holds
from benchmarks.real_model.task import Task, replace_once

RETRY = r'''import time


def delays(attempts, base=0.5, cap=60.0):
    """Seconds to wait before each retry: doubled every time, but never more than `cap`."""
    return [min(cap, base * 2 * attempt) for attempt in range(attempts)]


def retry(function, attempts=5, base=0.5, cap=60.0, sleep=time.sleep, errors=(OSError,)):
    """Call `function` until it does not raise one of `errors`; the last error is raised."""
    waits = delays(attempts - 1, base, cap)
    for wait in waits:
        try:
            return function()
        except errors:
            sleep(wait)
    return function()
'''

# The only repair in a file with the line ends of Windows.
QUERY = r'''from urllib.parse import quote, unquote


def parse_query(text):
    """The parameters of a query string; one without a value has the value ''."""
    result = {}
    for pair in text.lstrip("?").split("&"):
        if not pair:
            continue
        name, value = (pair.split("=") + [""])[:2]
        result[unquote(name)] = unquote(value.replace("+", " "))
    return result


def build_query(parameters):
    """The opposite of parse_query."""
    return "&".join(f"{quote(name)}={quote(value, safe='')}" for name, value in parameters.items())
'''.replace("\n", "\r\n")

LRU = r'''from collections import OrderedDict


class LRUCache:
    """Keeps the `capacity` entries that were used last."""

    def __init__(self, capacity):
        if capacity < 1:
            raise ValueError("capacity must be at least 1")
        self.capacity = capacity
        self.hits = 0
        self.misses = 0
        self._entries = OrderedDict()

    def __len__(self):
        return len(self._entries)

    def __contains__(self, key):
        return key in self._entries

    def get(self, key, default=None):
        if key not in self._entries:
            self.misses += 1
            return default
        self.hits += 1
        self._entries.move_to_end(key)
        return self._entries[key]

    def put(self, key, value):
        self._entries[key] = value
        self._entries.move_to_end(key)
        if len(self._entries) > self.capacity:
            self._entries.popitem(last=True)

    def clear(self):
        self._entries.clear()
        self.hits = self.misses = 0
'''

MATRIX = r'''"""Matrices as lists of rows."""


def shape(matrix):
    return len(matrix), len(matrix[0])


def identity(size):
    return [[1 if row == column else 0 for column in range(size)] for row in range(size)]


def transpose(matrix):
    return [list(column) for column in zip(*matrix)]


def add(left, right):
    if shape(left) != shape(right):
        raise ValueError("the matrices have different shapes")
    return [[a + b for a, b in zip(*rows)] for rows in zip(left, right)]


def multiply(left, right):
    rows, inner = shape(left)
    if inner != len(right):
        raise ValueError("the inner dimensions differ")
    columns = len(right[0])
    result = [[0] * columns for _ in range(rows)]
    for i in range(rows):
        for j in range(columns):
            result[i][j] = sum(left[i][k] * right[k][j] for k in range(rows))
    return result


def power(matrix, exponent):
    result = identity(len(matrix))
    for _ in range(exponent):
        result = multiply(result, matrix)
    return result
'''

LIMITER = r'''"""A sliding window: so many requests in so many seconds, for each user."""

from collections import defaultdict, deque


class RateLimiter:
    def __init__(self, limit, seconds):
        self.limit = limit
        self.seconds = seconds
        self._times = defaultdict(deque)

    def allow(self, user, now):
        """Whether the user may send a request at the time `now`; an allowed request is counted."""
        times = self._times[user]
        self._forget(times, now)
        if len(times) > self.limit:
            return False
        times.append(now)
        return True

    def remaining(self, user, now):
        times = self._times[user]
        self._forget(times, now)
        return max(0, self.limit - len(times))

    def _forget(self, times, now):
        while times and times[0] <= now - self.seconds:
            times.popleft()
'''

REPAIRS_C = (
    Task(
        name="retry_backoff",
        kind="repair",
        half="held_out",
        request="retry.py: delays(4, base=1.0) should be [1.0, 2.0, 4.0, 8.0], but it is [0.0, 2.0, 4.0, 6.0].",
        files={"retry.py": RETRY},
        check=Holds(
            "from retry import delays, retry\n"
            "def waited(failures):\n"
            "    waits, left = [], [OSError()] * failures\n"
            "    def attempt():\n"
            "        if left:\n"
            "            raise left.pop()\n"
            "        return 'done'\n"
            "    return retry(attempt, sleep=waits.append), waits\n",
            (
                "delays(4, base=1.0) == [1.0, 2.0, 4.0, 8.0]",
                "delays(3) == [0.5, 1.0, 2.0] and delays(0) == []",
                "delays(6, base=3, cap=20) == [3, 6, 12, 20, 20, 20]",
                "waited(2) == ('done', [0.5, 1.0]) and waited(0) == ('done', [])",
                "raises(OSError, waited, 5)",
            ),
        ),
        changes=True,
        solution={"retry.py": replace_once(RETRY, "base * 2 * attempt", "base * 2**attempt")},
    ),
    Task(
        name="query_string",
        kind="repair",
        half="dev",
        request='parse_query("q=a=b") in query.py returns {"q": "a"}, expected {"q": "a=b"}. Please repair it.',
        files={"query.py": QUERY},
        check=Holds(
            "from query import build_query, parse_query",
            (
                "parse_query('q=a=b') == {'q': 'a=b'}",
                "parse_query('?token=YQ==&x=1') == {'token': 'YQ==', 'x': '1'}",
                "parse_query('a=1&flag&b=two+words') == {'a': '1', 'flag': '', 'b': 'two words'}",
                "parse_query('name=%C3%A4&empty=') == {'name': 'ä', 'empty': ''}",
                "parse_query('') == {}",
                "parse_query(build_query({'a b': 'c&d=e'})) == {'a b': 'c&d=e'}",
            ),
        ),
        changes=True,
        solution={"query.py": replace_once(QUERY, '(pair.split("=") + [""])', '(pair.split("=", 1) + [""])')},
    ),
    Task(
        name="lru_eviction",
        kind="repair",
        half="held_out",
        request=(
            "The cache in lru.py throws away the wrong entries. When it is full, what I have just put in is gone again "
            "and the oldest entry stays forever."
        ),
        files={"lru.py": LRU},
        check=Holds(
            "from lru import LRUCache\n"
            "def filled(*keys):\n"
            "    cache = LRUCache(2)\n"
            "    for key in keys:\n"
            "        cache.get(key) if key.isupper() else cache.put(key, key * 2)\n"
            "    return cache\n"
            "def used():\n"
            "    cache = LRUCache(2)\n"
            "    cache.put('a', 1), cache.put('b', 2), cache.get('a'), cache.put('c', 3)\n"
            "    return cache\n",
            (
                "filled('a', 'b', 'c').get('c') == 'cc'",
                "'a' not in filled('a', 'b', 'c') and len(filled('a', 'b', 'c')) == 2",
                "used().get('a') == 1 and used().get('b') is None and used().get('c') == 3",
                "'b' not in filled('a', 'b', 'a', 'c')",
                "raises(ValueError, LRUCache, 0)",
            ),
        ),
        changes=True,
        solution={"lru.py": replace_once(LRU, "popitem(last=True)", "popitem(last=False)")},
    ),
    Task(
        name="matrix_multiply",
        kind="repair",
        half="dev",
        request="multiply in matrix.py gives wrong results (or an IndexError) for matrices that are not square.",
        files={"matrix.py": MATRIX},
        check=Holds(
            "from matrix import add, identity, multiply, power, transpose",
            (
                "multiply([[1, 2, 3]], [[4], [5], [6]]) == [[32]]",
                "multiply([[1], [2]], [[3, 4]]) == [[3, 4], [6, 8]]",
                "multiply([[1, 2, 3], [4, 5, 6]], [[1, 0], [0, 1], [1, 1]]) == [[4, 5], [10, 11]]",
                "power([[1, 1], [1, 0]], 5) == [[8, 5], [5, 3]] and power([[2]], 0) == [[1]]",
                "raises(ValueError, multiply, [[1, 2]], [[1, 2]])",
                "transpose([[1, 2, 3]]) == [[1], [2], [3]] and add([[1]], [[2]]) == [[3]]",
            ),
        ),
        changes=True,
        solution={"matrix.py": replace_once(MATRIX, "for k in range(rows)", "for k in range(inner)")},
    ),
    Task(
        name="rate_limiter",
        kind="repair",
        half="held_out",
        request="The rate limiter in limiter.py always lets one request too many through. Please correct it.",
        files={"limiter.py": LIMITER},
        check=Holds(
            "from limiter import RateLimiter\n"
            "def allowed(limit, *times):\n"
            "    limiter = RateLimiter(limit, 10)\n"
            "    return [limiter.allow('ann', now) for now in times]\n"
            "two = RateLimiter(1, 10)\n",
            (
                "allowed(2, 0, 1, 2) == [True, True, False]",
                "allowed(1, 0, 9, 10, 11) == [True, False, True, False]",
                "allowed(0, 1) == [False]",
                "allowed(2, 0, 5, 9, 10, 12, 15) == [True, True, False, True, False, True]",
                "two.allow('a', 1) and two.allow('b', 1) and not two.allow('a', 2)",
                "two.remaining('a', 2) == 0 and two.remaining('c', 2) == 1",
            ),
        ),
        changes=True,
        solution={"limiter.py": replace_once(LIMITER, "len(times) > self.limit", "len(times) >= self.limit")},
    ),
)
