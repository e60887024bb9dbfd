"""The configuration: what to build, for which targets and sizes, judged how. Validated before anything is hashed."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, Field, ValidationError, field_validator

from molmo2_iree.architecture import Frozen
from molmo2_iree.errors import ConfigError
from molmo2_iree.files import write_whole
from molmo2_iree.stages import CacheLayout

Size = Annotated[int, Field(ge=1)]
Sizes = Annotated[tuple[Size, ...], Field(min_length=1)]
Limit = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")]
Dtype = Literal["float32", "bfloat16"]
Reference = Literal["specification", "native", "mlx", "mlx-shipped"]
SHARED = ("targets.yaml", "references.yaml", "tolerances.yaml")
"""Files beside a configuration that every configuration shares."""


def once(names: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse a name that is given twice."""
    if len(set(names)) != len(names):
        raise ValueError("each name once")
    return names


class Weights(Frozen):
    """How matrices are stored; norms, biases and positions are always float32."""

    storage: Dtype = "float32"


class Cache(Frozen):
    """Slots, rows of a slot, and the dtype rows are stored in."""

    slots: Size
    context: Size
    dtype: Dtype = "float32"

    def layout(self) -> CacheLayout:
        """The same as the stage table wants it."""
        return CacheLayout(self.slots, self.context, self.dtype)


class Buckets(Frozen):
    """Ascending sizes each stage is traced at: crops of an image, prompt tokens, appended tokens, slots, rows read."""

    crops: Sizes
    tokens: Sizes
    extend: Sizes
    slots: Sizes
    context: Sizes

    @field_validator("*")
    @classmethod
    def _ascend(cls, sizes: tuple[int, ...]) -> tuple[int, ...]:
        if list(sizes) != sorted(set(sizes)):
            raise ValueError("sizes in ascending order, each once")
        return sizes


class Target(Frozen):
    """Where modules run. ``cpu`` names an instruction level, never the building machine; gates run on ``gates_on``."""

    triple: str
    cpu: str
    flags: tuple[str, ...] = ()
    gates_on: Literal["cpu", "none"]

    @field_validator("cpu", "flags")
    @classmethod
    def _portable(cls, words: str | tuple[str, ...]) -> str | tuple[str, ...]:
        if any(
            level in word for word in ([words] if isinstance(words, str) else words) for level in ("host", "native")
        ):
            raise ValueError("a named instruction level; 'host' and 'native' mean another module on every machine")
        return words


class Toolchain(Frozen):
    """Pinned versions. Declared, not read from the environment, so that planning needs no compiler."""

    jax: str
    iree: str


class Gates(Frozen):
    """Which cases are measured against which references, and how many greedy tokens are compared."""

    cases: Annotated[tuple[Name, ...], Field(min_length=1), AfterValidator(once)]
    references: Annotated[tuple[Reference, ...], Field(min_length=1), AfterValidator(once)]
    greedy_tokens: Size = 64


class Environment(Frozen):
    """What a reference must have run with; a record that states another value, or none, fails its gate."""

    device: str
    dtype: str
    versions: Annotated[dict[str, str], Field(min_length=1)]
    switches: dict[str, bool | str | tuple[str, ...]] = Field(default_factory=dict)


class Tolerance(Frozen):
    """|got - reference| <= atol + rtol * |reference| per element, and a ceiling on the RMS of the difference."""

    atol: Limit
    rtol: Limit
    rms: Limit
    reason: Annotated[str, Field(min_length=20)]


class Config(Frozen):
    """See ``config/README.md``; ``config/schema.json`` is generated from this class."""

    checkpoint: str
    weights: Weights = Weights()
    cache: Cache
    buckets: Buckets
    targets: Annotated[tuple[str, ...], Field(min_length=1), AfterValidator(once)]
    gates: Gates
    known_targets: dict[Name, Target]
    toolchain: Toolchain
    references: dict[Reference, Environment]
    tolerances: dict[Dtype, dict[str, Tolerance]]


def validate(raw: dict[str, Any], where: str) -> Config:
    """A configuration from parsed YAML; ConfigError names the first wrong field, what it was and what it must be."""
    try:
        config = Config.model_validate_json(json.dumps(raw))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "the file"
        unknown = first["type"] == "extra_forbidden"
        got = "an unknown key" if unknown else repr(first["input"])[:120]
        expected = "one of the keys in config/README.md" if unknown else first["msg"].removeprefix("Value error, ")
        raise _refusal(where, field, got, expected) from error
    except TypeError as error:
        raise ConfigError(where, got=str(error), expected="plain YAML values", fix=f"edit {where}") from error
    for field, got, agrees, expected in _agreements(config):
        if not agrees:
            raise _refusal(where, field, repr(got), expected)
    return config


def _agreements(config: Config) -> Iterator[tuple[str, object, bool, str]]:
    """(field, its value, whether it agrees with the other fields, what it must be)."""
    buckets, cache = config.buckets, config.cache
    for index, name in enumerate(config.targets):
        known = ", ".join(config.known_targets)
        yield f"targets.{index}", name, name in config.known_targets, f"one of known_targets: {known}"
    for index, name in enumerate(config.gates.references):
        known = ", ".join(config.references)
        yield f"gates.references.{index}", name, name in config.references, f"one of references: {known}"
    for name in ("slots", "context"):
        sizes, size = getattr(buckets, name), getattr(cache, name)
        yield f"buckets.{name}", list(sizes), sizes[-1] == size, f"sizes up to exactly cache.{name}, {size}"
    fits = buckets.tokens[-1] <= cache.context
    yield "buckets.tokens", list(buckets.tokens), fits, f"sizes up to cache.context, {cache.context}"
    fits = buckets.extend[-1] <= buckets.context[0]
    yield (
        "buckets.extend",
        list(buckets.extend),
        fits,
        f"sizes up to the first of buckets.context, {buckets.context[0]}",
    )


def _refusal(where: str, field: str, got: str, expected: str) -> ConfigError:
    return ConfigError(
        f"{where}, {field}", got=got, expected=expected, fix=f"edit {where}; config/README.md lists every key"
    )


def read_config(path: Path) -> Config:
    """Read a YAML configuration and the shared files beside it, or a resolved one written as JSON."""
    if path.suffix == ".json":
        return validate(_load(path), str(path))
    raw: dict[str, Any] = {}
    for part in (*(path.parent / name for name in SHARED), path):
        loaded = _load(part)
        if not isinstance(loaded, dict):
            raise ConfigError(str(part), got=type(loaded).__name__, expected="a mapping", fix=f"edit {part}")
        raw = merged(raw, loaded)
    return validate(raw, str(path))


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings merged key by key, all else replaced, as Snakemake does with its configuration files.

    {"a": {"b": 1}, "c": [1]} below {"a": {"d": 2}, "c": [2]} gives {"a": {"b": 1, "d": 2}, "c": [2]}.
    """
    both = {key: merged(below[key], above[key]) for key in below.keys() & above.keys() if _mappings(below, above, key)}
    return {**below, **above, **both}


def _mappings(below: Mapping[str, Any], above: Mapping[str, Any], key: str) -> bool:
    return isinstance(below[key], Mapping) and isinstance(above[key], Mapping)


def json_schema() -> str:
    """The text of ``config/schema.json``: every key of a configuration with the shared files merged in."""
    return json.dumps(Config.model_json_schema(), indent=1, sort_keys=True) + "\n"


def write_resolved(config: Config, folder: Path, name: str) -> Path:
    """Write the configuration as JSON under its digest, once, by rename; jobs of a workflow read that file."""
    path = folder / f"{name}.json"
    if not path.exists():
        write_whole(path, json.dumps(config.model_dump(mode="json"), sort_keys=True, indent=1))
    return path


def first_that_fits(sizes: Sequence[int], needed: int) -> int | None:
    """The smallest bucket that holds ``needed``, or None: of (3, 5, 9), 4 gets 5 and 10 gets None."""
    return next((size for size in sizes if size >= needed), None)


def _load(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
        return json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(
            str(path),
            got=error.strerror,
            expected="a configuration file",
            fix="run from the project's root, or pass --config FILE",
        ) from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(
            str(path), got=f"no YAML or JSON: {error}", expected="a configuration file", fix=f"edit {path}"
        ) from error
