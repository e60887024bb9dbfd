"""One tree of parameters: every array of a converted archive, the checkpoint tensor it comes from, and its shape.

Axes as in ``stages``; D vision width, I an intermediate width, H heads, K kv heads, h head dim. A matrix is stored
[out, in] in the storage dtype; a vector (norms, biases, positions, rotations) is always float32.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from molmo2_iree.architecture import Architecture
from molmo2_iree.model.rotation import rotation_shapes
from molmo2_iree.stages import STAGES

Kind = Literal["matrix", "vector"]


@dataclass(frozen=True)
class Parameter:
    """``original`` is the checkpoint's tensor name; ``None`` for a table derived from the configuration."""

    name: str
    original: str | None
    shape: tuple[int, ...]
    archive: Literal["vision", "text"]
    kind: Kind

    def dtype(self, storage: str) -> str:
        """dtype in an archive of the given storage dtype."""
        return storage if self.kind == "matrix" else "float32"


def parameters(architecture: Architecture) -> list[Parameter]:
    """Every parameter in archive order: the vision archive first, then the text archive."""
    return [*_vision(architecture), *_connector(architecture), *_text(architecture)]


def stage_parameters(architecture: Architecture, stage: str) -> list[Parameter]:
    """The parameters one stage reads, sorted by name: the order in which a traced function receives them."""
    row = STAGES[stage]
    chosen = [p for p in parameters(architecture) if p.archive == row.archive and p.name.startswith(row.parameters)]
    return sorted(chosen, key=lambda p: p.name)


def _linear(name: str, original: str, shape: tuple[int, int], bias: bool = True) -> Iterator[Parameter]:
    yield Parameter(f"{name}.weight", f"{original}.weight", shape, "vision", "matrix")
    if bias:
        yield Parameter(f"{name}.bias", f"{original}.bias", shape[:1], "vision", "vector")


def _vision(a: Architecture) -> Iterator[Parameter]:
    v, root = a.vision, "model.vision_backbone.image_vit"
    inner = v.heads * v.head_dim
    yield from _linear("vit.patch_embedding", f"{root}.patch_embedding", (v.width, v.patch_values))
    yield Parameter("vit.position", f"{root}.positional_embedding", (v.patches, v.width), "vision", "vector")
    for i in range(v.blocks):
        ours, theirs = f"vit.blocks.{i}", f"{root}.transformer.resblocks.{i}"
        for norm, original in (("attention_norm", "attention_norm"), ("mlp_norm", "ffn_norm")):
            for part in ("weight", "bias"):
                yield Parameter(f"{ours}.{norm}.{part}", f"{theirs}.{original}.{part}", (v.width,), "vision", "vector")
        for x in "qkv":
            yield from _linear(f"{ours}.attention.{x}", f"{theirs}.attention.w{x}", (inner, v.width))
        yield from _linear(f"{ours}.attention.out", f"{theirs}.attention.wo", (v.width, inner))
        yield from _linear(f"{ours}.mlp.up", f"{theirs}.feed_forward.w1", (v.intermediate, v.width))
        yield from _linear(f"{ours}.mlp.down", f"{theirs}.feed_forward.w2", (v.width, v.intermediate))


def _connector(a: Architecture) -> Iterator[Parameter]:
    c, root = a.connector, "model.vision_backbone"
    inner = c.heads * c.head_dim
    for x in "qkv":
        yield from _linear(f"pooling.{x}", f"{root}.image_pooling_2d.w{x}", (inner, a.vision.features))
    yield from _linear("pooling.out", f"{root}.image_pooling_2d.wo", (c.width, inner))
    for ours, original, shape in (
        ("gate", "w1", (c.intermediate, c.width)),
        ("up", "w3", (c.intermediate, c.width)),
        ("down", "w2", (a.text.width, c.intermediate)),
    ):
        yield from _linear(f"projector.{ours}", f"{root}.image_projector.{original}", shape, bias=False)


def _text(a: Architecture) -> Iterator[Parameter]:
    t, root = a.text, "model.transformer"
    heads = (t.heads * t.head_dim, t.kv_heads * t.head_dim)

    def parameter(name: str, original: str | None, shape: tuple[int, ...], kind: Kind) -> Parameter:
        return Parameter(name, original, shape, "text", kind)

    yield parameter("embedding.base", f"{root}.wte.embedding", (t.vocabulary, t.width), "matrix")
    yield parameter("embedding.extra", f"{root}.wte.new_embedding", (t.extra_vocabulary, t.width), "matrix")
    for name, shape in rotation_shapes(t).items():
        yield parameter(name, None, shape, "vector")
    for i in range(t.layers):
        ours, theirs = f"layers.{i}", f"{root}.blocks.{i}"
        yield parameter(f"{ours}.attention_norm", f"{theirs}.attn_norm.weight", (t.width,), "vector")
        yield parameter(
            f"{ours}.attention.qkv", f"{theirs}.self_attn.att_proj.weight", (heads[0] + 2 * heads[1], t.width), "matrix"
        )
        if t.qk_norm != "none":
            sizes = heads if t.qk_norm == "full" else (t.head_dim, t.head_dim)
            for x, size in zip("qk", sizes, strict=True):
                yield parameter(f"{ours}.attention.{x}_norm", f"{theirs}.self_attn.{x}_norm.weight", (size,), "vector")
        yield parameter(f"{ours}.attention.out", f"{theirs}.self_attn.attn_out.weight", (t.width, heads[0]), "matrix")
        yield parameter(f"{ours}.mlp_norm", f"{theirs}.ff_norm.weight", (t.width,), "vector")
        yield parameter(f"{ours}.mlp.up_gate", f"{theirs}.mlp.ff_proj.weight", (2 * t.intermediate, t.width), "matrix")
        yield parameter(f"{ours}.mlp.down", f"{theirs}.mlp.ff_out.weight", (t.width, t.intermediate), "matrix")
    yield parameter("norm.weight", f"{root}.ln_f.weight", (t.width,), "vector")
    yield parameter("head.weight", "lm_head.weight", (t.vocabulary, t.width), "matrix")
