"""The specification: every intermediate of one request in float64, straight from the contract and the stored tensors.

It shares no code with the traced model, so an error there cannot hide here. Axes: S prompt positions, C crops of all
images, N patches of a crop, E values of a patch, G groups of all images, P patches of a group, d text width,
V vocabulary, K kv heads, h head dim.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from molmo2_iree.errors import GateError
from molmo2_iree.parity.specification_files import Original
from molmo2_iree.parity.specification_text import Rows, decoder, embed, prefill_mask
from molmo2_iree.parity.specification_vision import connector, vision

Counts = Sequence[int] | np.ndarray
"""One number for each image."""


def specify(
    folder: Path,
    ids: np.ndarray,
    types: np.ndarray,
    patches: np.ndarray,
    groups: np.ndarray,
    crops: Counts,
    *,
    group_counts: Counts,
    causal_image: bool = False,
) -> dict[str, np.ndarray]:
    """ids and types [S], patches [C, N, E], groups [G, P] local to each image, crops and groups of every image.

    Returns ``vision.*`` and ``connector.*`` (left out without an image), ``merge.embeddings`` [S, d],
    ``prefill.layer.{i}`` [S, d], ``prefill.logits`` [S, V], ``prefill.keys.{i}`` [K, h, S] and ``prefill.values.{i}``
    [K, S, h]. ``causal_image`` is the mask policy of checkpoints whose image part is causal.
    """
    original = Original(folder)
    result = _merged(original, ids, patches, groups, crops, group_counts)
    mask = prefill_mask(types, causal_image=causal_image)
    states, rows, logits = decoder(original, result["merge.embeddings"], mask)
    result |= {f"prefill.layer.{layer}": state for layer, state in enumerate(states)}
    result["prefill.logits"] = logits
    for layer, (keys, values) in enumerate(rows):
        result |= {f"prefill.keys.{layer}": keys, f"prefill.values.{layer}": values}
    return result


def connect(folder: Path, features: np.ndarray, groups: np.ndarray) -> dict[str, np.ndarray]:
    """The connector alone: features [C, N, F], groups [G, P] -> ``connector.*``."""
    return connector(Original(folder), features.astype(np.float64), groups)


def greedy(
    folder: Path,
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
    prefilled = specify(
        folder, ids, types, patches, groups, crops, group_counts=group_counts, causal_image=causal_image
    )
    original = Original(folder)
    rows: list[Rows] = []
    for layer in range(original.config["text_config"]["num_hidden_layers"]):
        rows.append((prefilled[f"prefill.keys.{layer}"], prefilled[f"prefill.values.{layer}"]))
    logits = [prefilled["prefill.logits"][-1]]
    tokens = [int(np.argmax(logits[-1]))]
    while len(tokens) < steps:
        seen = np.ones((1, len(ids) + len(tokens)), bool)
        _, rows, new = decoder(original, embed(original, np.array(tokens[-1:])), seen, rows)
        logits.append(new[0])
        tokens.append(int(np.argmax(new[0])))
    return tokens, np.stack(logits)


def _merged(
    original: Original,
    ids: np.ndarray,
    patches: np.ndarray,
    groups: np.ndarray,
    crops: Counts,
    group_counts: Counts,
) -> dict[str, np.ndarray]:
    """Vision and connector image by image, and their tokens added to the embeddings of the image-patch ids."""
    embeddings = embed(original, ids)
    if not len(crops):
        return {"merge.embeddings": embeddings}
    result = vision(original, patches)
    parts = [
        connector(original, features, table)
        for features, table in zip(_parts(result["vision.features"], crops), _parts(groups, group_counts), strict=True)
    ]
    result |= {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    kept = result["connector.tokens"][result["connector.valid"] == 1]
    places = np.flatnonzero(ids == original.config["image_patch_id"])
    if len(places) != len(kept):
        raise GateError(
            "specification, merge",
            got=f"{len(places)} image-patch ids",
            expected=f"{len(kept)}, one for each group with a patch",
            fix="prepare ids and groups together",
        )
    embeddings[places] += kept
    return result | {"merge.embeddings": embeddings}


def _parts(array: np.ndarray, counts: Counts) -> list[np.ndarray]:
    """Cut along the first axis: 8 rows by counts 3 and 5 give rows 0 to 2 and 3 to 7."""
    return np.split(array, np.cumsum(counts)[:-1])
