"""The deciding reference: transformers' own Molmo2 in float32, reading the same original files (contract section 10).

It runs the stages by itself; hooks only listen. Axes as in ``specification``: S prompt positions, C crops, N patches,
E values of a patch, G groups, P patches of a group, d text width, V vocabulary, K kv heads, h head dim.
"""

import json
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
import transformers
from transformers import Molmo2ForConditionalGeneration

from molmo2_iree.errors import CheckpointError, GateError, UnsupportedError

Counts = Sequence[int] | np.ndarray
"""One number for each image."""

THREADS = 2
"""Threads of the reference, whatever the machine has: the split of a sum over threads decides its rounding."""

PRECISION = "highest"
"""Setting of torch's float32 matrix products while the reference runs: no reduced-precision mode."""


def load(folder: Path, device: str = "cpu") -> Molmo2ForConditionalGeneration:
    """The model of a checkpoint folder: float32, scaled-dot-product attention, no tensor missing or left over."""
    torch.set_num_threads(THREADS)
    _check_supported(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    loaded: Any = Molmo2ForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True, output_loading_info=True
    )
    model, info = loaded
    wrong = {kind: sorted(map(str, names)) for kind, names in info.items() if names}
    if wrong:
        raise CheckpointError(
            str(folder),
            got=wrong,
            expected="every tensor read and none left over",
            fix="fetch the checkpoint again: molmo2 fetch",
        )
    return model.eval().to(device)


def _check_supported(config: dict[str, Any]) -> None:
    """Refuse what this implementation would silently compute in another way."""
    for part, field in (("text_config", "use_qk_norm"), ("adapter_config", "pooling_attention_mask")):
        if not config[part][field]:
            raise UnsupportedError(
                f"transformers reference, {part}.{field}",
                got=config[part][field],
                expected="True: transformers ignores the field",
                fix="compare this checkpoint with the float64 specification only",
            )


def observe(
    model: Molmo2ForConditionalGeneration,
    ids: np.ndarray,
    types: np.ndarray,
    patches: np.ndarray,
    groups: np.ndarray,
    crops: Counts,
    *,
    group_counts: Counts,
    causal_image: bool = False,
) -> dict[str, np.ndarray]:
    """The named intermediates of ``specification.specify``, as float32, but for ``connector.mask`` and ``.valid``.

    Rows of ``connector.pooled`` without any patch hold no defined values.
    """
    arguments = _arguments(model, ids, types, patches, groups, crops, group_counts, causal_image)
    result: dict[str, np.ndarray] = {}
    with _exact(), _listening(model, result):
        output = model(**arguments, use_cache=True)
    if len(crops):
        result["connector.tokens"] = np.where(_filled(groups)[:, None], result["connector.tokens"], 0)
    result["prefill.logits"] = _numpy(output.logits[0])
    for layer, rows in enumerate(output.cache.layers):
        result[f"prefill.keys.{layer}"] = _numpy(rows.keys[0].transpose(1, 2))
        result[f"prefill.values.{layer}"] = _numpy(rows.values[0])
    return result


def greedy(
    model: Molmo2ForConditionalGeneration,
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
    """``steps`` tokens, each the first maximum, and the logits [steps, V] they came from; stop ids do not stop it."""
    arguments = _arguments(model, ids, types, patches, groups, crops, group_counts, causal_image)
    tokens: list[int] = []
    logits: list[np.ndarray] = []
    with _exact():
        output = model(**arguments, use_cache=True)
        while True:
            logits.append(_numpy(output.logits[0, -1]))
            tokens.append(int(np.argmax(logits[-1])))
            if len(tokens) == steps:
                return tokens, np.stack(logits)
            new = torch.tensor([tokens[-1:]], device=model.device)
            output = model(input_ids=new, cache=output.cache, use_cache=True)


def connect(model: Molmo2ForConditionalGeneration, features: np.ndarray, groups: np.ndarray) -> dict[str, np.ndarray]:
    """The connector alone: features [C, N, F], groups [G, P] -> ``connector.*``; rows without a patch hold zeros."""
    result: dict[str, np.ndarray] = {}
    with _exact(), _listening(model, result):
        model.model.multi_modal_projector(
            torch.from_numpy(features).to(model.device), torch.from_numpy(groups.astype(np.int64)).to(model.device)
        )
    filled = _filled(groups)
    for name in ("connector.pooled", "connector.tokens"):
        result[name] = np.where(filled[:, None], result[name], 0)
    return {name: value for name, value in result.items() if name.startswith("connector.")}


def environment(device: str = "cpu") -> dict[str, str | int | bool]:
    """What a record must say about this reference: versions, device, dtype and precision switches as they run."""
    with _exact():
        return {
            "python": platform.python_version(),
            "torch": torch.__version__.partition("+")[0],
            "torch_build": torch.__version__,
            "transformers": transformers.__version__,
            "safetensors": safetensors.__version__,
            "numpy": np.__version__,
            "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else device,
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "dtype": "float32",
            "attention": "sdpa",
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
            "cuda_matmul_tf32": torch.backends.cuda.matmul.allow_tf32,
            "cudnn_tf32": torch.backends.cudnn.allow_tf32,
            "mkldnn": torch.backends.mkldnn.is_available(),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "threads": torch.get_num_threads(),
        }


@contextmanager
def _exact() -> Iterator[None]:
    """Full float32 products and deterministic kernels, without gradients; the former settings come back."""
    precision, deterministic = torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()
    convolution = torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision(PRECISION)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.allow_tf32 = False
    try:
        with torch.inference_mode():
            yield
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.use_deterministic_algorithms(deterministic)
        torch.backends.cudnn.allow_tf32 = convolution


def _arguments(
    model: Molmo2ForConditionalGeneration,
    ids: np.ndarray,
    types: np.ndarray,
    patches: np.ndarray,
    groups: np.ndarray,
    crops: Counts,
    group_counts: Counts,
    causal_image: bool,
) -> dict[str, torch.Tensor]:
    """The model's inputs: group indices count the patches of all crops, grids count the rows that hold a patch."""
    if len(groups) != sum(group_counts) or len(patches) != sum(crops):
        raise GateError(
            "transformers reference",
            got=f"{len(groups)} groups, {len(patches)} crops",
            expected=f"{sum(group_counts)} and {sum(crops)}, the sums over the images",
            fix="prepare the request again",
        )
    arrays = {"input_ids": ids[None].astype(np.int64), "attention_mask": np.ones((1, len(ids)), np.int64)}
    if len(crops):
        first = (np.cumsum(crops) - np.asarray(crops)) * patches.shape[1]
        owner = np.repeat(np.arange(len(crops)), group_counts)
        kept = np.bincount(owner, weights=_filled(groups), minlength=len(crops)).astype(np.int64)
        arrays |= {
            "pixel_values": patches.astype(np.float32),
            "image_token_pooling": np.where(groups >= 0, groups + first[owner, None], -1).astype(np.int32),
            "image_grids": np.stack([kept, np.ones_like(kept), 0 * kept, 0 * kept], axis=1),
            "image_num_crops": np.asarray(crops, np.int64),
        }
    if not causal_image:
        arrays["mm_token_type_ids"] = types[None].astype(np.int64)
    return {name: torch.from_numpy(array).to(model.device) for name, array in arrays.items()}


def _filled(groups: np.ndarray) -> np.ndarray:
    """groups [G, P] -> [G], whether the row holds a patch: [[3, -1], [-1, -1]] gives [True, False]."""
    return np.any(groups >= 0, axis=1)


def _numpy(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy().copy()


Seen = Callable[[tuple[Any, ...], dict[str, Any], Any], dict[str, torch.Tensor]]


@contextmanager
def _listening(model: Molmo2ForConditionalGeneration, result: dict[str, np.ndarray]) -> Iterator[None]:
    """Write into ``result`` what the modules take and give while the model runs."""
    vit, adapter, text = model.model.vision_tower, model.model.multi_modal_projector, model.model.language_model
    points: list[tuple[torch.nn.Module, Seen]] = [
        (vit.patch_embedding, lambda _, __, out: {"vision.embedded": out}),
        (adapter, lambda args, _, __: {"vision.features": args[0]}),
        (adapter.image_pooling_2d, _pooling),
        (adapter.image_projector, lambda _, __, out: {"connector.tokens": out}),
        (text, lambda _, named, __: {"merge.embeddings": named["inputs_embeds"][0]}),
        *((layer, _layer(index)) for index, layer in enumerate(text.layers)),
        *((block, _block(index)) for index, block in enumerate(vit.layers)),
    ]

    def hook(seen: Seen) -> Callable[..., None]:
        def listen(_: torch.nn.Module, args: tuple[Any, ...], named: dict[str, Any], out: Any) -> None:
            result.update({name: _numpy(tensor) for name, tensor in seen(args, named, out).items()})

        return listen

    with ExitStack() as stack:
        for module, seen in points:
            stack.callback(module.register_forward_hook(hook(seen), with_kwargs=True).remove)
        yield


def _pooling(args: tuple[Any, ...], _: dict[str, Any], out: Any) -> dict[str, torch.Tensor]:
    query, gathered = args
    return {
        "connector.query": query.squeeze(1),
        "connector.gathered": gathered,
        "connector.pooled": out[0].squeeze(1),
    }


def _block(index: int) -> Seen:
    def seen(args: tuple[Any, ...], _: dict[str, Any], out: Any) -> dict[str, torch.Tensor]:
        return {f"vision.block.{index}": out} | ({"vision.positioned": args[0]} if index == 0 else {})

    return seen


def _layer(index: int) -> Seen:
    return lambda _, __, out: {f"prefill.layer.{index}": out[0]}
