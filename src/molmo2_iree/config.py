"""The configuration: what to build, for which targets and sizes, judged how. Validated before anything is hashed."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from molmo2_iree.architecture import Frozen
from molmo2_iree.errors import ConfigError
from molmo2_iree.files import write_whole
from molmo2_iree.stages import CacheLayout

Size = Annotated[int, Field(ge=1)]
Sizes = Annotated[tuple[Size, ...], Field(min_length=1)]
Dtype = Literal["float32", "bfloat16"]
SHARED = ("targets.yaml", "tolerances.yaml")
"""Files beside a configuration that every configuration shares."""


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

    @model_validator(mode="after")
    def _portable(self) -> "Target":
        if any(word in " ".join((self.cpu, *self.flags)) for word in ("host", "native")):
            raise ValueError("a named instruction level; 'host' and 'native' mean another module on every machine")
        return self


class Toolchain(Frozen):
    """Pinned versions. Declared, not read from the environment, so that planning needs no compiler."""

    jax: str
    iree: str


class Gates(Frozen):
    """Which cases are measured against which references, and how many greedy tokens are compared."""

    cases: Annotated[tuple[str, ...], Field(min_length=1)]
    references: Annotated[tuple[Literal["specification", "native"], ...], Field(min_length=1)]
    greedy_tokens: Size = 32


class Tolerance(Frozen):
    """|got - reference| <= atol + rtol * |reference| per element, and a ceiling on the RMS of the difference."""

    atol: Annotated[float, Field(ge=0)]
    rtol: Annotated[float, Field(ge=0)]
    rms: Annotated[float, Field(ge=0)]
    reason: Annotated[str, Field(min_length=20)]


class Config(Frozen):
    """See ``config/README.md``; ``config/schema.json`` is generated from this class."""

    checkpoint: str
    weights: Weights = Weights()
    cache: Cache
    buckets: Buckets
    targets: Annotated[tuple[str, ...], Field(min_length=1)]
    gates: Gates
    known_targets: dict[str, Target]
    toolchain: Toolchain
    tolerances: dict[Dtype, dict[str, Tolerance]]

    @model_validator(mode="after")
    def _agree(self) -> "Config":
        unknown = [name for name in self.targets if name not in self.known_targets]
        if unknown:
            raise ValueError(f"targets {unknown} are not among known_targets {sorted(self.known_targets)}")
        limits = (("tokens", self.cache.context), ("context", self.cache.context), ("slots", self.cache.slots))
        for name, limit in limits:
            largest = getattr(self.buckets, name)[-1]
            if largest > limit:
                raise ValueError(f"buckets.{name} has {largest}, the cache holds {limit}")
        for name, size in (("context", self.cache.context), ("slots", self.cache.slots)):
            if getattr(self.buckets, name)[-1] != size:
                raise ValueError(
                    f"the largest of buckets.{name} must be cache.{name} = {size}, or some of the cache is unused"
                )
        if self.buckets.extend[-1] > self.buckets.context[0]:
            raise ValueError("buckets.extend must not exceed the smallest of buckets.context")
        return self


def validate(raw: dict[str, Any], where: str) -> Config:
    """A configuration from parsed YAML; ConfigError names the first wrong field, what it was and what it must be."""
    try:
        return Config.model_validate_json(json.dumps(raw))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "the file"
        got = "an unknown key" if first["type"] == "extra_forbidden" else repr(first["input"])[:120]
        expected = "one of the keys in config/README.md" if first["type"] == "extra_forbidden" else first["msg"]
        raise ConfigError(
            f"{where}, {field}", got=got, expected=expected, fix=f"edit {where}; config/README.md lists every key"
        ) from error
    except TypeError as error:
        raise ConfigError(where, got=str(error), expected="plain YAML values", fix=f"edit {where}") from error


def read_config(path: Path) -> Config:
    """Read a YAML configuration and the shared files beside it, or a resolved one written as JSON."""
    if path.suffix == ".json":
        return validate(_load(path), str(path))
    raw: dict[str, Any] = {}
    for part in (*(path.parent / name for name in SHARED), path):
        loaded = _load(part)
        if not isinstance(loaded, dict):
            raise ConfigError(str(part), got=type(loaded).__name__, expected="a mapping", fix=f"edit {part}")
        raw |= loaded
    return validate(raw, str(path))


def write_resolved(config: Config, folder: Path, name: str) -> Path:
    """Write the configuration as canonical JSON under its digest, once, by rename; jobs of a workflow read that file."""
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
