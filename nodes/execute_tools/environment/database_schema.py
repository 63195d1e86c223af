"""The tables of a workspace's database. LangGraph makes the one for its checkpoints by itself."""

JOURNAL_TABLES = """
CREATE TABLE calls (
    id INTEGER PRIMARY KEY,
    thread TEXT NOT NULL,
    execution TEXT NOT NULL,
    step INTEGER NOT NULL,
    place INTEGER NOT NULL,
    tool TEXT NOT NULL,
    effect TEXT NOT NULL,
    arguments_sha256 TEXT NOT NULL,
    begun TEXT NOT NULL,
    outcome TEXT,
    UNIQUE (thread, execution, place)
);
CREATE TABLE changes (
    id INTEGER PRIMARY KEY,
    token TEXT NOT NULL UNIQUE,
    call INTEGER NOT NULL REFERENCES calls (id),
    state TEXT NOT NULL,
    made TEXT NOT NULL
);
CREATE INDEX changes_by_call ON changes (call);
CREATE INDEX changes_by_state ON changes (state);
CREATE TABLE effects (
    change INTEGER NOT NULL REFERENCES changes (id),
    place INTEGER NOT NULL,
    path BLOB NOT NULL,
    sha256_before TEXT NOT NULL,
    mode_before INTEGER,
    sha256_after TEXT NOT NULL,
    mode_after INTEGER,
    PRIMARY KEY (change, place)
) WITHOUT ROWID;
CREATE TABLE backups (
    sha256 TEXT PRIMARY KEY,
    data BLOB NOT NULL
);
"""
"""What was done to files, in the order of `id`; `backups` holds compressed bytes by the hash of the plain ones."""

RUN_TABLES = """
CREATE TABLE runs (
    id INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL UNIQUE,
    task TEXT NOT NULL,
    created TEXT NOT NULL,
    updated TEXT NOT NULL,
    turns INTEGER NOT NULL,
    request TEXT NOT NULL,
    state TEXT NOT NULL,
    kind TEXT NOT NULL DEFAULT '',
    reason TEXT NOT NULL DEFAULT '',
    message TEXT NOT NULL DEFAULT '',
    answer TEXT NOT NULL DEFAULT '',
    changed TEXT NOT NULL DEFAULT '[]',
    context TEXT NOT NULL,
    durability TEXT NOT NULL,
    parent TEXT NOT NULL DEFAULT '',
    forked_at INTEGER
);
"""
"""One row for each thread: what it was asked, with which context, and how its last turn ended."""

DICTIONARY_TABLE = """
CREATE TABLE dictionary (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    data BLOB NOT NULL
);
"""
"""What compressed checkpoints were made with; without these very bytes they cannot be read."""

WRITES_TABLE = """
CREATE TABLE writes (
    thread_id TEXT NOT NULL,
    checkpoint_ns TEXT NOT NULL DEFAULT '',
    checkpoint_id TEXT NOT NULL,
    task_id TEXT NOT NULL,
    task_path TEXT NOT NULL DEFAULT '',
    idx INTEGER NOT NULL,
    channel TEXT NOT NULL,
    type TEXT,
    value BLOB,
    PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id, task_id, idx)
) WITHOUT ROWID;
"""
"""LangGraph's own table, which it makes where it is missing; here its long keys are stored once, not twice."""

SCHEMA = JOURNAL_TABLES + RUN_TABLES + DICTIONARY_TABLE + WRITES_TABLE
"""Every table that a new database begins with."""
