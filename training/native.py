"""Greedy answers of a checkpoint by transformers' own Molmo2, requests of one form together."""

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from molmo2_iree.detect import read_architecture
from molmo2_iree.parity.native import load
from molmo2_iree.preprocess.payload import Payload
from molmo2_iree.preprocess.prepare import load_processor, prepare
from molmo2_iree.preprocess.prompt import messages_for

LONGEST = 80
"""Tokens of an answer at most."""

TOGETHER = 32
"""Requests answered at once."""


def answer_all(folder: Path, requests: Sequence[dict[str, Any]], pictures: Path) -> list[str]:
    """The answer to each request, whose picture paths are relative to ``pictures``."""
    files = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*config.json")}
    processor = load_processor(folder, read_architecture(files))
    model = load(folder)
    answers = [""] * len(requests)
    alike: dict[tuple[object, ...], list[tuple[int, Payload]]] = defaultdict(list)
    for number, request in enumerate(requests):
        paths = [pictures / name for name in request["images"]]
        payload = prepare(processor, messages_for(request["question"], len(paths)), paths)
        alike[len(payload.ids), *map(tuple, payload.grids.tolist())].append((number, payload))
    for found in alike.values():
        for start in range(0, len(found), TOGETHER):
            part = found[start : start + TOGETHER]
            rows = greedy(model, [payload for _, payload in part], processor.architecture.tokens.stop)
            for (number, _), ids in zip(part, rows, strict=True):
                answers[number] = processor.tokenizer.decode(ids)
    return answers


@torch.inference_mode()
def greedy(model: Any, payloads: Sequence[Payload], stop: Sequence[int]) -> list[list[int]]:
    """Answer ids of requests with equally long prompts and equal grids, each up to its first stop id."""
    arguments = _arguments(payloads)
    tokens = np.zeros((len(payloads), 0), np.int64)
    output = model(**arguments, use_cache=True)
    while True:
        new = output.logits[:, -1].argmax(dim=-1, keepdim=True)
        tokens = np.concatenate([tokens, new.numpy()], axis=1)
        if tokens.shape[1] == LONGEST or np.isin(tokens, stop).any(axis=1).all():
            break
        output = model(input_ids=new, cache=output.cache, use_cache=True)
    ended = [np.flatnonzero(np.isin(row, stop)) for row in tokens]
    return [row[: end[0] if len(end) else None].tolist() for row, end in zip(tokens, ended, strict=True)]


def _arguments(payloads: Sequence[Payload]) -> dict[str, torch.Tensor]:
    """The model's inputs: group numbers count the patches of all crops of the batch."""
    ids = np.stack([payload.ids for payload in payloads]).astype(np.int64)
    types = np.stack([payload.types for payload in payloads]).astype(np.int64)
    arrays = {"input_ids": ids, "attention_mask": np.ones_like(ids), "mm_token_type_ids": types}
    patches, groups, kept, first = [], [], [], 0
    for payload in payloads:
        row = 0
        for crops, grid in zip(payload.crops, payload.grids, strict=True):
            size = int(grid[0] * grid[1] + grid[2] * grid[3])
            table = payload.groups[row : row + size]
            groups.append(np.where(table >= 0, table + first, -1))
            kept.append(size)
            first += int(crops) * payload.patches.shape[1]
            row += size
        patches.append(payload.patches)
    if kept:
        counts = np.array(kept)
        arrays |= {
            "pixel_values": np.concatenate(patches),
            "image_token_pooling": np.concatenate(groups).astype(np.int32),
            "image_grids": np.stack([counts, np.ones_like(counts), 0 * counts, 0 * counts], axis=1),
        }
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
