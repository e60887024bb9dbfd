"""The stages: one table of names, bucket axes, arguments and results, from which programs, manifests and checks derive.

Axes: C crops, N patches of a crop, E values of a patch, F joined vision features, G groups, P patches of a group,
d text width, S prompt tokens, T new tokens, X context rows read, B slots advanced, V vocabulary.
A cache argument is one K array [slots, kv heads, head dim, context] and one V array [slots, kv heads, context, head
dim] for every text layer, K0 V0 K1 V1 ...; it is consumed and returned in the same order.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from molmo2_iree.architecture import Architecture, most_groups

STAGE_ABI = 1
"""Raised whenever the meaning or order of a stage's arguments changes."""

F32, I32, BF16 = "float32", "int32", "bfloat16"


@dataclass(frozen=True)
class Array:
    """Name, axis letters and dtype of one argument or result."""

    name: str
    axes: str
    dtype: str


@dataclass(frozen=True)
class Stage:
    """One row of the table. ``parameters`` are prefixes of the archive parameters the stage reads."""

    name: str
    bucket: str
    arguments: tuple[Array, ...]
    results: tuple[Array, ...]
    archive: str
    parameters: tuple[str, ...]
    cache: bool = False


_DECODER = ("embedding.", "rope.", "layers.", "norm.", "head.")

STAGES: dict[str, Stage] = {
    stage.name: stage
    for stage in (
        Stage(
            "vision",
            bucket="C",
            arguments=(Array("patches", "CNE", F32),),
            results=(Array("features", "CNF", F32),),
            archive="vision",
            parameters=("vit.",),
        ),
        Stage(
            "connector",
            bucket="C",
            arguments=(Array("features", "CNF", F32), Array("groups", "GP", I32)),
            results=(Array("tokens", "Gd", F32), Array("valid", "G", I32)),
            archive="vision",
            parameters=("pooling.", "projector."),
        ),
        Stage(
            "merge",
            bucket="S",
            arguments=(Array("ids", "S", I32), Array("image_tokens", "Sd", F32), Array("count", "", I32)),
            results=(Array("embeddings", "Sd", F32),),
            archive="text",
            parameters=("embedding.",),
        ),
        Stage(
            "prefill",
            bucket="S",
            arguments=(
                Array("embeddings", "Sd", F32),
                Array("types", "S", I32),
                Array("length", "", I32),
                Array("slot", "", I32),
            ),
            results=(Array("logits", "V", F32),),
            archive="text",
            parameters=_DECODER[1:],
            cache=True,
        ),
        Stage(
            "extend",
            bucket="TX",
            arguments=(
                Array("ids", "T", I32),
                Array("start", "", I32),
                Array("length", "", I32),
                Array("slot", "", I32),
            ),
            results=(Array("logits", "V", F32),),
            archive="text",
            parameters=_DECODER,
            cache=True,
        ),
        Stage(
            "decode",
            bucket="BX",
            arguments=(Array("ids", "B", I32), Array("positions", "B", I32), Array("active", "B", I32)),
            results=(Array("logits", "BV", F32),),
            archive="text",
            parameters=_DECODER,
            cache=True,
        ),
    )
}


@dataclass(frozen=True)
class CacheLayout:
    """Rows and slots of the cache, and the dtype its rows are stored in."""

    slots: int
    context: int
    dtype: str


@dataclass(frozen=True)
class Program:
    """A stage at a bucket. ``taps`` programs return every named intermediate after the results."""

    stage: str
    bucket: tuple[int, ...]
    taps: bool = False

    @property
    def name(self) -> str:
        """``vision-c3``, ``prefill-s256``, ``decode-b2x512``, with ``-taps`` for the diagnostic build."""
        sizes = "".join(
            f"{axis.lower()}{size}" for axis, size in zip(STAGES[self.stage].bucket, self.bucket, strict=True)
        )
        return f"{self.stage}-{sizes}" + ("-taps" if self.taps else "")

    def sizes(self) -> dict[str, int]:
        """Bucket sizes by axis letter."""
        return dict(zip(STAGES[self.stage].bucket, self.bucket, strict=True))


def round_up(size: int, multiple: int = 16) -> int:
    """Smallest multiple of ``multiple`` that is at least ``size``: the compiler's kernels want whole vectors."""
    return -(-size // multiple) * multiple


def dimensions(program: Program, architecture: Architecture) -> dict[str, int]:
    """Size of every axis letter for a program."""
    a = architecture
    sizes = program.sizes()
    sizes |= {"N": a.vision.patches, "E": a.vision.patch_values, "F": a.vision.features, "P": a.processor.group_size}
    sizes |= {"d": a.text.width, "V": a.text.vocabulary}
    if "C" in sizes:
        sizes["G"] = round_up(most_groups(a.processor, sizes["C"]))
    return sizes


def cache_arrays(architecture: Architecture, cache: CacheLayout) -> list[tuple[str, tuple[int, ...], str]]:
    """(name, shape, dtype) of every cache array, in argument order."""
    text = architecture.text
    keys = (cache.slots, text.kv_heads, text.head_dim, cache.context)
    values = (cache.slots, text.kv_heads, cache.context, text.head_dim)
    return [
        (f"{name}.{i}", shape, cache.dtype)
        for i in range(text.layers)
        for name, shape in (("keys", keys), ("values", values))
    ]


def signature(
    program: Program, architecture: Architecture, cache: CacheLayout
) -> tuple[list[tuple[str, tuple[int, ...], str]], list[tuple[str, tuple[int, ...], str]]]:
    """(arguments, results) of a program as (name, shape, dtype), the cache included, taps not."""
    stage, sizes = STAGES[program.stage], dimensions(program, architecture)

    def fixed(arrays: tuple[Array, ...]) -> list[tuple[str, tuple[int, ...], str]]:
        return [(a.name, tuple(sizes[axis] for axis in a.axes), a.dtype) for a in arrays]

    rows = cache_arrays(architecture, cache) if stage.cache else []
    return fixed(stage.arguments) + rows, fixed(stage.results) + rows


def tap_names(stage: str, architecture: Architecture) -> list[str]:
    """Named intermediates of a stage in the order a taps program returns them; results are not repeated."""
    vision, text = architecture.vision, architecture.text
    return {
        "vision": ["embedded", "positioned", *(f"block.{i}" for i in range(vision.blocks))],
        "connector": ["gathered", "mask", "query", "pooled"],
        "merge": ["image_rank"],
        "prefill": [*(f"layer.{i}" for i in range(text.layers)), "all_logits"],
        "extend": [f"layer.{i}" for i in range(text.layers)],
        "decode": [f"layer.{i}" for i in range(text.layers)],
    }[stage]


def programs(buckets: Mapping[str, Any]) -> Iterator[Program]:
    """Every production program of a bucket selection (keys: crops, tokens, extend, slots, context)."""
    for crops in buckets["crops"]:
        yield Program("vision", (crops,))
        yield Program("connector", (crops,))
    for tokens in buckets["tokens"]:
        yield Program("merge", (tokens,))
        yield Program("prefill", (tokens,))
    for pair in product(buckets["extend"], buckets["context"]):
        yield Program("extend", pair)
    for pair in product(buckets["slots"], buckets["context"]):
        yield Program("decode", pair)


def tap_programs(buckets: Mapping[str, Any]) -> Iterator[Program]:
    """The diagnostic programs gates read: the largest bucket of each stage a prompt passes through."""
    yield Program("vision", (max(buckets["crops"]),), taps=True)
    yield Program("connector", (max(buckets["crops"]),), taps=True)
    yield Program("merge", (max(buckets["tokens"]),), taps=True)
    yield Program("prefill", (max(buckets["tokens"]),), taps=True)


def parse_program(name: str) -> Program:
    """The inverse of :attr:`Program.name`; ValueError for anything else."""
    stage, _, rest = name.partition("-")
    sizes, _, taps = rest.partition("-")
    if stage not in STAGES or taps not in ("", "taps"):
        raise ValueError(f"{name!r} is no program name")
    numbers: list[int] = []
    for axis in STAGES[stage].bucket.lower():
        head, sizes = sizes[:1], sizes[1:]
        digits = sizes[: len(sizes) - len(sizes.lstrip("0123456789"))]
        if head != axis or not digits:
            raise ValueError(f"{name!r} is no program name")
        numbers.append(int(digits))
        sizes = sizes[len(digits) :]
    program = Program(stage, tuple(numbers), bool(taps))
    if program.name != name:
        raise ValueError(f"{name!r} is no program name")
    return program
