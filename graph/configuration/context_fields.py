"""The fields of `AgentContext` as keyword arguments. Written by `tests/contract`; do not edit."""

from typing import Any, Literal, TypedDict

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from mendgraph.nodes.workspace.files.sandbox import StrPath


class ContextFields(TypedDict, total=False):
    """The fields of a run's context beside the options of a session; `AgentContext` describes them."""

    workspace: StrPath
    mode: Literal["read-only", "plan", "ask", "auto"]
    base_url: str | None
    protocol: Literal["text", "native", "auto"]
    edit_form: Literal["replace", "blocks", "patch", "auto"]
    temperature: float | None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None
    model_kwargs: dict[str, Any]
    use_responses_api: bool | None
    seed: int | None
    request_timeout_s: float
    idle_timeout_s: float
    provider_retries: int
    fallback_models: tuple[str, ...]
    window_tokens: int | None
    max_calls_per_session: int
    max_calls_per_turn: int
    max_input_tokens_per_session: int
    max_output_tokens_per_session: int
    max_input_tokens_per_turn: int | None
    max_output_tokens_per_turn: int | None
    max_output_tokens_per_call: int | None
    max_steps: int | None
    max_steps_soft: bool
    max_seconds: float | None
    max_cost_usd: float | None
    max_tokens_per_day: int | None
    max_cost_usd_per_day: float | None
    account: str
    account_days: bool
    max_tokens_per_account: int | None
    max_cost_usd_per_account: float | None
    on_limit: Literal["stop", "ask"]
    usd_per_million_input: float | None
    usd_per_million_output: float | None
    usd_per_million_cached_input: float | None
    usd_per_million_cache_write: float | None
    max_healing_attempts: int
    max_schema_repairs: int
    include_error_details: bool
    include_format_reminder: bool
    repeat_window: int
    loop_repeat_threshold: int
    loop_override_retries: int
    read_max_lines: int
    tool_timeout_s: float
    tool_timeouts_s: dict[str, PositiveFloat]
    tool_retries: int
    tool_retry_backoff_s: float
    tool_quotas: dict[str, NonNegativeInt]
    tool_calls_per_minute: dict[str, PositiveInt]
    role: str | None
    questions: bool
    delegation: bool
    writable_paths: tuple[str, ...]
    denied_paths: tuple[str, ...]
    strict: bool
    request_permits: bool
    offer: Literal["few", "all"]
    allowed_programs: tuple[str, ...]
    allowed_commands: tuple[str, ...]
    jobs: bool
    readable_folders: tuple[str, ...]
    sandbox: Literal["auto", "bubblewrap", "landlock", "container"]
    allowed_hosts: tuple[str, ...]
    allowed_private_hosts: tuple[str, ...]
    http_max_bytes: int
    http_timeout_s: float
    web_search: Literal["off", "brave", "tavily", "searxng"]
    hooks: Literal["off", "sandbox", "unconfined"]
    allowed_extensions: tuple[str, ...]
    evidence: bool
    checks: tuple[str, ...]
    checks_timeout_s: float
    require_checks: bool
    require_changes: bool
    diagnostics: bool
    format_edits: bool
    max_failed_tries: int
    keep_failed_edits: bool
    read_ahead: bool
    project_notes: bool
    memory: bool
    syntax_gate: Literal["off", "report", "refuse"]
    keep_days: float | None
    keep_runs: int | None
    keep_mb: int | None
    audit: bool
