"""The prepared record: everything the compiled stages take from the host, and the checks it must pass.

Axes: S ids, C crops of all images, N patches of a crop, E values of a patch, G groups of all images, P patches of a
group. Build one with :func:`molmo2_iree.preprocess.prepare.prepare`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from molmo2_iree.architecture import Architecture, Processor, pooled_grid, tilings
from molmo2_iree.errors import RequestError
from molmo2_iree.preprocess.layout import canvas_grid, image_ids, patch_grid, token_types


@dataclass(frozen=True, eq=False)
class Image:
    """One picture, cut up. Group indices count this image's own patches from 0; -1 marks no patch."""

    patches: np.ndarray
    """float32 [C, N, E], crop 0 is the low-res view."""
    groups: np.ndarray
    """int32 [G, P], each entry -1 or crop * N + patch."""
    grid: tuple[int, int, int, int]
    """Groups as (low rows, low columns, high rows, high columns)."""
    crops: int
    """C, the low-res view included."""


@dataclass(frozen=True, eq=False)
class Payload:
    """One request, prepared. Group indices are local to each image (the official convention); -1 marks no patch."""

    ids: np.ndarray
    """int32 [S]."""
    types: np.ndarray
    """int32 [S], 1 for the image part, else 0."""
    patches: np.ndarray
    """float32 [C, N, E], the crops of every image one after the other."""
    groups: np.ndarray
    """int32 [G, P], the group tables of every image one after the other."""
    grids: np.ndarray
    """int32 [images, 4], see :class:`Image`."""
    crops: np.ndarray
    """int32 [images]."""

    @property
    def images(self) -> int:
        """How many pictures."""
        return len(self.crops)

    @property
    def crop_starts(self) -> np.ndarray:
        """int32 [images + 1]: image k owns crops [k] to [k + 1]; crops of 3 and 5 give 0, 3, 8."""
        return np.concatenate([[0], np.cumsum(self.crops)]).astype(np.int32)

    @property
    def group_starts(self) -> np.ndarray:
        """int32 [images + 1]: image k owns group rows [k] to [k + 1]; grid (1, 2, 2, 3) is 2 + 6 rows."""
        return np.concatenate([[0], np.cumsum(_group_rows(self.grids))]).astype(np.int32)

    def image(self, index: int) -> Image:
        """The ``index``-th picture, as views of the arrays."""
        crops, groups = self.crop_starts, self.group_starts
        low_rows, low_columns, rows, columns = (int(side) for side in self.grids[index])
        return Image(
            patches=self.patches[crops[index] : crops[index + 1]],
            groups=self.groups[groups[index] : groups[index + 1]],
            grid=(low_rows, low_columns, rows, columns),
            crops=int(self.crops[index]),
        )

    def __iter__(self) -> Iterator[Image]:
        """Each picture in order."""
        return (self.image(index) for index in range(self.images))

    def joined_groups(self) -> np.ndarray:
        """int32 [G, P]: the table with indices into all crops of the payload, as the connector gathers.

        The second image's entries move up by N times the first one's crops; -1 stays -1.
        """
        first = self.crop_starts[:-1] * self.patches.shape[1]
        moved = np.repeat(first, _group_rows(self.grids))[:, None]
        return np.where(self.groups < 0, -1, self.groups + moved).astype(np.int32)


def _group_rows(grids: np.ndarray) -> np.ndarray:
    return grids[:, 0] * grids[:, 1] + grids[:, 2] * grids[:, 3]


def check_payload(payload: Payload, architecture: Architecture) -> None:
    """Refuse, with RequestError, a payload that the stages of ``architecture`` would misread."""
    _check_arrays(payload, architecture)
    _check_images(payload, architecture)
    _check_groups(payload, architecture)
    _check_ids(payload, architecture)
    _check_placeholders(payload, architecture)


def _require(fits: bool, where: str, got: object, expected: object) -> None:
    if not fits:
        raise RequestError(
            f"payload.{where}",
            got=got,
            expected=expected,
            fix="build the payload with molmo2_iree.preprocess.prepare, with this checkpoint's own files",
        )


def _check_arrays(payload: Payload, architecture: Architecture) -> None:
    vision, group = architecture.vision, architecture.processor.group_size
    _check_array("ids", payload.ids, np.int32, None)
    _check_array("types", payload.types, np.int32, None)
    _check_array("patches", payload.patches, np.float32, None, vision.patches, vision.patch_values)
    _check_array("groups", payload.groups, np.int32, None, group)
    _check_array("grids", payload.grids, np.int32, None, 4)
    _check_array("crops", payload.crops, np.int32, None)
    length = len(payload.ids)
    _require(length > 0, "ids", "no ids", "at least one id")
    _require(len(payload.types) == length, "types", f"{len(payload.types)} types", f"{length}, one for each id")
    finite = np.isfinite(payload.patches)
    if not finite.all():
        place = tuple(int(side) for side in np.argwhere(~finite)[0])
        _require(False, f"patches{list(place)}", payload.patches[place], "a finite value")


def _check_array(name: str, array: np.ndarray, dtype: type, *shape: int | None) -> None:
    """``None`` in ``shape`` is any size. Subclasses are refused: a masked array would hide values from the checks."""
    _require(type(array) is np.ndarray, name, type(array).__name__, "a plain numpy.ndarray")
    _require(array.dtype == dtype, name, f"dtype {array.dtype}", f"dtype {np.dtype(dtype)}")
    fits = array.ndim == len(shape) and all(want in (None, side) for side, want in zip(array.shape, shape, strict=True))
    _require(fits, name, f"shape {list(array.shape)}", f"shape {str(list(shape)).replace('None', 'any')}")


def _check_images(payload: Payload, architecture: Architecture) -> None:
    """Grids and crops agree in number, each pair comes from one tiling, and they add up to the rows of the arrays."""
    images, possible = payload.images, _possible_grids(architecture.processor)
    _require(len(payload.grids) == images, "grids", f"{len(payload.grids)} grids", f"{images}, one for each of crops")
    for k in range(images):
        grid, crops = tuple(payload.grids[k].tolist()), int(payload.crops[k])
        most = architecture.processor.max_crops
        _require(grid in possible, f"grids[{k}]", list(grid), f"the grid of a tiling of 1 to {most} crops")
        counts = sorted(possible[grid])
        _require(crops in counts, f"crops[{k}]", crops, f"{' or '.join(map(str, counts))}, from grid {list(grid)}")
    total = int(payload.crops.sum(dtype=np.int64))
    _require(len(payload.patches) == total, "patches", f"{len(payload.patches)} crops", f"{total}, the sum of crops")
    rows = int(_group_rows(payload.grids).sum())
    _require(len(payload.groups) == rows, "groups", f"{len(payload.groups)} rows", f"{rows}, from the grids")


def _possible_grids(processor: Processor) -> dict[tuple[int, ...], set[int]]:
    """Crops that go with each grid: the release has {(14, 14, 14, 14): {2}, (14, 14, 14, 23): {3}, ...}, 20 grids."""
    side = patch_grid(processor)
    low = pooled_grid(*side, processor.pooling_size)
    possible: dict[tuple[int, ...], set[int]] = {}
    for tiling in tilings(processor.max_crops):
        grid = (*low, *pooled_grid(*canvas_grid(processor, tiling), processor.pooling_size))
        possible.setdefault(grid, set()).add(1 + tiling[0] * tiling[1])
    return possible


def _check_groups(payload: Payload, architecture: Architecture) -> None:
    """Every entry is -1 or a patch of its own image."""
    for k, image in enumerate(payload):
        top = image.crops * architecture.vision.patches - 1
        wrong = np.argwhere((image.groups < -1) | (image.groups > top))
        if len(wrong):
            row, entry = (int(side) for side in wrong[0])
            place = f"groups[{int(payload.group_starts[k]) + row}, {entry}]"
            _require(False, place, int(image.groups[row, entry]), f"-1 to {top}, image {k}'s {image.crops} crops")


def _check_ids(payload: Payload, architecture: Architecture) -> None:
    """Ids are in the vocabulary and types follow from them."""
    ids, text = payload.ids, architecture.text
    top = text.vocabulary + text.extra_vocabulary - 1
    outside = np.flatnonzero((ids < 0) | (ids > top))
    if len(outside):
        _require(False, f"ids[{outside[0]}]", int(ids[outside[0]]), f"0 to {top}")
    types = token_types(ids, architecture.tokens)
    wrong = np.flatnonzero(types != payload.types)
    if len(wrong):
        k = int(wrong[0])
        reason = "in the image part" if types[k] else "text"
        _require(False, f"types[{k}]", int(payload.types[k]), f"{types[k]}, because id {ids[k]} is {reason}")


def _check_placeholders(payload: Payload, architecture: Architecture) -> None:
    """One image_patch id for each group that holds a patch, and each image's ids unbroken and laid out by its grid."""
    ids, tokens = payload.ids, architecture.tokens
    filled = [(image.groups >= 0).any(axis=1) for image in payload]
    placeholders, projected = int((ids == tokens.image_patch).sum()), sum(int(rows.sum()) for rows in filled)
    expected = f"{projected}, one for each group that holds a patch"
    _require(placeholders == projected, "ids", f"{placeholders} image_patch ids", expected)
    places, start = np.flatnonzero(payload.types), 0
    for k, image in enumerate(payload):
        layout = image_ids(image.grid, architecture.processor, tokens)
        keep = np.ones(len(layout), bool)
        keep[layout == tokens.image_patch] = filled[k]
        layout = layout[keep]
        own = places[start : start + len(layout)]
        start += len(layout)
        fits = len(own) == len(layout) and own[-1] - own[0] + 1 == len(own) and np.array_equal(ids[own], layout)
        patches = f"{int(filled[k].sum())} of them image_patch"
        expected = f"the {len(layout)} unbroken ids of grid {list(image.grid)}, {patches}"
        _require(fits, f"ids, image {k}", "other image-part ids", expected)
    _require(start == len(places), "ids", f"{len(places)} image-part ids", f"{start}, for {payload.images} images")
