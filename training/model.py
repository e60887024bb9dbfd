"""The network to train: transformers' own Molmo2 from the project's configuration files, and the auxiliary heads."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from transformers import Molmo2Config, Molmo2ForConditionalGeneration

from molmo2_iree.build.embedded_config import Variant, json_files
from training.batches import KINDS, SHADES, Batch, Pictures, make_pictures

FLOOR = 0.02
"""Variance of a principal component of patches (sides -1 to 1) that is added before scaling to one size."""

HEADS = {"kind": len(KINDS), "colour": len(SHADES), "digits": 40, "offset": 2}
"""What the auxiliary heads read from each image token, and how many numbers that takes."""


def new_model(variant: Variant, seed: int) -> Molmo2ForConditionalGeneration:
    """Fresh weights: matrices by their fan-in, those that end a block of a residual stream smaller."""
    torch.manual_seed(seed)
    config = Molmo2Config.from_dict(json_files(variant)["config.json"])
    config._attn_implementation = "sdpa"
    model: Any = Molmo2ForConditionalGeneration(config)
    for name, value in model.named_parameters():
        if name.endswith("positional_embedding"):
            value.data.copy_(torch.from_numpy(places(variant)))
        elif "embed_tokens" in name:
            nn.init.normal_(value, std=0.3)
        elif value.dim() == 2:
            last = name.endswith(("o_proj.weight", "fc2.weight", "down_proj.weight")) and "projector" not in name
            depth = 2 * (variant.blocks if "vision" in name else variant.text_layers)
            nn.init.normal_(value, std=1 / math.sqrt(value.shape[1] * (depth if last else 1)))
    nn.init.normal_(model.lm_head.weight, std=0.03)
    for layer in model.model.vision_tower.layers:
        layer.self_attn.q_proj.weight.data *= 0.8
        layer.self_attn.k_proj.weight.data.copy_(layer.self_attn.q_proj.weight.data)
    embedding = model.model.vision_tower.patch_embedding
    weight, bias = edge_filters(variant, seed)
    embedding.weight.data.copy_(torch.from_numpy(weight))
    embedding.bias.data.copy_(torch.from_numpy(bias))
    return model.train()


def places(variant: Variant) -> np.ndarray:
    """Position table to start from, [grid * grid, width]: waves across and down, so that near patches are alike.

    Where keys start equal to queries, a patch then looks at its neighbours before anything is learned.
    """
    waves = 1.5 * 0.1 ** (np.arange(variant.vit_width // 4) / (variant.vit_width // 4 - 1))
    turns = np.arange(variant.grid)[:, None] * waves
    line = np.concatenate([np.sin(turns), np.cos(turns)], axis=1)
    down, across = np.repeat(line, variant.grid, axis=0), np.tile(line, (variant.grid, 1))
    return np.concatenate([down, across], axis=1).astype(np.float32)


def edge_filters(variant: Variant, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A patch embedding to start from, [width, E] and [width]: the principal components of patches, each as loud.

    Nine tenths of a patch's variance is its brightness, and the edges that make a shape are below a hundredth; with
    the components scaled to one size (down to FLOOR, below which is noise) shapes are learned from the first step on.
    """
    patches = np.concatenate([make_pictures(variant, (seed, 999, k), 24).patches for k in range(8)])
    values = patches.reshape(-1, patches.shape[-1]).astype(np.float64)
    spread, axes = np.linalg.eigh(np.cov(values.T))
    spread, axes = spread[::-1][: variant.vit_width], axes[:, ::-1][:, : variant.vit_width]
    axes = axes * np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(axes.shape[1])])
    weight = (axes / np.sqrt(spread + FLOOR)).T
    return weight.astype(np.float32), -(weight @ values.mean(axis=0)).astype(np.float32)


class Heads(nn.Module):
    """One linear reading of the image tokens for each dense target; thrown away after training."""

    def __init__(self, width: int, features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, sum(HEADS.values()))
        self.patch = nn.Linear(features, len(KINDS) + len(SHADES))

    def forward(self, tokens: torch.Tensor, wanted: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
        """Losses by target, of tokens [G, d]: classes everywhere, place only where a thing is."""
        parts = dict(zip(HEADS, self.linear(tokens).split(list(HEADS.values()), dim=1), strict=True))
        target = {name: torch.from_numpy(value) for name, value in wanted.items()}
        there = target["kind"] > 0
        share = there.float().mean().clamp(min=0.02)
        return {
            "kind": functional.cross_entropy(parts["kind"], target["kind"]) / share,
            "colour": functional.cross_entropy(parts["colour"], target["colour"]) / share / 4,
            "digits": functional.cross_entropy(
                parts["digits"].reshape(-1, 10), target["digits"].reshape(-1), ignore_index=-1
            )
            / 4
            if (target["digits"] >= 0).any()
            else parts["digits"].sum() * 0,
            "offset": (
                functional.smooth_l1_loss(parts["offset"], target["offset"], reduction="none").sum(1) * there
            ).mean()
            / share,
        }


@contextmanager
def features_of(model: Any) -> Iterator[list[torch.Tensor]]:
    """Collects what the connector takes while the model runs: joined states [crops, N, features]."""
    seen: list[torch.Tensor] = []
    hook = model.model.multi_modal_projector.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    try:
        yield seen
    finally:
        hook.remove()


def patch_losses(heads: Heads, features: torch.Tensor, wanted: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Losses of joined states [crops, N, features]: on which shape and colour does the middle of a patch lie."""
    kind, colour = heads.patch(features.flatten(0, 1)).split((len(KINDS), len(SHADES)), dim=1)
    target = torch.from_numpy(wanted["patch_kind"])
    share = (target > 0).float().mean().clamp(min=0.02)
    return {
        "patch_kind": functional.cross_entropy(kind, target) / share,
        "patch_colour": functional.cross_entropy(colour, torch.from_numpy(wanted["patch_colour"])) / share / 4,
    }


def image_tokens(model: Any, pictures: Pictures) -> torch.Tensor:
    """[G, d]: the connector's rows for every group of the batch."""
    return torch.cat(model.model.get_image_features(**picture_arguments(pictures)).pooler_output)


def picture_arguments(pictures: Pictures) -> dict[str, torch.Tensor]:
    """What the model takes for pictures, as the native reference feeds it."""
    kept = pictures.kept
    return {
        "pixel_values": torch.from_numpy(pictures.patches),
        "image_token_pooling": torch.from_numpy(pictures.groups.astype(np.int32)),
        "image_grids": torch.from_numpy(np.stack([kept, np.ones_like(kept), 0 * kept, 0 * kept], axis=1)),
    }


def answer_loss(model: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Weighted mean loss of the answers' tokens, and the image tokens [G, d] on the way."""
    encoded = None
    if batch.pictures is not None:
        encoded = {"image": model.model.get_image_features(**picture_arguments(batch.pictures))}
    hidden = model.model(
        input_ids=torch.from_numpy(batch.ids),
        attention_mask=torch.from_numpy(batch.visible),
        position_ids=torch.from_numpy(batch.positions),
        mm_token_type_ids=torch.zeros(batch.ids.shape, dtype=torch.long),
        mm_encoder_outputs=encoded,
        use_cache=False,
    ).last_hidden_state
    wanted, weights = torch.from_numpy(batch.wanted), torch.from_numpy(batch.weights)
    chosen = wanted >= 0
    losses = functional.cross_entropy(model.lm_head(hidden[chosen]), wanted[chosen], reduction="none")
    weights = weights[chosen]
    loss = (losses * weights).sum() / weights.sum()
    return loss, None if encoded is None else torch.cat(encoded["image"].pooler_output)
