"""Hears what the modules of mlx-vlm's Molmo2 take and give, and lets a stage go on from a given array instead.

MLX has no hooks, so a module's place is taken, for the time of a run, by one that calls it.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import mlx.core as mx
import numpy as np

Seen = Callable[[tuple[Any, ...], dict[str, Any], Any], Mapping[str, mx.array | None]]


class Heard:
    """Stands for ``module``; ``instead`` is what it gives on, its own result if None."""

    def __init__(self, module: Any, seen: Seen, result: dict[str, np.ndarray], instead: mx.array | None = None) -> None:
        self.module, self.seen, self.result, self.instead = module, seen, result, instead

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Run the module and keep what ``seen`` picks of it."""
        out = self.module(*args, **named)
        arrays = self.seen(args, named, out)
        self.result.update({name: np.array(array) for name, array in arrays.items() if array is not None})
        return out if self.instead is None else self.instead

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)


@contextmanager
def listening(model: Any, result: dict[str, np.ndarray], given: Mapping[str, np.ndarray]) -> Iterator[None]:
    """Write into ``result`` what the modules take and give; ``given`` features and tokens go to the next stage."""
    tower, text = model.vision_tower, model.language_model.model
    vit = tower.image_vit
    places: list[tuple[Any, Any, Seen, mx.array | None]] = [
        (vit, "patch_embedding", lambda _, __, out: {"vision.embedded": out}, None),
        (tower, "image_pooling_2d", _pooling, None),
        (tower, "image_projector", lambda _, __, out: {"connector.tokens": out.reshape(-1, out.shape[-1])}, None),
        (model, "vision_tower", lambda *_: {}, _tokens(given)),
        *((vit.transformer, index, _block(index), None) for index in range(len(vit.transformer))),
        *((text.blocks, index, _layer(index), None) for index in range(len(text.blocks))),
    ]
    with ExitStack() as stack:
        for holder, key, seen, instead in places:
            stack.callback(holder.__setitem__, key, holder[key])
            holder[key] = Heard(holder[key], seen, result, instead)
        tower.encode_image = Heard(tower.encode_image, lambda _, __, out: {"vision.features": out[0]}, result)
        stack.callback(delattr, tower, "encode_image")
        if "vision.features" in given:
            tower.encode_image.instead = mx.array(given["vision.features"].astype(np.float32))[None]
        yield


def _tokens(given: Mapping[str, np.ndarray]) -> mx.array | None:
    """Tokens of the rows with a patch, as the tower gives them on."""
    if "connector.tokens" not in given:
        return None
    return mx.array(given["connector.tokens"][given["connector.valid"] == 1].astype(np.float32))


def _pooling(args: tuple[Any, ...], named: dict[str, Any], out: Any) -> dict[str, mx.array | None]:
    query, gathered = args
    mask = named["attn_mask"]
    return {
        "connector.query": query.squeeze(1),
        "connector.gathered": gathered,
        "connector.mask": None if mask is None else mask.squeeze((1, 2)).astype(mx.int32),
        "connector.pooled": out.squeeze(1),
    }


def _block(index: int) -> Seen:
    def seen(args: tuple[Any, ...], _: dict[str, Any], out: Any) -> dict[str, mx.array | None]:
        return {f"vision.block.{index}": out} | ({"vision.positioned": args[0]} if index == 0 else {})

    return seen


def _layer(index: int) -> Seen:
    return lambda _, __, out: {f"prefill.layer.{index}": out[0]}
