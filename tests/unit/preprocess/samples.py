"""What the tests of this folder share: photographs, processors of every kind, and small payloads."""

from functools import cache

import numpy as np
import skimage.data
import torch
from hypothesis import strategies as st

from molmo2_iree.architecture import Architecture, Processor
from molmo2_iree.build.embedded_config import DEFAULT, Variant, json_files
from molmo2_iree.detect import read_architecture
from molmo2_iree.preprocess.resize import resize

SIZES = {
    (480, 640): ((2, 2), (23, 23)),
    (333, 517): ((1, 2), (14, 23)),
    (1080, 1920): ((2, 4), (23, 42)),
    (200, 150): ((1, 1), (14, 14)),
    (379, 380): ((2, 2), (23, 23)),
    (1600, 300): ((6, 1), (61, 14)),
    (60, 2000): ((1, 1), (14, 14)),
    (111, 700): ((1, 1), (14, 14)),
    (112, 300): ((1, 1), (14, 14)),
    (112, 112): ((1, 1), (14, 14)),
    (378, 378): ((1, 1), (14, 14)),
    (1, 1): ((1, 1), (14, 14)),
}
"""Contract 3.3: height and width to tiling and high-res grid, with released sizes."""

PHOTOS = ("astronaut", "chelsea", "coffee", "rocket", "retina", "hubble_deep_field")

SMALL = read_architecture(json_files(DEFAULT))
"""The embedded checkpoint: crops of 98 x 98 pixels, 7 x 7 patches, margins (1, 1), groups of 2 x 2."""

RELEASED = read_architecture(json_files(Variant(grid=27, margins=(4, 4), vocabulary=151_936)))
"""Released picture sizes and multimodal ids; all else is small."""


@cache
def load_photo(name: str) -> np.ndarray:
    return np.asarray(getattr(skimage.data, name)())[..., :3]


def photo_of(height: int, width: int) -> np.ndarray:
    """A real photograph cut to the size, mirrored where it is too small, so that it stays full of detail."""
    photo = load_photo(PHOTOS[(height + width) % len(PHOTOS)])
    while photo.shape[0] < height:
        photo = np.concatenate([photo, photo[::-1]])
    while photo.shape[1] < width:
        photo = np.concatenate([photo, photo[:, ::-1]], axis=1)
    top, left = (photo.shape[0] - height) // 2, (photo.shape[1] - width) // 2
    return photo[top : top + height, left : left + width]


def small_photo(height: int, width: int) -> np.ndarray:
    """A whole photograph shrunk, for the embedded checkpoint's sizes."""
    return resize(load_photo("chelsea"), height, width)


def by_torch(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """torch's own resize, [H, W, 3] to [height, width, 3], with more than one thread, as the reference runs it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    planes = torch.from_numpy(pixels.astype(np.float32)).permute(2, 0, 1)[None].contiguous()
    out = torch.nn.functional.interpolate(
        planes, (height, width), mode="bilinear", align_corners=False, antialias=False
    )
    torch.set_num_threads(threads)
    if pixels.dtype == np.uint8:
        out = out.round().clamp(0, 255).to(torch.uint8)
    return out[0].permute(1, 2, 0).numpy()


@st.composite
def processors(draw: st.DrawFn) -> Processor:
    """Any processor the architecture can express with square crops: sizes, margins, pooling and all three flags."""
    side = draw(st.integers(2, 12))
    before = draw(st.integers(0, side - 1))
    after = draw(st.integers(0, side - 1 - before))
    patch = draw(st.integers(1, 16))
    return Processor(
        image_size=(side * patch, side * patch),
        patch_size=patch,
        max_crops=draw(st.integers(1, 12)),
        overlap_margins=(before, after),
        pooling_size=(draw(st.integers(1, 4)), draw(st.integers(1, 4))),
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
        column_tokens=draw(st.booleans()),
        single_crop_column_tokens=draw(st.booleans()),
        single_crop_start_token=draw(st.booleans()),
    )


def with_bos(architecture: Architecture, bos: int) -> Architecture:
    return architecture.model_copy(update={"tokens": architecture.tokens.model_copy(update={"bos": bos})})
