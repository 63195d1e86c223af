"""The context of a run: its permissions, model and limits. LangGraph Studio shows it as a form.

It is stored in the state when a turn begins, so that a resumed run has the same limits. It has no secrets: the
endpoint's key comes from `OPENAI_API_KEY`.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import ConfigDict, NonNegativeInt, PositiveFloat, PositiveInt, field_validator, model_validator

from mendgraph.graph.configuration.presets import UNATTENDED, choose_profile, with_dots
from mendgraph.graph.configuration.settings import (
    MAX_CALLS_PER_TURN_LIMIT,
    MOST,
    MOST_RETRIES,
    FolderName,
    Setting,
    address_without_login,
    limit,
    model_kwargs_problem,
    named_account,
    setting,
    usable_fallbacks,
    usable_patterns,
    usable_prices,
)
from mendgraph.nodes.call_model.budget import APILimits
from mendgraph.nodes.call_model.endpoint import ModelOptions
from mendgraph.nodes.call_model.ledger import RunLimits
from mendgraph.nodes.call_model.prices import Price
from mendgraph.nodes.call_model.prompts.profiles import find_profile
from mendgraph.nodes.heal.corrective_prompt import SelfHealingConfig
from mendgraph.nodes.language.display import LEAST_USD
from mendgraph.nodes.loop_check.repetition import LoopConfig
from mendgraph.nodes.records import Profile, Record

if TYPE_CHECKING:
    from mendgraph.nodes.execute_tools.call_policy import CallRules
    from mendgraph.nodes.execute_tools.network.url_rules import NetworkRules
    from mendgraph.nodes.workspace.files.sandbox import StrPath

REPLY_TOKENS = 2_048
"""Default output tokens of one reply."""

_DECIDED_LIMITS = frozenset({"api", "max_output_tokens_per_call"})


class AgentContext(Record):
    """One run's permissions, model and limits. Every field has a safe default."""

    # An input may hold a password, such as an address with a login, so errors do not repeat it.
    model_config = ConfigDict(allow_inf_nan=False, hide_input_in_errors=True)

    workspace: FolderName = setting(
        ".",
        "Folder that the agent works in; '.' is where the command or the server was started. Nothing outside of it is"
        " touched.",
        min_length=1,
    )
    mode: Literal["read-only", "plan", "ask", "auto"] = setting(
        "auto",
        "read-only: no changes. plan: no changes; the answer is a plan. ask: a person approves each change. auto:"
        " changes within the rules.",
        trust=("read-only", "plan", "ask", "auto"),
        option="--mode",
        panel="Permissions",
    )

    model: str | None = setting(
        None,
        "Model: a name at the endpoint, 'provider:name' such as 'anthropic:claude-sonnet-4-6', or 'local' for the"
        " embedded model. Default: from the environment.",
        option="--model,-m NAME",
        panel="Model",
    )
    base_url: str | None = setting(
        None,
        "URL of the OpenAI-compatible endpoint, or of the model's provider. Default: OPENAI_BASE_URL, or the"
        " provider's URL.",
        option="--base-url URL",
        panel="Model",
    )
    protocol: Literal["text", "native", "auto"] = setting(
        "auto",
        "How the model writes tool calls. auto: text with the embedded model, otherwise native.",
        trust="any",
        option="--protocol",
        panel="Model",
    )
    edit_form: Literal["replace", "blocks", "patch", "auto"] = setting(
        "auto", "How the model writes edits. auto: blocks with the embedded model, otherwise replace.", trust="any"
    )
    temperature: float | None = setting(
        None,
        "Sampling temperature of the first try. Default: the model's default, or 0 for a small model.",
        trust="any",
        option="--temperature T",
        panel="Model",
        ge=0.0,
        le=2.0,
    )
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = setting(
        None,
        "Reasoning effort: none, minimal, low, medium, high, xhigh or max. Default: as the model is set up.",
        trust=("none", "minimal", "low", "medium", "high", "xhigh", "max"),
        option="--reasoning-effort EFFORT",
        panel="Model",
    )
    model_kwargs: dict[str, Any] = setting(
        {}, "Further settings of the chat model: fields of its class, or of the endpoint's requests."
    )
    use_responses_api: bool | None = setting(
        None, "Use OpenAI's Responses API. Default: only for OpenAI models that have no other API."
    )
    seed: int | None = setting(
        None,
        "Sampling seed, if the endpoint supports one.",
        trust="any",
        option="--seed N",
        panel="Model",
        ge=0,
        le=2**31 - 1,
    )
    request_timeout_s: float = setting(
        300.0, "Longest time for one model call, in seconds.", trust="less", gt=0, le=3_600
    )
    idle_timeout_s: float = setting(
        120.0, "Longest pause within a streamed reply, in seconds.", trust="less", gt=0, le=3_600
    )
    provider_retries: int = setting(
        2, "Retries after a transient endpoint failure.", trust="less", ge=0, le=MOST_RETRIES
    )
    fallback_models: tuple[str, ...] = setting(
        (),
        "Fallback models, in order: 'name', 'local' or 'name @ https://host/v1'.",
        option="--fallback MODEL",
        panel="Model",
    )
    window_tokens: int | None = setting(
        None,
        "Context window of the model, input and output together. Default: by its name.",
        option="--window-tokens N",
        panel="Model",
        ge=1_024,
        le=MOST,
    )

    max_calls_per_session: int = limit(100, "Model calls in one thread.")
    max_calls_per_turn: int = setting(
        10,
        "Model calls in one turn.",
        trust="less",
        option="--max-calls N",
        panel="Limits",
        ge=1,
        le=MAX_CALLS_PER_TURN_LIMIT,
    )
    max_input_tokens_per_session: int = limit(100_000, "Input tokens in one thread.", option="--max-input-tokens N")
    max_output_tokens_per_session: int = limit(50_000, "Output tokens in one thread.", option="--max-output-tokens N")
    max_input_tokens_per_turn: int | None = limit(None, "Input tokens in one turn. Default: no limit.")
    max_output_tokens_per_turn: int | None = limit(None, "Output tokens in one turn. Default: no limit.")
    max_output_tokens_per_call: int | None = setting(
        None,
        "Output tokens in one reply. Default: 2,048; for a reasoning model, the rest of the budget.",
        trust="shorter",
        ge=16,
        le=MOST,
    )
    max_steps: int | None = limit(None, "Rounds of tool calls in one turn. Default: no limit.", option="--max-steps N")
    max_steps_soft: bool = setting(False, "Only report when max_steps is reached; do not stop.", trust="off")
    max_seconds: float | None = limit(
        None, "Seconds in one turn, for model calls and tools. Default: no limit.", option="--max-seconds S", ge=0.1
    )
    max_cost_usd: float | None = limit(
        None, "USD in one thread; needs a known price. Default: no limit.", option="--max-cost-usd USD", ge=LEAST_USD
    )
    max_tokens_per_day: int | None = limit(
        None,
        "Input and output tokens in one UTC day, in all workspaces. Default: no limit.",
        option="--max-tokens-per-day N",
    )
    max_cost_usd_per_day: float | None = limit(
        None,
        "USD in one UTC day, in all workspaces. Default: no limit.",
        option="--max-cost-usd-per-day USD",
        ge=LEAST_USD,
    )
    account: str = setting(
        "",
        "Account for limits over many runs: the name of a project, a batch or a user.",
        option="--account NAME",
        panel="Limits",
    )
    account_days: bool = setting(
        False, "Limits per day count only the runs of this account, not all runs.", trust="off"
    )
    max_tokens_per_account: int | None = limit(
        None,
        "Input and output tokens of the account, in total. Default: no limit.",
        option="--max-tokens-per-account N",
    )
    max_cost_usd_per_account: float | None = limit(
        None,
        "USD of the account, in total. Default: no limit.",
        option="--max-cost-usd-per-account USD",
        ge=LEAST_USD,
    )
    on_limit: Literal["stop", "ask"] = setting(
        "stop",
        "At a limit of the run, stop or ask a person to raise it. If nobody can answer, the run stops.",
        trust=("stop", "ask"),
        option="--on-limit",
        panel="Limits",
    )
    usd_per_million_input: float | None = setting(
        None, "Price of a million input tokens, in USD. Default: from the price list.", ge=0
    )
    usd_per_million_output: float | None = setting(
        None, "Price of a million output tokens, in USD. Default: from the price list.", ge=0
    )
    usd_per_million_cached_input: float | None = setting(
        None, "Price of a million input tokens read from the cache. Default: like other input.", ge=0
    )
    usd_per_million_cache_write: float | None = setting(
        None, "Price of a million input tokens written into the cache. Default: like other input.", ge=0
    )

    max_healing_attempts: int = setting(3, "Corrections in a row for malformed calls.", trust="less", ge=0, le=20)
    max_schema_repairs: int = setting(
        2, "Corrections in a row for arguments that do not fit.", trust="less", ge=0, le=20
    )
    include_error_details: bool = setting(
        True,
        "Name the errors in corrective prompts.",
        trust="any",
        option="--error-details/--no-error-details",
        panel="Model",
    )
    include_format_reminder: bool = setting(
        True,
        "Repeat the format in corrective prompts.",
        trust="any",
        option="--format-reminder/--no-format-reminder",
        panel="Model",
    )
    repeat_window: int = setting(3, "Number of recent actions that loop detection compares.", ge=2, le=50)
    loop_repeat_threshold: int = setting(
        3, "Number of identical actions in the window that make a loop.", trust="less", ge=2, le=50
    )
    loop_override_retries: int = setting(
        1, "Refused repeats before a loop ends the run; 0 ends it at the loop.", trust="less", ge=0, le=50
    )
    read_max_lines: int = limit(500, "Lines of a file in one read_file.")
    tool_timeout_s: float = setting(30.0, "Longest time for one tool call, in seconds.", trust="less", gt=0, le=3_600)
    tool_timeouts_s: dict[str, PositiveFloat] = setting(
        {},
        "Longest time for one call by tool, in seconds, instead of tool_timeout_s.",
        trust="times",
        protects=True,
    )
    tool_retries: int = setting(1, "Retries of a tool that raises RetryableToolError.", trust="less", ge=0, le=10)
    tool_retry_backoff_s: float = setting(0.5, "Seconds before the first retry of a tool.", ge=0, le=60)
    tool_quotas: dict[str, NonNegativeInt] = setting({}, "Calls in one turn, by tool.", trust="limits")
    tool_calls_per_minute: dict[str, PositiveInt] = setting({}, "Calls per minute, by tool.", trust="limits")
    role: str | None = setting(
        None,
        "Allowed tools: reader, editor, operator, or your own role. Default: all tools.",
        trust=("reader", "editor", "operator", None),
        option="--role ROLE",
        panel="Permissions",
        choices=("reader", "editor", "operator"),
    )
    questions: bool = setting(
        False, "The model may ask a person (ask_user); on in terminal and editors.", trust="off", panel="Permissions"
    )
    delegation: bool = setting(
        False,
        "Offer the tool delegate, which gives parts of the task to child runs within the same budget.",
        trust="off",
        option="--delegate",
        panel="Permissions",
    )
    writable_paths: tuple[str, ...] = setting(
        (),
        "File or folder that may be changed; nothing else may, and no programs run. Default: all that the rules allow.",
        trust="places",
        protects=True,
        option="--writable PATH",
        panel="Permissions",
    )
    denied_paths: tuple[str, ...] = setting(
        (),
        "Files that no tool and no program may use, as a .gitignore pattern without '!': private/, *.csv,"
        " docs/**/draft.md. Case does not matter. A workspace's settings can only add patterns.",
        trust="more",
        option="--deny PATTERN",
        panel="Permissions",
        max_length=200,
    )
    strict: bool = setting(
        False,
        "For untrusted repositories: files that run later, manifests, tests and documents are changed, and files are"
        " deleted, only if the request names their path. Programs change no file.",
        trust="on",
        option="--strict/--no-strict",
        panel="Permissions",
    )
    request_permits: bool = setting(
        True, "A request may permit a protected file by its name; not in Actions, batches and servers.", trust="off"
    )
    offer: Literal["few", "all"] = setting(
        "few", "Tools that the model sees. few: the usual ones, which need fewer tokens.", trust="any"
    )
    allowed_programs: tuple[str, ...] = setting(
        (),
        "Program that run_command may start, in a sandbox without network. Default: no programs.",
        trust="part",
        option="--allow-program NAME",
        panel="Permissions",
    )
    allowed_commands: tuple[str, ...] = setting(
        (),
        "First words of a command that may run with any further arguments: 'git log', pytest.",
        trust="part",
        option="--allow-command PREFIX",
        panel="Permissions",
    )
    jobs: bool = setting(
        False, "Commands that exceed their time continue as jobs.", trust="off", option="--jobs/--no-jobs"
    )
    readable_folders: tuple[str, ...] = setting(
        (),
        "Folders outside of the workspace that commands may read, such as the installation of a language.",
        trust="part",
        protects=True,
    )
    sandbox: Literal["auto", "bubblewrap", "landlock", "container"] = setting(
        "auto",
        "Sandbox of programs. auto: the first that starts. landlock: needs no user namespaces; uses a copy of the"
        " workspace. container: no sandbox but the surrounding container, which programs may change.",
        option="--sandbox",
        panel="Permissions",
    )
    allowed_hosts: tuple[str, ...] = setting(
        (),
        "Host that http_get may request: docs.python.org, *.example.com, host:8080. Default: no network.",
        trust="part",
        option="--allow-host HOST",
        panel="Permissions",
    )
    allowed_private_hosts: tuple[str, ...] = setting(
        (),
        "Host of allowed_hosts that may have a private address, such as a company's server.",
        trust="part",
        option="--allow-private-host HOST",
        panel="Permissions",
    )
    http_max_bytes: int = limit(1_000_000, "Bytes of one response of http_get or web_search.")
    http_timeout_s: float = setting(20.0, "Seconds for one http_get or web_search.", trust="less", gt=0, le=3_600)
    web_search: Literal["off", "brave", "tavily", "searxng"] = setting(
        "off", "Service of web_search; needs its key.", trust="disable", option="--web-search", panel="Permissions"
    )
    hooks: Literal["off", "sandbox", "unconfined"] = setting(
        "off", "How the trusted hooks of .claude/settings.json run; unconfined: with your rights."
    )
    allowed_extensions: tuple[str, ...] = setting(
        (),
        "File extensions that may be used, such as .py or .md. Default: all that the rules allow.",
        trust="extensions",
    )
    evidence: bool = setting(
        True,
        "Check changes with examples in docstrings and the request, and the project's tests, in a read-only sandbox.",
        trust="off",
        protects=True,
        option="--evidence/--no-evidence",
        panel="Checks",
    )
    checks: tuple[str, ...] = setting(
        (),
        "Command that must succeed before a run is FINISHED, such as 'pytest -q', in the same sandbox. Named tests"
        " that failed before the change are reported and do not count.",
        option="--check COMMAND",
        panel="Checks",
    )
    checks_timeout_s: float = setting(
        60.0, "Longest time for one check, in seconds.", trust="less", protects=True, gt=0, le=3_600
    )
    require_checks: bool = setting(
        False,
        "If no check covers the changes, end as not_checked (exit code 5) instead of FINISHED.",
        trust="on",
        option="--require-checks/--no-require-checks",
        panel="Checks",
    )
    require_changes: bool = setting(
        False,
        "If no file was changed, end as SYSTEM_ERROR (nothing_changed) instead of FINISHED.",
        trust="on",
        option="--require-changes/--no-require-changes",
        panel="Checks",
    )
    diagnostics: bool = setting(
        False,
        "Show the model new linter messages after its edits.",
        trust="off",
        option="--diagnostics",
        panel="Checks",
    )
    format_edits: bool = setting(
        False, "Format edits with the project's formatter.", trust="off", option="--format-edits", panel="Checks"
    )
    max_failed_tries: int = setting(
        4,
        "Failed edits or checks in a row that end the run; at most 4 in the block form.",
        trust="less",
        ge=1,
        le=100,
    )
    keep_failed_edits: bool = setting(
        False,
        "Keep the changes of a run that ends as edits_failed or checks_failed. By default they are taken back, and"
        " `mendgraph apply` restores them.",
        trust="any",
        protects=True,
        option="--keep-failed-edits",
        panel="Checks",
    )
    read_ahead: bool = setting(True, "Read the files that the request names before the first model call.", trust="any")
    project_notes: bool = setting(
        True,
        "Show AGENTS.md or CLAUDE.md of the workspace, and the names of skills, to models that are not small.",
        trust="off",
        option="--project-notes/--no-project-notes",
    )
    memory: bool = setting(
        False,
        "Models that are not small can keep notes for later runs in this workspace.",
        trust="off",
        option="--memory/--no-memory",
    )
    syntax_gate: Literal["off", "report", "refuse"] = setting(
        "report",
        "If an edit breaks the syntax of a Python, JSON, TOML or YAML file: report it to the model, or refuse it.",
        trust=("refuse", "report", "off"),
    )
    keep_days: float | None = setting(
        None, "Delete runs automatically after so many days, with all their data. Default: never.", ge=1
    )
    keep_runs: int | None = setting(
        None, "Keep so many runs of a workspace; delete older ones automatically. Default: all.", ge=1, le=MOST
    )
    keep_mb: int | None = setting(
        None, "Keep so many MB of checkpoints of a workspace; delete older runs. Default: all.", ge=1, le=MOST
    )
    audit: bool = setting(True, "Write a log of all calls to the run's folder.", trust="on")
    system_prompt: str = setting("", "Your instructions, after mendgraph's own in the system prompt.")
    response_format: dict[str, Any] | None = setting(
        None, "JSON schema of a value that the model must return with its answer. Default: text only."
    )

    @classmethod
    def unattended(cls, workspace: "StrPath" = ".", **changes: Any) -> Self:
        """Return the context of an unattended task: `UNATTENDED`, replaced by these fields.

        Changes are made without asking, tests in the sandbox are required, and limits fit a task of an hour on a hosted
        model. It works in the workspace itself; the command `mendgraph --unattended` works in a branch.
        """
        return cls(**{**UNATTENDED, "workspace": workspace, **changes})

    @field_validator("model_kwargs")
    @classmethod
    def _no_key_in_the_settings(cls, settings: dict[str, Any]) -> dict[str, Any]:
        problem = model_kwargs_problem(settings, AgentContext.model_fields.keys())
        if problem:
            raise ValueError(problem)
        return settings

    _base_url = field_validator("base_url")(address_without_login)
    _account = field_validator("account")(named_account)
    _extensions = field_validator("allowed_extensions")(with_dots)
    _patterns = field_validator("denied_paths")(usable_patterns)
    _fallbacks = field_validator("fallback_models")(usable_fallbacks)
    _prices = model_validator(mode="after")(usable_prices)

    def price(self) -> Price | None:
        """Return the price of every model by this context; None if it has no prices."""
        if self.usd_per_million_input is None or self.usd_per_million_output is None:
            return None
        return Price(
            input=self.usd_per_million_input,
            output=self.usd_per_million_output,
            cached_input=self.usd_per_million_cached_input,
            cache_write=self.usd_per_million_cache_write,
        )

    def model_options(self) -> ModelOptions:
        """Return the options of the run's chat model."""
        return ModelOptions(**{name: getattr(self, name) for name in ModelOptions.model_fields})

    def profile(self, embedded: bool, model: str, *, tools: bool = True, thinks: bool = False) -> Profile:
        """Return the profile of a turn: that of the model's family, with the settings of this context.

        Without native `tools` the protocol is text; `thinks`: the chat model is configured to reason.
        """
        family = find_profile(model)
        return choose_profile(
            family,
            self.protocol if tools else "text",
            self.edit_form,
            embedded=embedded,
            reasoning=thinks or family.reasoning or self.reasoning_effort not in (None, "none"),
        )

    def limits(self, profile: Profile | None = None) -> RunLimits:
        """Return the limits for the ledger."""
        thinks = profile is not None and profile.reasoning  # then the budget alone bounds a reply, thoughts included
        return RunLimits(
            api=APILimits(*(getattr(self, name) for name in APILimits._fields)),
            max_output_tokens_per_call=self.max_output_tokens_per_call or (None if thinks else REPLY_TOKENS),
            **{name: getattr(self, name) for name in RunLimits.model_fields if name not in _DECIDED_LIMITS},
        )

    def healing(self, profile: Profile) -> SelfHealingConfig:
        """Return how often and how explicitly unusable replies are corrected."""
        return SelfHealingConfig(
            max_retries=self.max_healing_attempts,
            include_error_details=self.include_error_details,
            include_format_reminder=self.include_format_reminder,
            max_schema_repairs=self.max_schema_repairs,
            max_claims=max(1, self.max_failed_tries - 2) if profile.small else 1,
        )

    def calls(self, allowed: frozenset[str]) -> "CallRules":
        """Return the rules of tool calls; `allowed` are the tools of the run's role."""
        from mendgraph.nodes.execute_tools.call_policy import CallRules, RateLimit, RetryPolicy

        # The checks and the tests, and both again on the files before the changes.
        of_checks = 2 * self.checks_timeout_s * (len(self.checks) + 1)
        return CallRules(
            timeouts={"run_checks": of_checks, **self.tool_timeouts_s},
            retries=RetryPolicy(self.tool_retries, self.tool_retry_backoff_s, ()),
            allowed=allowed,
            read_only=self.is_read_only,
            rate_limits={name: RateLimit(calls, 60.0) for name, calls in self.tool_calls_per_minute.items()},
            quotas=self.tool_quotas,
        )

    @property
    def is_read_only(self) -> bool:
        """Whether the mode allows no changes."""
        return self.mode in {"read-only", "plan"}

    def network(self) -> "NetworkRules":
        """Return the rules of http_get."""
        from mendgraph.nodes.execute_tools.network.url_rules import NetworkRules

        return NetworkRules(
            hosts=self.allowed_hosts,
            allow_private=self.allowed_private_hosts,
            max_bytes=self.http_max_bytes,
            timeout_s=self.http_timeout_s,
        )

    def network_problems(self) -> tuple[str, ...]:
        """Return the problems of the allowed hosts, one sentence each."""
        if not (self.allowed_hosts or self.allowed_private_hosts):
            return ()
        from mendgraph.nodes.execute_tools.network.url_rules import rule_problems

        return rule_problems(self.network())

    def loop(self) -> LoopConfig:
        """Return the configuration of loop control."""
        return LoopConfig(
            window=self.repeat_window,
            threshold=self.loop_repeat_threshold,
            max_overrides=self.loop_override_retries,
            max_failed_tries=self.max_failed_tries,
            require_checks=self.require_checks,
            require_changes=self.require_changes,
        )


SETTINGS: Mapping[str, Setting] = {
    name: next(entry for entry in field.metadata if isinstance(entry, Setting))
    for name, field in AgentContext.model_fields.items()
}
"""The metadata of each field."""
