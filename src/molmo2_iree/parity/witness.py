"""The second witness: mlx-vlm's Molmo2 on the CPU in float32, as shipped or with three corrections.

It reads the same original files. The corrections are made from outside, on the loaded model; contract section 10 has
what they correct. Axes as in ``specification``: S prompt positions, C crops, N patches, E values of a patch, G groups,
P patches of a group, d text width, V vocabulary.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten
from mlx_vlm.models.cache import make_prompt_cache
from mlx_vlm.models.molmo2.config import ModelConfig, TextConfig, VisionConfig
from mlx_vlm.models.molmo2.molmo2 import Model

from molmo2_iree.errors import CheckpointError, GateError, UnsupportedError
from molmo2_iree.parity.witness_listening import listening

Counts = Sequence[int] | np.ndarray
"""One number for each image."""

Arrays = dict[str, np.ndarray]

DEVICE = mx.cpu
INJECTED = ("vision.features", "connector.tokens", "connector.valid", "merge.embeddings")
"""Arrays of the specification that the shipped model goes on from, so that an error stays in its own stage."""

BEFORE_THE_DECODER = ("vision", "connector", "merge")
DECODER = ("prefill", "extend", "decode")
ONE_DECODER: Mapping[str, Any] = {
    "norm_after": False,
    "use_qk_norm": True,
    "qk_norm_type": "qwen3",
    "rope_scaling": None,
}
"""The only values of text_config that mlx-vlm's decoder computes; it reads no others."""

_BLOCK = re.compile(r"model\.vision_backbone\.image_vit\.transformer\.resblocks\.(\d+)\.")
_LAYERS = "model.transformer.blocks."


@dataclass(frozen=True)
class Witness:
    """A loaded model. ``covers`` are the stages it can speak about; ``decoder`` is why not the others, if any."""

    model: Any
    corrected: bool
    decoder: str | None

    @property
    def covers(self) -> tuple[str, ...]:
        """Stages, in the order of the line."""
        return BEFORE_THE_DECODER if self.decoder else BEFORE_THE_DECODER + DECODER


# --- the three corrections --------------------------------------------------------------------------------------------


def choose_layers(model: Any, config: Mapping[str, Any]) -> None:
    """Count negative layers from the declared blocks, not the stored ones: -3 and -9 are 24 and 18, not 22 and 16."""
    declared = config["vit_config"]["num_hidden_layers"]
    selected = config["adapter_config"]["vit_layers"]
    model.vision_tower.vit_layers = [layer + declared if layer < 0 else layer for layer in selected]


def use_tanh_gelu(model: Any) -> None:
    """The tanh form that gelu_pytorch_tanh names, where the package has x * sigmoid(1.702 x)."""
    for block in model.vision_tower.image_vit.transformer:
        block.feed_forward.act = nn.GELU(approx="tanh")


def image_mask(types: np.ndarray) -> mx.array:
    """types [S] -> visible [1, 1, S, S]: causal or both of type 1, where the package has causal.

    types [0, 1, 1] give rows [1 0 0], [1 1 1], [1 1 1].
    """
    positions, image = mx.arange(len(types)), mx.array(types.astype(np.int32)) == 1
    visible = (positions[None, :] <= positions[:, None]) | (image[None, :] & image[:, None])
    return visible[None, None]


CORRECTIONS = {"layers": choose_layers, "gelu": use_tanh_gelu, "mask": image_mask}

# --- loading ----------------------------------------------------------------------------------------------------------


def load(folder: Path, *, corrected: bool) -> Witness:
    """The model of a checkpoint folder; without its decoder where that one is not the only kind the package has."""
    mx.set_default_device(DEVICE)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    reason = next((f"text_config.{key}" for key, one in ONE_DECODER.items() if config["text_config"][key] != one), None)
    tensors = {name: array for name, array in _tensors(folder) if not (reason and name.startswith(_LAYERS))}
    stored = {int(found.group(1)) for name in tensors if (found := _BLOCK.match(name))}
    model = Model(_settings(config, len(stored), decoder=reason is None))
    try:
        model.load_weights(list(model.sanitize(tensors).items()), strict=True)
    except ValueError as error:
        raise CheckpointError(
            str(folder),
            got=str(error)[:300],
            expected="every tensor read and none left over",
            fix="fetch the checkpoint again: molmo2 fetch",
        ) from error
    mx.eval(model.parameters())
    if corrected:
        choose_layers(model, config)
        use_tanh_gelu(model)
    return Witness(model.eval(), corrected, reason)


def _tensors(folder: Path) -> Iterator[tuple[str, mx.array]]:
    """Every stored tensor as float32, by its original name."""
    index = folder / "model.safetensors.index.json"
    names = {"model.safetensors"}
    if index.exists():
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    for name in sorted(names):
        loaded: Any = mx.load(str(folder / name))
        yield from ((tensor, array.astype(mx.float32)) for tensor, array in loaded.items())


def _settings(config: Mapping[str, Any], stored: int, *, decoder: bool) -> ModelConfig:
    """The package's configuration. Its own reader cuts a release's 27 declared blocks to the 25 stored ones and then
    counts negative layers from 25; the same is done here with whatever number is stored.
    """
    settings = ModelConfig.from_dict(dict(config))
    text = dict(config["text_config"]) | ({} if decoder else {"num_hidden_layers": 0, "rope_scaling": None})
    settings.text_config = TextConfig.from_dict(text)
    settings.vision_config = VisionConfig.from_dict(
        {
            "vit_config": dict(config["vit_config"]) | {"num_hidden_layers": stored},
            "adapter_config": config["adapter_config"],
        }
    )
    return settings


def environment(witness: Witness) -> dict[str, Any]:
    """What a record must say about this reference: versions, device, dtype, corrections and injected arrays."""
    parameters: Any = tree_flatten(witness.model.parameters())
    dtypes = {str(array.dtype).removeprefix("mlx.core.") for _, array in parameters}
    return {
        "mlx": version("mlx"),
        "mlx-vlm": version("mlx-vlm"),
        "numpy": np.__version__,
        "device": mx.default_device().type.name,
        "processor": mx.device_info(DEVICE)["device_name"],
        "dtype": ", ".join(sorted(dtypes)),
        "corrections": sorted(CORRECTIONS) if witness.corrected else [],
        "injected": [] if witness.corrected else list(INJECTED),
        "covers": list(witness.covers),
        "decoder_refused_for": witness.decoder,
    }


# --- running ----------------------------------------------------------------------------------------------------------


def observe(
    witness: Witness,
    ids: np.ndarray,
    types: np.ndarray,
    patches: np.ndarray,
    groups: np.ndarray,
    crops: Counts,
    *,
    group_counts: Counts,
    causal_image: bool = False,
    injected: Mapping[str, np.ndarray] | None = None,
) -> Arrays:
    """The named intermediates of ``specification.specify``, as float32, but for ``connector.valid``.

    Each stage goes on from the array of ``injected`` that it reads, if there: see INJECTED. Without a decoder only
    ``vision.*``, ``connector.*`` and ``merge.embeddings``. Pooled rows of no patch hold no defined values.
    """
    given = {name: np.asarray(value) for name, value in (injected or {}).items() if name in INJECTED}
    result: Arrays = {}
    with listening(witness.model, result, given):
        embeddings = _embeddings(witness, ids, patches, groups, crops, group_counts)
        result["merge.embeddings"] = np.array(embeddings[0])
        if "merge.embeddings" in given:
            embeddings = mx.array(given["merge.embeddings"].astype(np.float32))[None]
        if not witness.decoder:
            cache = make_prompt_cache(witness.model.language_model)
            logits = _prefill(witness, embeddings, types, cache, causal_image)
            result["prefill.logits"] = np.array(logits[0])
            for layer, rows in enumerate(cache):
                keys, values = rows.state
                result[f"prefill.keys.{layer}"] = np.array(keys[0].transpose(0, 2, 1))
                result[f"prefill.values.{layer}"] = np.array(values[0])
    if len(crops):
        result["connector.tokens"] = np.where(_filled(groups)[:, None], result["connector.tokens"], np.float32(0))
    return result


def greedy(
    witness: Witness,
    ids: np.ndarray,
    types: np.ndarray,
    patches: np.ndarray,
    groups: np.ndarray,
    crops: Counts,
    *,
    group_counts: Counts,
    steps: int,
    causal_image: bool = False,
) -> tuple[list[int], np.ndarray]:
    """``steps`` tokens, each the first maximum, and the logits [steps, V] they came from; stop ids do not stop it.

    Nothing is injected: these are the answers of the whole model.
    """
    if witness.decoder:
        raise UnsupportedError(
            f"mlx-vlm reference, {witness.decoder}",
            got="another decoder than the one it has",
            expected=", ".join(f"{key} {value}" for key, value in ONE_DECODER.items()),
            fix="compare this checkpoint's decoder with the specification and with transformers",
        )
    cache = make_prompt_cache(witness.model.language_model)
    embeddings = _embeddings(witness, ids, patches, groups, crops, group_counts)
    new = _prefill(witness, embeddings, types, cache, causal_image)
    tokens: list[int] = []
    logits: list[np.ndarray] = []
    while True:
        logits.append(np.array(new[0, -1]))
        tokens.append(int(np.argmax(logits[-1])))
        if len(tokens) == steps:
            return tokens, np.stack(logits)
        new = witness.model.language_model(mx.array([tokens[-1:]]), cache=cache).logits


def connect(witness: Witness, features: np.ndarray, groups: np.ndarray) -> Arrays:
    """The connector alone: features [C, N, F], groups [G, P] -> ``connector.*``; rows without a patch hold zeros."""
    result: Arrays = {}
    crops, patches, _ = features.shape
    with listening(witness.model, result, {"vision.features": features}):
        unused = mx.zeros((1, crops, patches, witness.model.vision_tower.image_vit.patch_embedding.weight.shape[-1]))
        witness.model.vision_tower(unused, mx.array(groups.astype(np.int32))[None])
    filled = _filled(groups)
    for name in ("connector.pooled", "connector.tokens"):
        result[name] = np.where(filled[:, None], result[name], np.float32(0))
    return {name: value for name, value in result.items() if name.startswith("connector.")}


def _prefill(witness: Witness, embeddings: mx.array, types: np.ndarray, cache: list[Any], causal: bool) -> mx.array:
    mask = image_mask(types) if witness.corrected and not causal else None
    text = witness.model.language_model
    return text(mx.zeros(embeddings.shape[:2], mx.int32), inputs_embeds=embeddings, mask=mask, cache=cache).logits


def _embeddings(
    witness: Witness, ids: np.ndarray, patches: np.ndarray, groups: np.ndarray, crops: Counts, group_counts: Counts
) -> mx.array:
    """[1, S, d] by the package's own merge, which wants indices local to each image and grids that count every row."""
    if len(groups) != sum(group_counts) or len(patches) != sum(crops):
        raise GateError(
            "mlx-vlm reference",
            got=f"{len(groups)} groups, {len(patches)} crops",
            expected=f"{sum(group_counts)} and {sum(crops)}, the sums over the images",
            fix="prepare the request again",
        )
    pictures: dict[str, mx.array] = {}
    if len(crops):
        counts = np.asarray(group_counts, np.int32)
        pictures = {
            "pixel_values": mx.array(patches.astype(np.float32)),
            "image_token_pooling": mx.array(groups.astype(np.int32)),
            "image_grids": mx.array(np.stack([counts, np.ones_like(counts), 0 * counts, 0 * counts], axis=1)),
            "image_num_crops": mx.array(np.asarray(crops, np.int32)),
        }
    try:
        return witness.model.get_input_embeddings(mx.array(ids[None].astype(np.int32)), **pictures).inputs_embeds
    except ValueError as error:
        raise GateError(
            "mlx-vlm reference, merge",
            got=str(error)[:200],
            expected="an image-patch id for each group with a patch, two image ends for each image",
            fix="prepare ids and groups together",
        ) from error


def _filled(groups: np.ndarray) -> np.ndarray:
    """groups [G, P] -> [G], whether the row holds a patch: [[3, -1], [-1, -1]] gives [True, False]."""
    return np.any(groups >= 0, axis=1)
