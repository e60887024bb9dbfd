"""What a checkpoint's own files say about its model: the facts that stages, parameters and identity derive from.

Widths are in elements, sizes in pixels, layer numbers 0-based. ``detect.py`` fills these from the files; a lock
stores them, so that planning needs no checkpoint.
"""

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """A record of data: no unknown keys, no coercion, no change after construction."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Vision(Frozen):
    """The ViT. ``layers`` are the selected blocks, resolved against ``declared_blocks``, in the order of joining."""

    width: int
    heads: int
    head_dim: int
    intermediate: int
    declared_blocks: int
    layers: tuple[int, ...]
    activation: Literal["gelu_pytorch_tanh"]
    eps: float
    patch_size: int
    image_size: tuple[int, int]

    @property
    def grid(self) -> tuple[int, int]:
        """Patch rows and columns of one crop: 378 pixels at 14 a patch give (27, 27)."""
        return self.image_size[0] // self.patch_size, self.image_size[1] // self.patch_size

    @property
    def patches(self) -> int:
        """N, patches of one crop."""
        return self.grid[0] * self.grid[1]

    @property
    def patch_values(self) -> int:
        """E, float values of one patch: rows x columns x RGB."""
        return 3 * self.patch_size**2

    @property
    def blocks(self) -> int:
        """Blocks that run: up to the deepest selected one."""
        return max(self.layers) + 1

    @property
    def features(self) -> int:
        """F, width of the joined states."""
        return self.width * len(self.layers)


class Connector(Frozen):
    """Attention pooling over a group of patches, then the SwiGLU projector into the text width."""

    width: int
    heads: int
    head_dim: int
    intermediate: int
    pooling_mask: bool
    activation: Literal["silu"]


class Yarn(Frozen):
    """YaRN frequencies for the listed text layers (contract section 7); ``layers`` is never hard-coded."""

    layers: tuple[int, ...]
    factor: float
    attention_factor: float
    beta_fast: float
    beta_slow: float
    original_positions: int


class Text(Frozen):
    """The decoder. ``qk_norm``: "head" normalises each head, "full" the whole width before the split into heads."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    extra_vocabulary: int
    norm_after: bool
    qk_norm: Literal["head", "full", "none"]
    rope_theta: float
    yarn: Yarn | None
    eps: float
    max_positions: int
    activation: Literal["silu"]


class Tokens(Frozen):
    """Ids that the product inserts or recognises. ``stop`` ends an answer."""

    image_start: int
    image_end: int
    image_patch: int
    image_column: int
    low_res_image_start: int
    image_low_res: int
    frame_start: int
    frame_end: int
    bos: int
    pad: int
    stop: tuple[int, ...]

    @property
    def image_part(self) -> tuple[int, ...]:
        """The eight ids of type 1: they see each other in both directions."""
        return (
            self.image_patch,
            self.image_column,
            self.image_start,
            self.low_res_image_start,
            self.frame_start,
            self.image_end,
            self.frame_end,
            self.image_low_res,
        )


class Processor(Frozen):
    """How a picture becomes crops, groups and tokens. ``mean`` and ``std`` are per RGB channel of values in 0..1."""

    image_size: tuple[int, int]
    patch_size: int
    max_crops: int
    overlap_margins: tuple[int, int]
    pooling_size: tuple[int, int]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    column_tokens: bool
    single_crop_column_tokens: bool
    single_crop_start_token: bool

    @property
    def group_size(self) -> int:
        """P, patches of one group."""
        return math.prod(self.pooling_size)


class Architecture(Frozen):
    """Everything above for one checkpoint."""

    vision: Vision
    connector: Connector
    text: Text
    tokens: Tokens
    processor: Processor
    video: bool


def pooled_grid(rows: int, columns: int, pooling: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of groups on a patch grid; an odd side ends in a part-filled one: (27, 46) by 2x2, (14, 23)."""
    return -(-rows // pooling[0]), -(-columns // pooling[1])


def canvas_patches(tiles: int, grid: int, margins: tuple[int, int]) -> int:
    """Patches along a canvas of ``tiles`` overlapping crops: 1..3 tiles of 27 with margins (4, 4) give 27, 46, 65."""
    return tiles * (grid - sum(margins)) + sum(margins)


def image_groups(processor: Processor, rows: int, columns: int) -> int:
    """Groups (= image tokens) of one image cut into ``rows`` x ``columns`` crops, the low-res view included."""
    grid = (processor.image_size[0] // processor.patch_size, processor.image_size[1] // processor.patch_size)
    low = math.prod(pooled_grid(*grid, processor.pooling_size))
    canvas = (
        canvas_patches(rows, grid[0], processor.overlap_margins),
        canvas_patches(columns, grid[1], processor.overlap_margins),
    )
    return low + math.prod(pooled_grid(*canvas, processor.pooling_size))


def tilings(max_crops: int) -> list[tuple[int, int]]:
    """Every (rows, columns) of at most ``max_crops`` crops, ordered by (rows * columns, rows): 20 of them for 8."""
    sides = range(1, max_crops + 1)
    return sorted(((i, j) for i in sides for j in sides if i * j <= max_crops), key=lambda t: (t[0] * t[1], t[0]))


def most_groups(processor: Processor, crops: int) -> int:
    """Most groups an image of at most ``crops`` crops (low-res view included) can have: 1316 for 9 in the release."""
    fitting = [t for t in tilings(processor.max_crops) if t[0] * t[1] + 1 <= crops]
    return max(image_groups(processor, *t) for t in fitting)
