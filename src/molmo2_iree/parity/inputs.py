"""A request's inputs by other means than ``preprocess``: torch resizes, loops fill tables, transformers tokenises.

Axes: C crops, N patches, E values of a patch, G groups, P patches of a group, S ids. Contract sections 3 and 4.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast

from molmo2_iree.parity.cases import Case

RESIZE_THREADS = 2
"""torch rounds ties in another way with one thread; the released processor normally runs with several."""


def inputs(folder: Path, case: Case) -> dict[str, np.ndarray]:
    """``ids``, ``types`` [S], ``patches`` [C, N, E], ``groups`` [G, P] of each image, ``crops``, ``group_counts``."""
    config, image, processor = (
        json.loads((folder / name).read_text())
        for name in ("config.json", "preprocessor_config.json", "processor_config.json")
    )
    size = image["size"]["height"], image["size"]["width"]
    images = [cut(pixels, image) for pixels in case.open(size, image["patch_size"], image["overlap_margins"])]
    strings = [_image_string(grid, processor) for _, _, grid in images]
    ids = _ids(folder, case, strings)
    if case.fills:
        ids = _ids(folder, case.filled(len(ids)), strings)
    part = ("image_patch_id", "image_col_id", "image_start_token_id", "low_res_image_start_token_id")
    part += ("frame_start_token_id", "image_end_token_id", "frame_end_token_id", "image_low_res_id")
    bidirectional = {config[name] for name in part}
    side = image["size"]["height"] // image["patch_size"], image["size"]["width"] // image["patch_size"]
    empty = np.zeros((0, side[0] * side[1], 3 * image["patch_size"] ** 2), np.float32)
    no_group = np.zeros((0, image["pooling_size"][0] * image["pooling_size"][1]), np.int64)
    return {
        "ids": np.array(ids, np.int64),
        "types": np.array([int(token in bidirectional) for token in ids], np.int64),
        "patches": np.concatenate([empty, *(patches for patches, _, _ in images)]),
        "groups": np.concatenate([no_group, *(groups for _, groups, _ in images)]),
        "crops": np.array([len(patches) for patches, _, _ in images], np.int64),
        "group_counts": np.array([len(groups) for _, groups, _ in images], np.int64),
    }


def _ids(folder: Path, case: Case, strings: list[str]) -> list[int]:
    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    text = tokenizer.apply_chat_template(
        case.messages(), chat_template=template, tokenize=False, add_generation_prompt=True
    )
    for string in strings:
        text = text.replace("<|image|>", string, 1)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    bos = json.loads((folder / "generation_config.json").read_text())["bos_token_id"]
    return ids if ids[0] == bos else [bos, *ids]


def _image_string(grid: tuple[int, int, int, int], processor: dict[str, Any]) -> str:
    def rows(height: int, width: int, columns: bool) -> str:
        return ("<im_patch>" * width + ("<im_col>" if columns else "")) * height

    low = "<low_res_im_start>" if processor["use_single_crop_start_token"] else "<im_start>"
    return (
        low
        + rows(grid[0], grid[1], processor["use_single_crop_col_tokens"])
        + "<im_end><im_start>"
        + rows(grid[2], grid[3], processor["image_use_col_tokens"])
        + "<im_end>"
    )


def cut(pixels: np.ndarray, image: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, tuple[int, int, int, int]]:
    """(patches, groups, grid) of one picture, ``image`` being a preprocessor_config.json."""
    size, patch = (image["size"]["height"], image["size"]["width"]), image["patch_size"]
    margins, pool = image["overlap_margins"], image["pooling_size"]
    margin = patch * sum(margins)
    tiles = _tiling(
        pixels.shape[0] - margin, pixels.shape[1] - margin, (size[0] - margin, size[1] - margin), image["max_crops"]
    )
    window = size[0] - margin, size[1] - margin
    canvas = _resize(pixels, tiles[0] * window[0] + margin, tiles[1] * window[1] + margin)
    crops = [_resize(pixels, *size)]
    for row in range(tiles[0]):
        for column in range(tiles[1]):
            top, left = row * window[0], column * window[1]
            crops.append(canvas[top : top + size[0], left : left + size[1]])
    patches = np.stack([_patches(_normalise(crop, image), patch) for crop in crops])
    side = size[0] // patch, size[1] // patch
    low = [[row * side[1] + column for column in range(side[1])] for row in range(side[0])]
    high = _canvas_numbers(tiles, side, margins)
    low_groups, high_groups = list(_windows(low, pool)), list(_windows(high, pool))
    grid = (
        tuple(-(-len(table) // pool[0]) for table in (low, high)),
        tuple(-(-len(table[0]) // pool[1]) for table in (low, high)),
    )
    return patches, np.array(low_groups + high_groups, np.int64), (grid[0][0], grid[1][0], grid[0][1], grid[1][1])


def _resize(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """torch's bilinear without antialiasing, as the released processor calls it on a uint8 picture."""
    torch.set_num_threads(RESIZE_THREADS)
    source = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None].float()
    out = torch.nn.functional.interpolate(
        source, size=(height, width), mode="bilinear", align_corners=False, antialias=False
    )
    return out.round().clamp(0, 255).to(torch.uint8)[0].permute(1, 2, 0).numpy()


def _normalise(pixels: np.ndarray, image: dict[str, Any]) -> np.ndarray:
    scaled = pixels.astype(np.float32) / np.float32(255)
    return (scaled - np.array(image["image_mean"], np.float32)) / np.array(image["image_std"], np.float32)


def _patches(crop: np.ndarray, patch: int) -> np.ndarray:
    rows, columns = crop.shape[0] // patch, crop.shape[1] // patch
    cut = [crop[r * patch : (r + 1) * patch, c * patch : (c + 1) * patch] for r in range(rows) for c in range(columns)]
    return np.stack([piece.reshape(-1) for piece in cut])


def _tiling(height: int, width: int, window: tuple[int, int], most: int) -> tuple[int, int]:
    """The tiling that enlarges least, or, where every one shrinks, shrinks least."""
    order = sorted((i * j, i, j) for i in range(1, most + 1) for j in range(1, most + 1) if i * j <= most)
    scales = []
    with np.errstate(divide="ignore"):
        for _, i, j in order:
            scales.append(
                min(np.float32(i * window[0]) / np.float32(height), np.float32(j * window[1]) / np.float32(width))
            )
    if all(scale < 1 for scale in scales):
        best = int(np.argmax(scales))
    else:
        best = int(np.argmin([scale if scale >= 1 else np.float32(1e10) for scale in scales]))
    return order[best][1], order[best][2]


def _canvas_numbers(tiles: tuple[int, int], side: tuple[int, int], margins: list[int]) -> list[list[int]]:
    """Patch numbers over the canvas: a patch belongs to the crop that shows it outside its margins."""

    def owner(place: int, count: int, length: int) -> tuple[int, int]:
        step = length - sum(margins)
        for tile in range(count):
            inside = place - tile * step
            first = 0 if tile == 0 else margins[0]
            last = length if tile == count - 1 else length - margins[1]
            if first <= inside < last:
                return tile, inside
        raise AssertionError(place)

    height, width = (n * (s - sum(margins)) + sum(margins) for n, s in zip(tiles, side, strict=True))
    table = []
    for y in range(height):
        row, inner_row = owner(y, tiles[0], side[0])
        line = []
        for x in range(width):
            column, inner_column = owner(x, tiles[1], side[1])
            line.append((1 + row * tiles[1] + column) * side[0] * side[1] + inner_row * side[1] + inner_column)
        table.append(line)
    return table


def _windows(table: list[list[int]], pool: list[int]) -> Iterator[list[int]]:
    """Groups row by row; a side that does not divide gets its empty places half before and the larger half after."""
    before = [(-len(table) % pool[0]) // 2, (-len(table[0]) % pool[1]) // 2]
    for top in range(-before[0], len(table), pool[0]):
        for left in range(-before[1], len(table[0]), pool[1]):
            places = [(y, x) for y in range(top, top + pool[0]) for x in range(left, left + pool[1])]
            yield [table[y][x] if 0 <= y < len(table) and 0 <= x < len(table[0]) else -1 for y, x in places]
