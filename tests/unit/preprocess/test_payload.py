"""No bad array passes: valid payloads are damaged at random and judged by a second, slow formulation of the rules."""

import re
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.preprocess.samples import RELEASED, SMALL, small_photo

from molmo2_iree.errors import RequestError
from molmo2_iree.preprocess.crops import cut_image
from molmo2_iree.preprocess.layout import image_ids, token_types
from molmo2_iree.preprocess.payload import Payload, check_payload
from molmo2_iree.preprocess.prepare import join

NAMES = [field.name for field in fields(Payload)]


def payload_of(*sizes: tuple[int, int]) -> Payload:
    images = [cut_image(small_photo(*size), SMALL.processor) for size in sizes]
    parts = [
        [9, 8],
        *(part for image in images for part in (image_ids(image.grid, SMALL.processor, SMALL.tokens), [7])),
    ]
    return join(np.concatenate(parts).astype(np.int32), images, SMALL)


SAMPLES = [
    payload_of(),
    payload_of((90, 90)),
    payload_of((120, 230)),
    payload_of((150, 90), (50, 50)),
    payload_of((98, 98), (98, 98)),
]


@pytest.mark.parametrize("payload", SAMPLES, ids=lambda p: f"{p.images} images, {len(p.patches)} crops")
def test_valid_payloads_pass(payload: Payload) -> None:
    check_payload(payload, SMALL)
    assert follows_the_rules(payload)


def follows_the_rules(payload: Payload) -> bool:
    """The rules again, value by value."""
    kinds = {
        "ids": ("i4", 1),
        "types": ("i4", 1),
        "patches": ("f4", 3),
        "groups": ("i4", 2),
        "grids": ("i4", 2),
        "crops": ("i4", 1),
    }
    for name, (dtype, axes) in kinds.items():
        array = getattr(payload, name)
        if type(array) is not np.ndarray or array.dtype.str != f"<{dtype}" or array.ndim != axes:
            return False
    if payload.patches.shape[1:] != (49, 588) or payload.groups.shape[1] != 4 or payload.grids.shape[1] != 4:
        return False
    if any(not abs(value) < np.inf for value in payload.patches.ravel()[payload.patches.ravel() != 0]):
        return False
    grids, crops = payload.grids.tolist(), payload.crops.tolist()
    if len(grids) != len(crops) or len(payload.ids) != len(payload.types) or not len(payload.ids):
        return False
    rows, first_row, first_crop = payload.groups.tolist(), 0, 0
    strings = []
    for grid, count in zip(grids, crops, strict=True):
        sides = {-(-(5 * n + 2) // 2): n for n in range(1, 9)}
        if grid[:2] != [4, 4] or sides.get(grid[2], 99) * sides.get(grid[3], 99) != count - 1 or count > 9:
            return False
        own = rows[first_row : first_row + 16 + grid[2] * grid[3]]
        if len(own) != 16 + grid[2] * grid[3] or any(not -1 <= entry < 49 * count for row in own for entry in row):
            return False
        shown = ["P" if max(row) >= 0 else "" for row in own]
        lines = ["".join(shown[16 + r * grid[3] : 16 + (r + 1) * grid[3]]) + "C" for r in range(grid[2])]
        strings.append("L" + "".join(shown[:16]) + "ES" + "".join(lines) + "E")
        first_row, first_crop = first_row + len(own), first_crop + count
    if first_row != len(rows) or first_crop != len(payload.patches):
        return False
    if any(not 0 <= number < 640 for number in payload.ids):
        return False
    symbols = {512: "S", 513: "E", 514: "P", 515: "C", 516: "L", 518: "x", 519: "x", 520: "x"}
    text = "".join(symbols.get(number, ".") for number in payload.ids.tolist())
    if [int(symbol != ".") for symbol in text] != payload.types.tolist():
        return False
    return re.fullmatch(r"\.*" + "".join(string + r"\.*" for string in strings), text) is not None


def damaged(array: np.ndarray, data: st.DataObject) -> Any:
    """The array with one thing changed: kind, type, shape or a value."""
    kind = data.draw(
        st.sampled_from(["value", "value", "value", "drop", "repeat", "swap", "type", "axes", "object", "columns"])
    )
    if kind == "type":
        return array.astype(
            data.draw(st.sampled_from(["i8", "f8", "f2", "u4", ">i4", ">f4", "bool", "object", "i4", "f4"]))
        )
    if kind == "axes":
        return data.draw(st.sampled_from([array[None], array[..., None], array.ravel(), array.T]))
    if kind == "object":
        return data.draw(st.sampled_from([array.tolist(), None, np.ma.masked_array(array), array.view(np.recarray)]))
    if kind == "columns":
        return array[..., :-1] if data.draw(st.booleans()) else np.concatenate([array, array], axis=-1)
    if not array.size:
        return np.ones((1, *array.shape[1:]), array.dtype)
    row = data.draw(st.integers(0, len(array) - 1))
    if kind == "drop":
        return np.delete(array, row, axis=0)
    if kind == "repeat":
        return np.insert(array, row, array[row], axis=0)
    changed = array.copy()
    if kind == "swap":
        other = data.draw(st.integers(0, len(array) - 1))
        changed[[row, other]] = changed[[other, row]]
        return changed
    place = row if array.ndim == 1 else (row, *(data.draw(st.integers(0, side - 1)) for side in array.shape[1:]))
    if array.dtype == np.float32:
        changed[place] = data.draw(st.sampled_from([np.nan, np.inf, -np.inf, 3.0]))
    else:
        near = st.integers(-2, 700) | st.integers(510, 522) | st.sampled_from([-(2**31), 2**31 - 1, 0, 1, 2, -1])
        changed[place] = data.draw(near)
    return changed


@given(st.sampled_from(SAMPLES), st.data())
@settings(deadline=None, max_examples=600)
def test_refused_exactly_when_a_rule_is_broken(payload: Payload, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 2))):
        name = data.draw(st.sampled_from(NAMES))
        array = getattr(payload, name)
        if type(array) is np.ndarray:
            payload = replace(payload, **{name: damaged(array, data)})
    try:
        check_payload(payload, SMALL)
        passed = True
    except RequestError:
        passed = False
    assert passed == follows_the_rules(payload)


TWO = SAMPLES[3]


def with_value(name: str, place: Any, value: float) -> Payload:
    array = getattr(TWO, name).copy()
    array[place] = value
    return replace(TWO, **{name: array})


MESSAGES = [
    (replace(TWO, ids=TWO.ids.astype(np.int64)), "payload.ids: got dtype int64, expected dtype int32"),
    (
        replace(TWO, patches=TWO.patches[:, :48]),
        r"payload.patches: got shape \[5, 48, 588\], expected shape \[any, 49, 588\]",
    ),
    (replace(TWO, groups=TWO.groups[:, :3]), r"payload.groups: got shape \[\d+, 3\], expected shape \[any, 4\]"),
    (replace(TWO, crops=TWO.crops[:1]), "payload.grids: got 2 grids, expected 1, one for each of crops"),
    (replace(TWO, types=TWO.types[:-1]), "payload.types: got .* types, expected .*, one for each id"),
    (replace(TWO, patches=TWO.patches[1:]), "payload.patches: got 4 crops, expected 5, the sum of crops"),
    (with_value("patches", (2, 3, 4), np.nan), r"payload.patches\[2, 3, 4\]: got nan, expected a finite value"),
    (with_value("groups", (5, 1), 147), r"payload.groups\[5, 1\]: got 147, expected -1 to 146, image 0's 3 crops"),
    (with_value("groups", (-1, 0), 98), r"payload.groups\[\d+, 0\]: got 98, expected -1 to 97, image 1's 2 crops"),
    (with_value("groups", (0, 0), -2), r"payload.groups\[0, 0\]: got -2, expected -1 to 146"),
    (with_value("groups", 5, -1), "payload.ids: got 72 image_patch ids, expected 71, one for each group that holds"),
    (with_value("crops", 0, 4), r"payload.crops\[0\]: got 4, expected 3, from grid \[4, 4, 6, 4\]"),
    (
        with_value("grids", (1, 3), 5),
        r"payload.grids\[1\]: got \[4, 4, 4, 5\], expected the grid of a tiling of 1 to 8",
    ),
    (with_value("ids", 0, 640), r"payload.ids\[0\]: got 640, expected 0 to 639"),
    (with_value("ids", 0, -1), r"payload.ids\[0\]: got -1, expected 0 to 639"),
    (with_value("types", 0, 1), r"payload.types\[0\]: got 1, expected 0, because id 9 is text"),
    (with_value("types", 2, 2), r"payload.types\[2\]: got 2, expected 1, because id 516 is in the image part"),
]


@pytest.mark.parametrize(("payload", "message"), MESSAGES, ids=[message for _, message in MESSAGES])
def test_the_refusal_names_what_and_where(payload: Payload, message: str) -> None:
    with pytest.raises(RequestError, match=message) as refusal:
        check_payload(payload, SMALL)
    assert "prepare" in refusal.value.fix


def test_a_payload_for_another_checkpoint_is_refused() -> None:
    with pytest.raises(RequestError, match="patches"):
        check_payload(TWO, RELEASED)


def test_image_part_ids_without_an_image_are_refused() -> None:
    for number in set(SMALL.tokens.image_part) - {SMALL.tokens.image_patch}:
        ids = np.array([number, 1], np.int32)
        bare = replace(SAMPLES[0], ids=ids, types=token_types(ids, SMALL.tokens))
        with pytest.raises(RequestError, match="1 image-part ids, expected 0, for 0 images"):
            check_payload(bare, SMALL)


@pytest.mark.parametrize("place", [3, 20, 30, 70])
def test_text_inside_an_image_part_is_refused(place: int) -> None:
    ids = np.insert(TWO.ids, place, 7)
    with pytest.raises(RequestError, match=r"expected the .* unbroken ids"):
        check_payload(replace(TWO, ids=ids, types=token_types(ids, SMALL.tokens)), SMALL)


def test_two_images_whose_counts_only_agree_in_total_are_refused() -> None:
    first, second = (image_ids(image.grid, SMALL.processor, SMALL.tokens) for image in TWO)
    ids = np.concatenate([[9], second, [9], first]).astype(np.int32)
    swapped = replace(TWO, ids=ids, types=token_types(ids, SMALL.tokens))
    with pytest.raises(RequestError, match="image 0: got other image-part ids"):
        check_payload(swapped, SMALL)


def test_slices_and_joined_groups() -> None:
    first, second = TWO.image(0), TWO.image(1)
    assert (TWO.images, first.crops, second.crops) == (2, 3, 2)
    assert TWO.crop_starts.tolist() == [0, 3, 5]
    assert TWO.group_starts.tolist() == [0, 16 + 24, 16 + 24 + 32]
    np.testing.assert_array_equal(np.concatenate([first.patches, second.patches]), TWO.patches)
    joined = TWO.joined_groups()
    assert joined.dtype == np.int32
    np.testing.assert_array_equal(joined[:40], first.groups)
    np.testing.assert_array_equal(joined[40:], np.where(second.groups < 0, -1, second.groups + 3 * 49))
    assert SAMPLES[0].joined_groups().shape == (0, 4)


def test_starts_of_the_docstrings() -> None:
    bare = replace(TWO, crops=np.array([3, 5], np.int32), grids=np.array([[1, 2, 2, 3]], np.int32))
    assert bare.crop_starts.tolist() == [0, 3, 8]
    assert bare.group_starts.tolist() == [0, 8]


def test_layout_of_the_docstring() -> None:
    t = SMALL.tokens
    patch, column = t.image_patch, t.image_column
    low = [t.low_res_image_start, patch, patch, t.image_end]
    high = [t.image_start, patch, patch, patch, column, patch, patch, patch, column, t.image_end]
    assert image_ids((1, 2, 2, 3), SMALL.processor, t).tolist() == low + high
    flags = {"column_tokens": False, "single_crop_column_tokens": True, "single_crop_start_token": False}
    other = SMALL.processor.model_copy(update=flags)
    low = [t.image_start, patch, patch, column, t.image_end]
    assert image_ids((1, 2, 2, 3), other, t).tolist() == [*low, t.image_start, *[patch] * 6, t.image_end]
