"""What a checkpoint can do and what each stage of it needs in memory: plain arithmetic over an architecture.

Axes as in ``stages``; D vision width, M patches of a crop rounded up to 16, H heads, K kv heads, h head dim, I an
intermediate width. Sizes are in bytes.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from molmo2_iree.architecture import Architecture, Text, most_groups
from molmo2_iree.family import MASK_POLICIES, is_molmoweb
from molmo2_iree.lock import MaskPolicy
from molmo2_iree.model.parameters import parameters, stage_parameters
from molmo2_iree.stages import CacheLayout, Program, cache_arrays, dimensions, programs, round_up, signature

ITEM = {"float32": 4, "int32": 4, "bfloat16": 2}
"""Bytes of one element by dtype."""

F32 = ITEM["float32"]


@dataclass(frozen=True)
class Capabilities:
    """A checkpoint in words. ``parameters`` counts its own values, ``tensors`` the tensors a build reads."""

    family: str
    text: str
    vision: str
    images: str
    video: str
    mask_policy: str
    parameters: int
    tensors: int


@dataclass(frozen=True)
class Need:
    """Bytes of one program. ``cache`` is the one cache all programs share; ``temporaries`` are an estimate."""

    program: str
    weights: int
    arguments: int
    cache: int
    temporaries: int

    @property
    def total(self) -> int:
        """What this program alone needs."""
        return self.weights + self.arguments + self.cache + self.temporaries


def describe(
    architecture: Architecture, *, sources: Sequence[str] = (), mask_policy: MaskPolicy | None = None
) -> Capabilities:
    """The capabilities in words. ``sources`` are names the checkpoint goes by, ``mask_policy`` what its pin states."""
    stored = [parameter for parameter in parameters(architecture) if parameter.original is not None]
    most = architecture.processor.max_crops + 1
    return Capabilities(
        family="Molmo2",
        text=text_words(architecture.text),
        vision=vision_words(architecture),
        images=f"yes: up to {most} crops and {most_groups(architecture.processor, most):,} image tokens a picture",
        video="its files say so; this build does not run it yet" if architecture.video else "no: its files say nothing",
        mask_policy=mask_words(sources, mask_policy),
        parameters=sum(math.prod(parameter.shape) for parameter in stored),
        tensors=len(stored),
    )


def text_words(text: Text) -> str:
    """The decoder's variant and sizes, such as "Qwen3-like (...), 36 layers of width 2,560 ..."."""
    order = "norms after attention and MLP" if text.norm_after else "norms before attention and MLP"
    norms = {"head": "q/k norm on each head", "full": "q/k norm over the full width", "none": "no q/k norm"}
    variant = {(False, "head"): "Qwen3-like", (True, "full"): "Olmo3-like"}
    kind = variant.get((text.norm_after, text.qk_norm), "a combination of its own")
    positions = f"RoPE theta {text.rope_theta:,.0f}"
    if text.yarn is not None:
        layers = ", ".join(map(str, text.yarn.layers)) or "none"
        positions += f", YaRN by {text.yarn.factor:g} on layers {layers}"
    return (
        f"{kind} ({order}, {norms[text.qk_norm]}), {text.layers} layers of width {text.width:,}, {text.heads} heads on "
        f"{text.kv_heads} kv heads of {text.head_dim}, {positions}, up to {text.max_positions:,} positions"
    )


def vision_words(architecture: Architecture) -> str:
    """The ViT's sizes and the blocks it is read after, such as "25 of 27 declared blocks, read after 24 and 18"."""
    v = architecture.vision
    read = " and ".join(str(layer) for layer in v.layers)
    pooling = "masked" if architecture.connector.pooling_mask else "unmasked"
    return (
        f"{v.blocks} of {v.declared_blocks} declared blocks of width {v.width:,}, read after {read}; crops of "
        f"{v.image_size[0]} x {v.image_size[1]} pixels, {v.patches} patches; {pooling} pooling"
    )


def mask_words(sources: Iterable[str], stated: MaskPolicy | None = None) -> str:
    """Whether the mask policy is known. No file holds it: it comes from the pin, or from a repository that is known."""
    sources = list(sources)
    if stated is not None:
        return f"{stated}, as its pin states"
    known = next((MASK_POLICIES[name] for name in sources if name in MASK_POLICIES), None)
    if known is not None:
        return f"{known}, known for this repository"
    if is_molmoweb(*sources):
        return "needed from the pin: it goes by the name of MolmoWeb, trained causal (--mask-policy causal)"
    return "needed from the pin, no file says it: --mask-policy bidirectional (Molmo2) or causal (MolmoWeb)"


def usual_buckets(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """Bucket sizes to show where no configuration names any: the largest picture fits the largest prompt.

    The release (9 crops, 1316 image tokens) gets crops 5, 9, tokens 256, 2048 and context 2048, 4096.
    """
    most = architecture.processor.max_crops + 1
    largest = 1 << (most_groups(architecture.processor, most) * 5 // 4 + 63).bit_length()
    limit = architecture.text.max_positions
    tokens, context = (
        sorted({min(size, limit) for size in sizes}) for sizes in ((256, largest), (largest, 2 * largest))
    )
    return {
        "crops": tuple(sorted({min(5, most), most})),
        "tokens": tuple(tokens),
        "extend": (min(64, limit),),
        "slots": (1, 4),
        "context": tuple(context),
    }


def cache_bytes(architecture: Architecture, cache: CacheLayout) -> int:
    """All slots of the cache: 2 x layers x slots x K x context x h elements."""
    return _bytes(cache_arrays(architecture, cache))


def needs(
    architecture: Architecture, cache: CacheLayout, buckets: Mapping[str, Sequence[int]], storage: str
) -> list[Need]:
    """What every program of a bucket selection needs, in stage order."""
    return [need(program, architecture, cache, storage) for program in programs(buckets)]


def need(program: Program, architecture: Architecture, cache: CacheLayout, storage: str) -> Need:
    """Weights in storage dtype, arguments and results without the cache, the cache, and the largest temporaries."""
    shared = {name for name, _, _ in cache_arrays(architecture, cache)}
    given, returned = signature(program, architecture, cache)
    read = [("", p.shape, p.dtype(storage)) for p in stage_parameters(architecture, program.stage)]
    return Need(
        program=program.name,
        weights=_bytes(read),
        arguments=_bytes(array for array in (*given, *returned) if array[0] not in shared),
        cache=_bytes(array for array in given if array[0] in shared),
        temporaries=temporaries(program, architecture, cache),
    )


def temporaries(program: Program, architecture: Architecture, cache: CacheLayout) -> int:
    """An estimate of the intermediate arrays alive at once, float32, for the compiler as it is today.

    vision: C x M x (2 D + max(3 H h, I)) and four arrays of scores, C x H x M x M each: raw, shifted, exponentials and
    normalised. connector: G x max(P x (F + 2 H h) + F + 2 H h, 3 I + D): the gathered patches with their keys and
    values. merge: S ranks; the rest is one loop. Decoder stages with n new rows that attend to X rows:
    n x (2 d + max((H + 2 K) h, 3 I)) and four arrays of scores, H x n x X each; prefill has n = X = S, decode n = B.
    A bfloat16 cache adds K x h x X for extend, whose rows are widened. Weights are used where they lie.
    """
    a, sizes = architecture, dimensions(program, architecture)
    if program.stage == "vision":
        v, padded = a.vision, round_up(a.vision.patches)
        rows, scores = sizes["C"] * padded, sizes["C"] * v.heads * padded**2
        return F32 * (rows * (2 * v.width + max(3 * v.heads * v.head_dim, v.intermediate)) + 4 * scores)
    if program.stage == "connector":
        c, joined, inner = a.connector, a.vision.features, a.connector.heads * a.connector.head_dim
        pooling = sizes["P"] * (joined + 2 * inner) + joined + 2 * inner
        return F32 * sizes["G"] * max(pooling, 3 * c.intermediate + c.width)
    if program.stage == "merge":
        return F32 * sizes["S"]
    t = a.text
    new = sizes[{"prefill": "S", "extend": "T", "decode": "B"}[program.stage]]
    context = sizes["S"] if program.stage == "prefill" else sizes["X"]
    row = 2 * t.width + max((t.heads + 2 * t.kv_heads) * t.head_dim, 3 * t.intermediate)
    widened = program.stage == "extend" and cache.dtype != "float32"
    copied = t.kv_heads * t.head_dim * context if widened else 0
    return F32 * (new * row + 4 * t.heads * new * context + copied)


def _bytes(arrays: Iterable[tuple[str, tuple[int, ...], str]]) -> int:
    return sum(math.prod(shape) * ITEM[dtype] for _, shape, dtype in arrays)
