"""Batches for training: pictures of one tiling, their questions packed into one sequence, and the dense targets.

B rows, S positions, G groups (image tokens) of all pictures of the batch. A batch depends on its seed alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from molmo2_iree.build.embedded_config import Variant
from molmo2_iree.preprocess.crops import cut_image, cut_patches, group_table, group_windows, low_res_patches, normalise
from molmo2_iree.preprocess.layout import canvas_grid, patch_grid
from molmo2_iree.preprocess.payload import Image
from molmo2_iree.preprocess.prepare import prompt_ids
from molmo2_iree.preprocess.prompt import messages_for
from molmo2_iree.preprocess.resize import resize
from molmo2_iree.preprocess.tiling import choose_tiling
from training.drawing import COLOURS, SHAPES
from training.questions import NO_PICTURE, SINGLE, Ask, compare
from training.shape import host
from training.world import DIGITS, Scene, draw_scene, make_scene

TILINGS = {(1, 1): 0.3, (1, 2): 0.2, (2, 1): 0.2, (2, 2): 0.2, (1, 3): 0.05, (3, 1): 0.05}
"""How often a picture is cut into so many rows and columns of crops."""

MOSTLY_ONE = {(1, 1): 0.75, (1, 2): 0.08, (2, 1): 0.08, (2, 2): 0.05, (1, 3): 0.02, (3, 1): 0.02}
"""The same where places are learned: the low-res view shows them all, and one crop more costs least."""

KINDS = ("", *SHAPES, *DIGITS)
"""Classes of the dense target: nothing, a shape, a digit."""

SHADES = ("", *COLOURS)

DIGIT_WEIGHTS = (1.0, 0.6, 0.15)
"""What the three digits of a coordinate count in the loss: the last is below what a picture tells."""

TURNS = 8
"""Questions about one picture in a sequence."""


@dataclass(frozen=True)
class Pictures:
    """Cut pictures: patches float32 [crops, N, E], groups [G, 4] into all patches, and the dense targets by group
    and by patch."""

    patches: np.ndarray
    groups: np.ndarray
    kept: np.ndarray
    crops: np.ndarray
    targets: dict[str, np.ndarray]


@dataclass(frozen=True)
class Batch:
    """ids, positions and target ids [B, S] (-1: none), weights [B, S], visible [B, 1, S, S], and the pictures."""

    ids: np.ndarray
    positions: np.ndarray
    wanted: np.ndarray
    weights: np.ndarray
    visible: np.ndarray
    pictures: Pictures | None


@cache
def sizes(variant: Variant) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """(height, width) of pictures by their tiling: one side of 56 to 200 pixels, the other up to 2.7 times as long."""
    generator, table = np.random.default_rng(12), {}
    for _ in range(20000):
        short = generator.uniform(56, 200)
        long = short * 2.7 ** generator.uniform(0, 1)
        size = (round(short), round(long)) if generator.random() < 0.5 else (round(long), round(short))
        table.setdefault(choose_tiling(*size, host(variant).architecture.processor), []).append(size)
    return table


def pick_tiling(generator: np.random.Generator, shares: Mapping[tuple[int, int], float] = TILINGS) -> tuple[int, int]:
    """A tiling by its share."""
    return list(shares)[generator.choice(len(shares), p=list(shares.values()))]


def scene_for(
    generator: np.random.Generator, variant: Variant, tiling: tuple[int, int], *, anywhere: bool = False
) -> Scene:
    """A random scene of a size that is cut by ``tiling``."""
    table = sizes(variant)[tiling]
    return make_scene(generator, *table[generator.integers(len(table))], anywhere=anywhere)


@cache
def _tables(variant: Variant, tiling: tuple[int, int]) -> tuple[np.ndarray, tuple[int, int, int, int]]:
    return group_table(tiling, host(variant).architecture.processor)


@cache
def _cells(variant: Variant, tiling: tuple[int, int]) -> tuple[tuple[int, int, int, int], ...]:
    """(rows, columns) in patches and (rows, columns) in groups of the low-res view and of the canvas."""
    processor = host(variant).architecture.processor
    grid = _tables(variant, tiling)[1]
    return (*patch_grid(processor), *grid[:2]), (*canvas_grid(processor, tiling), *grid[2:])


def targets(variant: Variant, scene: Scene, tiling: tuple[int, int]) -> dict[str, np.ndarray]:
    """By group: ``kind`` and ``colour`` of the thing whose centre lies there (0: none), its ``offset`` [G, 2] from the
    group's middle in groups, and in the low-res part ``digits`` [G, 4]: first and second digit of x, then of y."""
    parts: dict[str, list[np.ndarray]] = {"kind": [], "colour": [], "offset": [], "digits": []}
    for low, (patch_rows, patch_columns, rows, columns) in zip((True, False), _cells(variant, tiling), strict=True):
        kind, colour = np.zeros(rows * columns, np.int64), np.zeros(rows * columns, np.int64)
        offset, digits = np.zeros((rows * columns, 2), np.float32), np.full((rows * columns, 4), -1)
        for thing in scene.things:
            x, y = thing.x * patch_columns / 2, thing.y * patch_rows / 2
            cell = int(y) * columns + int(x)
            kind[cell], colour[cell] = KINDS.index(thing.kind), SHADES.index(thing.colour)
            offset[cell] = x % 1 - 0.5, y % 1 - 0.5
            if low:
                across, down = (min(round(1000 * place), 999) for place in (thing.x, thing.y))
                digits[cell] = across // 100, across // 10 % 10, down // 100, down // 10 % 10
        for name, value in (("kind", kind), ("colour", colour), ("offset", offset), ("digits", digits)):
            parts[name].append(value)
    return {name: np.concatenate(values) for name, values in parts.items()}


@cache
def _patch_middles(variant: Variant, tiling: tuple[int, int]) -> np.ndarray:
    """[crops * N, 2]: x and y of every patch's middle, in parts of the picture."""
    (side_rows, side_columns, *_), (rows, columns, *_) = _cells(variant, tiling)
    steps = side_rows - sum(variant.margins), side_columns - sum(variant.margins)
    origins = [(0, 0, side_rows, side_columns)]
    origins += [(i * steps[0], j * steps[1], rows, columns) for i in range(tiling[0]) for j in range(tiling[1])]
    return np.array(
        [
            ((left + c + 0.5) / across, (top + r + 0.5) / down)
            for top, left, down, across in origins
            for r in range(side_rows)
            for c in range(side_columns)
        ]
    )


def patch_targets(variant: Variant, scene: Scene, tiling: tuple[int, int]) -> dict[str, np.ndarray]:
    """By patch of every crop: ``patch_kind`` and ``patch_colour`` of the thing that its middle lies on (0: none)."""
    middles, side = _patch_middles(variant, tiling), min(scene.height, scene.width)
    kind, colour = np.zeros(len(middles), np.int64), np.zeros(len(middles), np.int64)
    for thing in scene.things:
        away = (middles - (thing.x, thing.y)) * (scene.width, scene.height)
        on = np.hypot(away[:, 0], away[:, 1]) < thing.radius * side
        kind[on], colour[on] = KINDS.index(thing.kind), SHADES.index(thing.colour)
    return {"patch_kind": kind, "patch_colour": colour}


def cut_scenes(variant: Variant, scenes: Sequence[Scene]) -> Pictures:
    """Draw and cut the scenes, in order; group numbers count the patches of all crops before."""
    processor = host(variant).architecture.processor
    patches, groups, crops, dense, first = [], [], [], [], 0
    for scene in scenes:
        image: Image = cut_image(draw_scene(scene), processor)
        patches.append(image.patches)
        groups.append(np.where(image.groups >= 0, image.groups + first, -1))
        crops.append(image.crops)
        first += image.patches.shape[0] * image.patches.shape[1]
        tiling = choose_tiling(scene.height, scene.width, processor)
        dense.append(targets(variant, scene, tiling) | patch_targets(variant, scene, tiling))
    return Pictures(
        np.concatenate(patches),
        np.concatenate(groups),
        np.array([len(table) for table in groups]),
        np.array(crops),
        {name: np.concatenate([part[name] for part in dense]) for name in dense[0]},
    )


def _asks(generator: np.random.Generator, scenes: Sequence[Scene], most: int, mix: int) -> list[Ask]:
    """Different questions about one or two pictures, in one of the mixes of ``SINGLE``."""
    weights = np.array([shares[mix] for _, shares in SINGLE.values()])
    makers = [maker for maker, _ in SINGLE.values()]
    found: dict[str, Ask] = {}
    for _ in range(5 * most):
        if len(scenes) == 2:
            ask = compare(generator, *scenes)
        else:
            ask = makers[generator.choice(len(makers), p=weights / weights.sum())](generator, scenes[0])
        if ask:
            found.setdefault(ask.question, ask)
        if len(found) == most:
            break
    return list(found.values())


@cache
def prefix(variant: Variant, tilings: tuple[tuple[int, int], ...]) -> np.ndarray:
    """Ids before the first turn: BOS and the pictures."""
    processor = host(variant)
    grids = [_tables(variant, tiling)[1] for tiling in tilings]
    ids = prompt_ids(processor, messages_for("?", len(tilings)), grids)
    return ids[: list(ids).index(processor.tokenizer.token_id("<|im_start|>"))]


def _weights(variant: Variant, answer: str, ids: Sequence[int]) -> np.ndarray:
    """Loss weight of each answer token: 1, less for the later digits of a coordinate."""
    weights = np.ones(len(ids), np.float32)
    if answer.startswith("<points"):
        tokenizer = host(variant).tokenizer
        places = [k for k, number in enumerate(ids) if tokenizer.token_bytes(number).isdigit()]
        weights[places[0]] = 0.2
        for first in range(1, len(places), 7):
            weights[places[first]] = 0.2
            weights[places[first + 1 : first + 7]] = DIGIT_WEIGHTS * 2
    return weights


def _row(
    generator: np.random.Generator, variant: Variant, start: np.ndarray, asks: Sequence[Ask], talk: bool
) -> tuple[list[int], list[int], list[int], list[float], list[int]]:
    """ids, positions, wanted ids, weights and turn numbers of one sequence.

    Packed turns all follow the pictures directly and do not see each other; in a ``talk`` each sees those before.
    """
    tokenizer = host(variant).tokenizer
    end = tokenizer.token_id("<|im_end|>")
    ids, positions = list(map(int, start)), list(range(len(start)))
    wanted, weights, turns = [-1] * len(ids), [0.0] * len(ids), [0] * len(ids)
    for number, ask in enumerate(asks):
        space = " " if talk and generator.random() < 0.5 else ""
        again = "\n" if talk and number else ""
        question = tokenizer.encode_pieces(
            [
                (f"{again}<|im_start|>user\n", True),
                (ask.question, False),
                (f"<|im_end|>\n{space}<|im_start|>assistant\n", True),
            ]
        )
        answer = [*tokenizer.encode_text(ask.answer), end]
        place = len(ids) if talk else len(start)
        positions += range(place, place + len(question) + len(answer))
        wanted += [*[-1] * (len(question) - 1), *answer, -1]
        weights += [*[0.0] * (len(question) - 1), *_weights(variant, ask.answer, answer), 0.0]
        turns += [1 if talk else number + 1] * (len(question) + len(answer))
        ids += [*question, *answer]
    return ids, positions, wanted, weights, turns


def visible(start: int, types: np.ndarray, turns: np.ndarray) -> np.ndarray:
    """bool [B, 1, S, S]: earlier positions of the own turn or of the pictures (turn 0), and pictures both ways."""
    places = np.arange(turns.shape[1])
    causal = places[None, :] <= places[:, None]
    shared = (turns[:, None, :] == turns[:, :, None]) | (turns[:, None, :] == 0)
    both = (types[:, None, :] == 1) & (types[:, :, None] == 1)
    return ((causal & shared) | both)[:, None]


def make_talks(variant: Variant, seed: Sequence[int], rows: int) -> Batch:
    """One batch of the first mix, on small pictures: every kind of question, many of them about places."""
    return make_batch(variant, seed, rows, 0, MOSTLY_ONE, (0.02, 0.9, 0.08))


def make_last(variant: Variant, seed: Sequence[int], rows: int) -> Batch:
    """One batch of the second mix: which thing is meant, and where it is."""
    return make_batch(variant, seed, rows, 1, TILINGS, (0.02, 0.83, 0.15))


def make_batch(
    variant: Variant,
    seed: Sequence[int],
    rows: int,
    mix: int,
    shares: Mapping[tuple[int, int], float],
    counts: tuple[float, float, float],
) -> Batch:
    """One batch of conversations about no, one or two pictures (then half the rows), as often as ``counts`` says."""
    generator = np.random.default_rng(seed)
    count = generator.choice(3, p=counts)
    rows = rows // 2 if count == 2 else rows
    tilings = tuple(pick_tiling(generator, shares) for _ in range(count))
    start = prefix(variant, tilings)
    drawn, lines = [], []
    for row in range(rows):
        scenes = [scene_for(generator, variant, tiling) for tiling in tilings or ((1, 1), (1, 1))]
        asks = _asks(generator, scenes if tilings else scenes[:1], TURNS, mix)
        if not tilings:
            asks += _asks(generator, scenes, 2, mix)
            asks = [Ask("none", ask.question, NO_PICTURE) for ask in asks]
        drawn += scenes
        lines.append(_row(generator, variant, start, asks, talk=row % 4 == 3))
    length = -(-max(len(line[0]) for line in lines) // 16) * 16
    ids, positions, wanted, weights, turns = (
        np.array([[*line[k], *[fill] * (length - len(line[k]))] for line in lines])
        for k, fill in enumerate((0, 0, -1, 0.0, -1))
    )
    types = np.isin(ids, host(variant).architecture.tokens.image_part).astype(np.int64)
    return Batch(
        ids,
        positions,
        wanted,
        weights.astype(np.float32),
        visible(len(start), types, turns),
        cut_scenes(variant, drawn) if tilings else None,
    )


def make_pictures(variant: Variant, seed: Sequence[int], rows: int) -> Pictures:
    """Pictures alone, for the warm-up."""
    generator = np.random.default_rng(seed)
    tiling = pick_tiling(generator)
    return cut_scenes(variant, [scene_for(generator, variant, tiling, anywhere=True) for _ in range(rows)])


def make_views(variant: Variant, seed: Sequence[int], rows: int) -> Pictures:
    """Low-res views alone: for the same work as whole pictures, several times as many different things."""
    generator = np.random.default_rng(seed)
    scenes = [scene_for(generator, variant, pick_tiling(generator), anywhere=True) for _ in range(rows)]
    processor = host(variant).architecture.processor
    views = [normalise(resize(draw_scene(scene), *processor.image_size), processor) for scene in scenes]
    patches = np.stack([cut_patches(view, processor.patch_size) for view in views])
    table = group_windows(low_res_patches(processor), processor).reshape(-1, processor.group_size)
    dense = []
    for scene in scenes:
        tiling = choose_tiling(scene.height, scene.width, processor)
        groups = {name: values[: len(table)] for name, values in targets(variant, scene, tiling).items()}
        whole = patch_targets(variant, scene, tiling)
        dense.append(groups | {name: values[: patches.shape[1]] for name, values in whole.items()})
    starts = np.arange(rows)[:, None, None] * patches.shape[1]
    return Pictures(
        patches,
        np.where(table >= 0, table + starts, -1).reshape(-1, table.shape[1]),
        np.full(rows, len(table)),
        np.ones(rows, np.int64),
        {name: np.concatenate([part[name] for part in dense]) for name in dense[0]},
    )
