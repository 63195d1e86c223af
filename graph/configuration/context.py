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
    from pydantic import ValidationInfo

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
        "Folder that the agent works in; '.' is where the command or the server was started. Nothing outside it "
        "is touched.",
        min_length=1,
    )
    mode: Literal["read-only", "plan", "ask", "auto"] = setting(
        "auto",
        "read-only: no changes. plan: no changes, and the answer is a plan. ask: a person approves each change. auto:"
        " changes inside the rules.",
        trust=("read-only", "plan", "ask", "auto"),
        option="--mode",
        panel="Permissions",
    )

    model: str | None = setting(
        None,
        "Model: a name at the endpoint, 'provider:name' such as 'anthropic:claude-sonnet-4-6', or 'local' for the "
        "embedded one. Default: found from the environment.",
        option="--model,-m NAME",
        panel="Model",
    )
    base_url: str | None = setting(
        None,
        "Address of the OpenAI-compatible endpoint, or of the provider before the model's name. Default: "
        "OPENAI_BASE_URL, or the provider's own.",
        option="--base-url URL",
        panel="Model",
    )
    protocol: Literal["text", "native", "auto"] = setting(
        "auto",
        "How calls travel. auto: text with the embedded model, native elsewhere.",
        trust="any",
        option="--protocol",
        panel="Model",
    )
    edit_form: Literal["replace", "blocks", "patch", "auto"] = setting(
        "auto", "How edits are written. auto: fenced blocks with the embedded model, replace elsewhere.", trust="any"
    )
    temperature: float | None = setting(
        None,
        "Sampling temperature of the first try. Default: the model's own, and 0 for a small model.",
        trust="any",
        option="--temperature T",
        panel="Model",
        ge=0.0,
        le=2.0,
    )
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = setting(
        None,
        "How long a reasoning model thinks: none, minimal, low, medium, high, xhigh or max. Default: as it is set up.",
        trust=("none", "minimal", "low", "medium", "high", "xhigh", "max"),
        option="--reasoning-effort EFFORT",
        panel="Model",
    )
    model_kwargs: dict[str, Any] = setting(
        {}, "More settings, handed to the chat model: fields of its class, or of an endpoint's requests."
    )
    use_responses_api: bool | None = setting(
        None, "Use OpenAI's Responses API. Default: only for models of OpenAI's that have no other."
    )
    seed: int | None = setting(
        None,
        "Sampling seed, where the endpoint honours one.",
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
        120.0, "Longest silence in the middle of a reply that has begun, in seconds.", trust="less", gt=0, le=3_600
    )
    provider_retries: int = setting(
        2, "Further tries after a transient endpoint failure.", trust="less", ge=0, le=MOST_RETRIES
    )
    fallback_models: tuple[str, ...] = setting(
        (),
        "Models to ask in turn where the model fails: 'name', 'local' or 'name @ https://host/v1'.",
        option="--fallback MODEL",
        panel="Model",
    )
    window_tokens: int | None = setting(
        None,
        "The model's window, input and output together. Default: by its name.",
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
        "Output tokens in one reply. Default: 2,048, and for a reasoning model what the budget has left.",
        trust="shorter",
        ge=16,
        le=MOST,
    )
    max_steps: int | None = limit(None, "Rounds of tool calls in one turn. Default: no limit.", option="--max-steps N")
    max_steps_soft: bool = setting(False, "Only report when max_steps is passed, instead of stopping.", trust="off")
    max_seconds: float | None = limit(
        None, "Seconds in model calls and tools in one turn.", option="--max-seconds S", ge=0.1
    )
    max_cost_usd: float | None = limit(
        None, "USD in one thread; the model needs a known price.", option="--max-cost-usd USD", ge=LEAST_USD
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
        "Whose spending this is, for limits over many runs: a project, a batch or a user.",
        option="--account NAME",
        panel="Limits",
    )
    account_days: bool = setting(
        False, "Count the limits of a day against this account's runs alone, instead of all runs.", trust="off"
    )
    max_tokens_per_account: int | None = limit(
        None,
        "Input and output tokens that the account may ever use. Default: no limit.",
        option="--max-tokens-per-account N",
    )
    max_cost_usd_per_account: float | None = limit(
        None,
        "USD that the account may ever use. Default: no limit.",
        option="--max-cost-usd-per-account USD",
        ge=LEAST_USD,
    )
    on_limit: Literal["stop", "ask"] = setting(
        "stop",
        "What happens at a limit of the run. ask: a person may raise it; where nobody can answer, the run stops.",
        trust=("stop", "ask"),
        option="--on-limit",
        panel="Limits",
    )
    usd_per_million_input: float | None = setting(
        None, "Price of a million input tokens, in USD. Default: as the price list has it.", ge=0
    )
    usd_per_million_output: float | None = setting(
        None, "Price of a million output tokens, in USD. Default: as the price list has it.", ge=0
    )
    usd_per_million_cached_input: float | None = setting(
        None, "Price of a million input tokens from the endpoint's cache. Default: like other input.", ge=0
    )
    usd_per_million_cache_write: float | None = setting(
        None, "Price of a million input tokens written into its cache. Default: like other input.", ge=0
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
    repeat_window: int = setting(3, "Actions that loop control looks back on.", ge=2, le=50)
    loop_repeat_threshold: int = setting(
        3, "Identical actions in the window that are a loop.", trust="less", ge=2, le=50
    )
    loop_override_retries: int = setting(
        1, "Refused repeats of a loop that end the run; 0 ends it at the loop itself.", trust="less", ge=0, le=50
    )
    read_max_lines: int = limit(500, "Most lines of a file that one read_file shows.")
    tool_timeout_s: float = setting(30.0, "Longest time for one tool call, in seconds.", trust="less", gt=0, le=3_600)
    tool_timeouts_s: dict[str, PositiveFloat] = setting(
        {},
        "Longest time for one call of the tools named here, in seconds, instead of tool_timeout_s.",
        trust="times",
        protects=True,
    )
    tool_retries: int = setting(1, "Further tries of a tool that says it may succeed then.", trust="less", ge=0, le=10)
    tool_retry_backoff_s: float = setting(0.5, "Seconds before the first retry of a tool.", ge=0, le=60)
    tool_quotas: dict[str, NonNegativeInt] = setting(
        {}, "Most calls in one turn of the tools named here.", trust="limits"
    )
    tool_calls_per_minute: dict[str, PositiveInt] = setting(
        {}, "Most calls in a minute of the tools named here.", trust="limits"
    )
    role: str | None = setting(
        None,
        "Which tools may be used: reader, editor, operator, or a role of yours. Default: all.",
        trust=("reader", "editor", "operator", None),
        option="--role ROLE",
        panel="Permissions",
        choices=("reader", "editor", "operator"),
    )
    questions: bool = setting(
        False, "Let the model ask a person (tool ask_user); terminal and editors do.", trust="off", panel="Permissions"
    )
    delegation: bool = setting(
        False,
        "Offer the tool delegate: children of the run work on parts of the task, within its budget.",
        trust="off",
        option="--delegate",
        panel="Permissions",
    )
    writable_paths: tuple[str, ...] = setting(
        (),
        "Files and folders that may be changed; then no programs run. Default: all that the rules allow.",
        trust="places",
        protects=True,
        option="--writable PATH",
        panel="Permissions",
    )
    denied_paths: tuple[str, ...] = setting(
        (),
        "Files and folders that no tool and no program may use, as patterns of .gitignore without '!': private/,"
        " *.csv, docs/**/draft.md. Letter case makes no difference. A workspace's own file only adds to them.",
        trust="more",
        option="--deny PATTERN",
        panel="Permissions",
        max_length=200,
    )
    strict: bool = setting(
        False,
        "For untrusted repositories: files that run later, manifests, tests, documents and deletions only by their"
        " path in the request; programs change no file.",
        trust="on",
        option="--strict/--no-strict",
        panel="Permissions",
    )
    request_permits: bool = setting(
        True, "A request that names a protected file allows its change; not in Actions, batches, servers.", trust="off"
    )
    offer: Literal["few", "all"] = setting(
        "few", "Tools that the model is told of. few: what most tasks need, in the fewest tokens.", trust="any"
    )
    allowed_programs: tuple[str, ...] = setting(
        (),
        "Programs that run_command may start, in a sandbox without network. Default: no commands.",
        trust="part",
        option="--allow-program NAME",
        panel="Permissions",
    )
    allowed_commands: tuple[str, ...] = setting(
        (),
        "Commands that may run with any further arguments, by their first words: `git log`, pytest.",
        trust="part",
        option="--allow-command PREFIX",
        panel="Permissions",
    )
    jobs: bool = setting(
        False, "Commands that outlive their time go on until the turn ends.", trust="off", option="--jobs/--no-jobs"
    )
    readable_folders: tuple[str, ...] = setting(
        (),
        "Folders outside the workspace that commands may read, such as a language's own installation.",
        trust="part",
        protects=True,
    )
    sandbox: Literal["auto", "bubblewrap", "landlock", "container"] = setting(
        "auto",
        "What keeps programs apart from this machine. auto: the first that starts. landlock: without user namespaces,"
        " on a copy of the workspace. container: the container around it, which a program may change as a whole.",
        option="--sandbox",
        panel="Permissions",
    )
    allowed_hosts: tuple[str, ...] = setting(
        (),
        "Hosts that http_get may ask: docs.python.org, *.example.com, host:8080. Default: no network.",
        trust="part",
        option="--allow-host HOST",
        panel="Permissions",
    )
    allowed_private_hosts: tuple[str, ...] = setting(
        (),
        "Those of allowed_hosts that may have a private address, such as a company's server.",
        trust="part",
        option="--allow-private-host HOST",
        panel="Permissions",
    )
    http_max_bytes: int = limit(1_000_000, "Bytes of one document.")
    http_timeout_s: float = setting(20.0, "Seconds for one http_get or web_search.", trust="less", gt=0, le=3_600)
    web_search: Literal["off", "brave", "tavily", "searxng"] = setting(
        "off", "Service that web_search asks, by its key.", trust="disable", option="--web-search", panel="Permissions"
    )
    allowed_extensions: tuple[str, ...] = setting(
        (),
        "Kinds of files that may be used, such as .py or .md. Default: all that the rules allow.",
        trust="extensions",
    )
    evidence: bool = setting(
        True,
        "Run examples of docstrings and the request, and the project's tests, in a read-only sandbox.",
        trust="off",
        protects=True,
        option="--evidence/--no-evidence",
        panel="Checks",
    )
    checks: tuple[str, ...] = setting(
        (),
        "Commands that must succeed before a run is FINISHED, such as 'pytest -q'; in the same sandbox. Tests that they"
        " name and that failed already are told and do not count.",
        option="--check COMMAND",
        panel="Checks",
    )
    checks_timeout_s: float = setting(
        60.0, "Longest time for one of the checks, in seconds.", trust="less", protects=True, gt=0, le=3_600
    )
    require_checks: bool = setting(
        False,
        "End a run whose changes nothing could check as not_checked (exit code 5), not as FINISHED.",
        trust="on",
        option="--require-checks/--no-require-checks",
        panel="Checks",
    )
    require_changes: bool = setting(
        False,
        "End a run that changes no file as SYSTEM_ERROR with the reason nothing_changed, not as FINISHED.",
        trust="on",
        option="--require-changes/--no-require-changes",
        panel="Checks",
    )
    diagnostics: bool = setting(
        False,
        "Tell the model what linters newly say of its edits.",
        trust="off",
        option="--diagnostics",
        panel="Checks",
    )
    format_edits: bool = setting(
        False, "Format edits with the project's formatter.", trust="off", option="--format-edits", panel="Checks"
    )
    max_failed_tries: int = setting(
        4,
        "Tries in a row whose edits or checks may fail before the run ends. In the block form it ends after 4 at most.",
        trust="less",
        ge=1,
        le=100,
    )
    keep_failed_edits: bool = setting(
        False,
        "Keep the changes of a run that ends as edits_failed or checks_failed. Otherwise they are taken back, and "
        "`mendgraph apply` makes them again.",
        trust="any",
        protects=True,
        option="--keep-failed-edits",
        panel="Checks",
    )
    read_ahead: bool = setting(True, "Read the files that the request names before the model is asked.", trust="any")
    project_notes: bool = setting(
        True,
        "Tell the model, where it is no small one, what the workspace's AGENTS.md or CLAUDE.md says, and which skills"
        " the workspace and you have.",
        trust="off",
        option="--project-notes/--no-project-notes",
    )
    memory: bool = setting(
        False,
        "Let the model, where it is no small one, keep notes for later runs in this workspace, and tell it those of"
        " earlier ones.",
        trust="off",
        option="--memory/--no-memory",
    )
    syntax_gate: Literal["off", "report", "refuse"] = setting(
        "report",
        "An edit that breaks the syntax of a Python, JSON, TOML or YAML file. report: the model is told.",
        trust=("refuse", "report", "off"),
    )
    keep_days: float | None = setting(
        None, "Days after which runs are removed automatically, with all that is kept of them. Default: never.", ge=1
    )
    keep_runs: int | None = setting(
        None, "Runs of a workspace that are kept; older ones are removed automatically. Default: all.", ge=1, le=MOST
    )
    keep_mb: int | None = setting(
        None, "MB of checkpoints of a workspace that are kept, in the same way. Default: all.", ge=1, le=MOST
    )
    audit: bool = setting(True, "Keep a log of all calls in the run's own folder.", trust="on")
    system_prompt: str = setting("", "Words of your own for the system prompt, said after those that tools need.")
    response_format: dict[str, Any] | None = setting(
        None, "JSON schema of a value that the answer must have beside its text. Default: any text is an answer."
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
    _fallbacks = field_validator("fallback_models")(usable_fallbacks)
    _prices = model_validator(mode="after")(usable_prices)

    @field_validator("denied_paths")
    @classmethod
    def _usable_patterns(cls, patterns: tuple[str, ...], info: "ValidationInfo") -> tuple[str, ...]:
        from mendgraph.nodes.workspace.files.tree_walk import denied_patterns

        return denied_patterns(patterns, info.data.get("workspace", "."))

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
