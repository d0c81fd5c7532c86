"""Every key of a job file, with its type, default and meaning. Here and in mistakes.py alone is pydantic known."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from sublet.runtime.jobs.bounds import (
    LEAST_KEPT,
    MOST_KEPT,
    MOST_NODES,
    MOST_STAGES,
    MOST_STEPS,
    MOST_WORKERS,
    NAME_PATTERN,
    RANGES,
    VARIABLE_PATTERN,
    MarketChoice,
    Shards,
)
from sublet.runtime.jobs.values import (
    DOLLARS_PATTERN,
    DURATION_PATTERN,
    RANGE_PATTERN,
    parse_accelerators,
    parse_attempts,
    parse_duration_s,
    parse_moment,
    parse_money,
    parse_range,
)


def _written(pattern: str, example: str, *, also: str = "") -> WithJsonSchema:
    text: dict[str, Any] = {"type": "string", "pattern": pattern, "examples": [example]}
    return WithJsonSchema({"anyOf": [text, {"type": also}]} if also else text)


def _parse_interval(value: object) -> object:
    return value if value == "auto" else parse_duration_s(value)


def _parse_usd(value: object) -> float:
    return parse_money(value).usd


Workers = Annotated[
    tuple[int, int], BeforeValidator(parse_range), _written(f"^{RANGE_PATTERN}$", "2..16", also="integer")
]
Duration = Annotated[float, BeforeValidator(parse_duration_s), _written(f"^{DURATION_PATTERN}$", "4h30m")]
Interval = Annotated[
    float | Literal["auto"], BeforeValidator(_parse_interval), _written(f"^(auto|{DURATION_PATTERN})$", "10m")
]
Dollars = Annotated[float, BeforeValidator(_parse_usd), _written(f"^{DOLLARS_PATTERN}$", "120 USD", also="number")]
Attempts = Annotated[
    int | None,
    BeforeValidator(parse_attempts),
    WithJsonSchema({"anyOf": [{"const": "unlimited"}, {"type": "integer", "minimum": 0}]}),
]
Accelerators = Annotated[
    tuple[Any, ...],  # (kind, range or None): made by the parser, and not looked at again
    BeforeValidator(parse_accelerators),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}, {"type": "array", "items": {"type": "string"}}]}),
]
Moment = Annotated[
    str | date,
    BeforeValidator(parse_moment),
    WithJsonSchema({"type": "string", "examples": ["4h30m", "2026-12-01T08:00Z"]}),
]
Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
Variable = Annotated[str, StringConstraints(pattern=VARIABLE_PATTERN)]
Whole = Annotated[int, Field(ge=1, le=MOST_STEPS)]


class _Group(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class Choice(_Group):
    """One of several kinds of GPU that will do."""

    accelerators: Accelerators = Field(description="Kind and number: L4, A100:8 or A100:1..8.")


class Resources(_Group):
    """The resources of the workers."""

    accelerators: Accelerators | None = Field(
        default=None, description="Kind and number of GPUs; without it any kind will do."
    )
    any_of: list[Choice] = Field(default=[], description="Kinds that will do, instead of `accelerators`.")
    use_spot: bool | None = Field(default=None, description="true = spot, false = on-demand; without it both.")
    image_id: Annotated[
        Any, WithJsonSchema({"type": "string", "examples": ["docker:nvcr.io/nvidia/pytorch:24.07-py3"]})
    ] = Field(
        default=None,
        description="docker:NAME, a container in which setup and run are; without it the node's own system.",
    )
    spot: Literal["auto", "spot", "on-demand"] | bool | None = Field(
        default=None, description="The same, also by name; auto = both."
    )
    min_on_demand: Annotated[int, Field(ge=0, le=MOST_WORKERS)] = Field(
        default=0, description="Workers that are always on demand: a core that is never taken, beside others that are."
    )

    @model_validator(mode="after")
    def _one_way(self) -> Resources:
        if self.accelerators is not None and self.any_of:
            raise ValueError("either accelerators or any_of, not both")
        if self.use_spot is not None and self.spot is not None:
            raise ValueError("either use_spot or spot, not both")
        return self

    def market(self) -> MarketChoice:
        """By whichever of the two keys was given."""
        if isinstance(self.spot, str):
            return MarketChoice(self.spot)
        by_flag = {None: MarketChoice.AUTO, True: MarketChoice.SPOT, False: MarketChoice.ON_DEMAND}
        return by_flag[self.use_spot if self.spot is None else self.spot]

    def choices(self) -> tuple[tuple[str, tuple[int, int] | None], ...]:
        """Every kind that will do, with how many of it; None where the file does not say."""
        groups = [self.accelerators or (), *(choice.accelerators for choice in self.any_of)]
        return tuple(dict.fromkeys(pair for group in groups for pair in group))


class Elastic(_Group):
    """How wide the job may be."""

    workers: Workers = Field(description="Number of workers, 4 or 2..16: one process and one GPU each.")
    sizes: list[Whole] = Field(
        default=[], description="Only these numbers of workers; without it all within the range."
    )
    on_node_loss: Literal["continue", "replace", "restart", "fail"] = Field(
        default="continue",
        description="Survivors go on; wait for another node; all start again from the last checkpoint; the job fails.",
    )
    replace_within: Duration | None = Field(
        default=None, description="How long to wait for another node; then the survivors go on."
    )
    restart: Duration | None = Field(
        default=None, description="Pause at a resize, first guess; measured while it runs."
    )

    @field_validator("replace_within")
    @classmethod
    def _waits_for_something(cls, seconds: float | None, info: ValidationInfo) -> float | None:
        if seconds is not None and info.data.get("on_node_loss", "replace") != "replace":
            raise ValueError("beside on_node_loss: replace, or left out")
        return seconds


class Parallel(_Group):
    """How the model of a job is cut into parts; without it every worker has all of it."""

    stages: Annotated[int, Field(ge=1, le=MOST_STAGES)] | Literal["auto"] = Field(
        default=1, description="Parts of a pipeline, 1 to 8; auto = as many as the plan finds best."
    )
    shards: Literal["auto", "on", "off"] | bool = Field(
        default="auto",
        description="Optimizer state in ranges, each on two workers; auto = if it does not fit otherwise.",
    )

    @field_validator("stages", mode="wrap")
    @classmethod
    def _says_all_that_is_allowed(cls, value: object, read: ValidatorFunctionWrapHandler) -> object:
        try:
            return read(value)
        except ValidationError:
            raise ValueError(f"auto, or a whole number from 1 to {MOST_STAGES}") from None

    @property
    def ranges(self) -> Shards:
        """`on` and `off` are words for true and false in YAML."""
        if isinstance(self.shards, bool):
            return Shards.ON if self.shards else Shards.OFF
        return Shards(self.shards)

    @model_validator(mode="after")
    def _one_cut(self) -> Parallel:
        if self.shards in ("on", True) and self.stages != 1:
            raise ValueError("with stages or with shards: on, not both")
        return self


class Target(_Group):
    """When the job is done; say one."""

    samples: Whole | None = Field(default=None, description="Samples over the whole job.")
    steps: Whole | None = Field(default=None, description="Steps of the optimizer; needs training.global_batch.")


class Training(_Group):
    """Facts of the training; the rest is measured while it runs."""

    target: Target = Field(
        default=Target(), description="How much work there is; a script with the SDK says it itself."
    )
    global_batch: Whole | None = Field(default=None, description="Samples per step over all workers.")
    samples_per_s: Annotated[float, Field(gt=0, strict=False)] | None = Field(
        default=None, description="Speed of one worker, first guess."
    )
    sdk: Literal["auto"] | bool = Field(
        default="auto", description="Whether the script uses sublet.train; auto = look."
    )

    hang: Duration | None = Field(
        default=None,
        description="A script without the SDK that prints and computes nothing for so long is started again.",
    )

    @model_validator(mode="after")
    def _countable(self) -> Training:
        if self.target.samples is not None and self.target.steps is not None:
            raise ValueError("with target.samples or target.steps, not both")
        if self.target.steps is not None and self.global_batch is None:
            raise ValueError("with global_batch beside target.steps: steps x batch = samples")
        return self

    def work(self) -> float | None:
        """Samples over the whole job."""
        if self.target.steps is not None and self.global_batch is not None:
            return float(self.target.steps * self.global_batch)
        return None if self.target.samples is None else float(self.target.samples)


class JobBudget(_Group):
    """The limit of this job's spending."""

    total: Dollars = Field(description="In all; at the limit it is saved and stopped, and can be resumed.")
    on_exhausted: Literal["checkpoint_stop"] = Field(
        default="checkpoint_stop", description="What happens at the limit."
    )


class Checkpoint(_Group):
    """The place and interval of checkpoints."""

    uri: str = Field(default="", description="A directory, or s3://, gs://, az://bucket/prefix; otherwise our own.")
    copy_to: str = Field(
        default="", alias="copy", description="s3://, gs://, az://bucket/prefix that the controller copies them to."
    )
    interval: Interval = Field(default="auto", description="Time between two; auto = from hazard and write time.")
    keep: Annotated[int, Field(ge=LEAST_KEPT, le=MOST_KEPT)] = Field(
        default=3, description="How many to keep, at least 2."
    )


class Retry(_Group):
    """How often to try again, by whose fault it was."""

    preemption: Attempts = Field(
        default=None, description="After the cloud took a node; then it is saved, and has failed."
    )
    infra: Attempts = Field(default=10, description="After a fault of the machine or of Sublet.")
    user: Attempts = Field(default=1, description="After the script failed by itself.")


class Bucket(_Group):
    """Files of a bucket, or of this machine, on the node."""

    source: str | list[str] | None = Field(default=None, description="A path of this machine, or a URI.")
    name: str | None = Field(default=None, description="The bucket, where source is no URI.")
    store: str | None = Field(default=None, description="Whose bucket it is: s3, gcs, azure, r2.")
    mode: str = Field(default="MOUNT", description="COPY: brought to the node; MOUNT: what is written goes back.")
    persistent: bool = Field(default=True, description="Whether the bucket stays when the job has ended.")


def _short_mount(value: object) -> object:
    """`/data: s3://b` is `/data: {source: s3://b, mode: COPY}`."""
    return {"source": value, "mode": "COPY"} if isinstance(value, str) else value


Mount = Annotated[Bucket, BeforeValidator(_short_mount, json_schema_input_type=str | Bucket)]


class JobFile(_Group):
    """A training job for Sublet."""

    model_config = ConfigDict(title="Sublet job file")

    run: Annotated[str, StringConstraints(min_length=1)] = Field(description="The command of every worker.")
    name: Name | None = Field(
        default=None, description="Letters, digits, hyphens, dots, underscores; the file's name otherwise."
    )
    workdir: str = Field(default=".", description="Where the command runs, relative to this file.")
    setup: str = Field(default="", description="Commands that every node runs once, before the first worker there.")
    file_mounts: dict[str, Mount] = Field(
        default={}, description="Path on the node: a path of this machine, a URI, or a bucket."
    )
    num_nodes: Annotated[int, Field(ge=1, le=MOST_NODES)] = Field(
        default=1, description="Nodes of a job that is not elastic."
    )
    resources: Resources = Resources()
    envs: dict[Variable, str | None] = Field(default={}, description="Variables; without a value, that of the caller.")
    secrets: dict[Variable, str | None] = Field(
        default={}, description="As envs, but never shown, logged or stored plainly."
    )
    elastic: Elastic | None = None
    parallel: Parallel = Parallel()
    training: Training = Training()
    budget: JobBudget | None = None
    deadline: Moment | None = Field(default=None, description="2026-12-01T08:00Z, or from submission: 4h30m.")
    checkpoint: Checkpoint = Checkpoint()
    retry: Retry = Retry()
    stop_duration: Duration | None = Field(
        default=None, description="Real time, not sped up, from SIGTERM to SIGKILL of a script without the SDK."
    )
    weight: Annotated[float, Field(gt=0, le=RANGES["weight"][1], strict=False)] = Field(
        default=1.0, description="Worth of its time."
    )
    hurry: bool = Field(default=False, description="The quickest within the limits, whatever it costs.")

    @model_validator(mode="before")
    @classmethod
    def _short_budget(cls, values: Any) -> Any:
        """`budget: 120 USD` is `budget: {total: 120 USD}`."""
        if isinstance(values, dict) and isinstance(values.get("budget"), str | int | float):
            return {**values, "budget": {"total": values["budget"]}}
        return values

    @model_validator(mode="after")
    def _one_width(self) -> JobFile:
        if self.elastic is not None and self.num_nodes > 1:
            raise ValueError("with num_nodes or elastic, not both")
        if set(self.envs) & set(self.secrets):
            raise ValueError("with every variable in envs or in secrets, not in both")
        return self


def keys_at(path: Sequence[object]) -> list[str]:
    """The keys of the group at this place."""
    model: type[BaseModel] = JobFile
    for part in path:
        model = _INSIDE.get(str(part), model)
    return [field.alias or name for name, field in model.model_fields.items()]


_INSIDE: dict[str, type[BaseModel]] = {
    "resources": Resources,
    "any_of": Choice,
    "elastic": Elastic,
    "parallel": Parallel,
    "training": Training,
    "target": Target,
    "budget": JobBudget,
    "checkpoint": Checkpoint,
    "retry": Retry,
    "file_mounts": Bucket,
}
