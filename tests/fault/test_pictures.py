"""Pictures that users send: the odd ones are read as the reference reads them, the bad ones refused in words."""

import io
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skimage.data
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from molmo2_iree.errors import RequestError
from molmo2_iree.preprocess.picture import MOST_BYTES, MOST_SIDE, open_picture

PHOTO = np.asarray(skimage.data.chelsea())[:120, :161]


def encoded(picture: Image.Image | np.ndarray, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    (Image.fromarray(picture) if isinstance(picture, np.ndarray) else picture).save(buffer, kind, **options)
    return buffer.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_header(width: int, height: int) -> bytes:
    """A PNG of a few bytes that says it is ``width`` x ``height`` RGB."""
    start = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return start + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


BAD_BYTES = {
    "empty": (b"", "got 0 bytes"),
    "text": (b"this is no picture\n" * 9, "got 171 bytes that are no picture"),
    "one byte": (b"\x89", "got 1 bytes that are no picture"),
    "half a JPEG": (encoded(PHOTO, "JPEG")[:2000], "cannot be decoded"),
    "a JPEG header": (encoded(PHOTO, "JPEG")[:30], "no picture|cannot be decoded"),
    "half a PNG": (encoded(PHOTO, "PNG")[:9000], "cannot be decoded"),
    "a PNG header": (encoded(PHOTO, "PNG")[:40], "no picture|cannot be decoded"),
    "half a WebP": (encoded(PHOTO, "WEBP")[:900], "no picture|cannot be decoded"),
    "half a GIF": (encoded(PHOTO, "GIF")[:900], "cannot be decoded"),
    "half a BMP": (encoded(PHOTO, "BMP")[:900], "cannot be decoded"),
    "half a TIFF": (encoded(PHOTO, "TIFF")[:900], "cannot be decoded|no picture"),
    "PostScript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n", "no picture"),
    "SVG": (b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>', "no picture"),
    "a bomb": (png_header(40_000, 40_000), r"at most 16384 pixels a side and 512 MiB decoded"),
    "a bomb just over": (png_header(16_384, 10_923), "16384 x 10923|178962432 pixels"),
    "too wide": (png_header(16_385, 10), "got 16385 x 10 pixels"),
    "too high": (png_header(10, 16_385), "got 10 x 16385 pixels"),
    "no width": (png_header(0, 10), "cannot be decoded|no picture|0 x 10"),
}


@pytest.mark.parametrize(("content", "message"), BAD_BYTES.values(), ids=BAD_BYTES)
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_bad_bytes_are_refused_in_words(content: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=message) as refusal:
        open_picture(content)
    assert refusal.value.exit_code == 10
    (tmp_path / "photo.png").write_bytes(content)
    with pytest.raises(RequestError, match=message) as named:
        open_picture(tmp_path / "photo.png")
    assert "photo.png" in named.value.where


@pytest.mark.filterwarnings("error::PIL.Image.DecompressionBombWarning")
def test_a_warning_turned_into_an_error_is_a_refusal_too() -> None:
    with pytest.raises(RequestError, match="at most 16384 pixels a side"):
        open_picture(png_header(16_000, 10_000))


def test_the_ceilings_are_the_documented_ones() -> None:
    assert (MOST_SIDE, MOST_BYTES // 3) == (16_384, 178_956_970)
    assert open_picture(np.zeros((1, MOST_SIDE, 3), np.uint8)).shape == (1, MOST_SIDE, 3)


def test_missing_and_unreadable_paths(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no such file"):
        open_picture(tmp_path / "nothing.png")
    with pytest.raises(RequestError, match="a directory"):
        open_picture(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RequestError, match="no such file"):
        open_picture(tmp_path / "pipe")


@pytest.mark.parametrize("source", ["photo.png", 3, None, [[1]], bytearray(b"x")], ids=str)
def test_other_kinds_of_source_are_refused(source: Any) -> None:
    with pytest.raises(RequestError, match=f"got {type(source).__name__}, expected a pathlib.Path"):
        open_picture(source)


BAD_ARRAYS = {
    "grayscale": (np.zeros((4, 5), np.uint8), r"shape \[4, 5\], expected \[height, width, 3\]"),
    "alpha": (np.zeros((4, 5, 4), np.uint8), r"shape \[4, 5, 4\]"),
    "colour first": (np.zeros((3, 4, 5), np.uint8), r"shape \[3, 4, 5\]"),
    "a batch": (np.zeros((1, 4, 5, 3), np.uint8), r"shape \[1, 4, 5, 3\]"),
    "no rows": (np.zeros((0, 5, 3), np.uint8), "5 x 0 pixels, expected at least 1 x 1"),
    "16 bit": (np.zeros((4, 5, 3), np.uint16), "dtype uint16"),
    "signed": (np.zeros((4, 5, 3), np.int8), "dtype int8"),
    "bool": (np.zeros((4, 5, 3), bool), "dtype bool"),
    "complex": (np.zeros((4, 5, 3), np.complex64), "dtype complex64"),
    "object": (np.zeros((4, 5, 3), object), "dtype object"),
    "NaN": (np.full((4, 5, 3), np.nan, np.float32), "got NaN"),
    "one NaN": (np.where(np.arange(60).reshape(4, 5, 3) == 7, np.nan, 0.5), "got NaN"),
    "infinite": (np.full((4, 5, 3), np.inf), "values from inf to inf, expected float values in 0..1"),
    "0 to 255 as float": (PHOTO.astype(np.float32), "values from .* to .*, expected float values in 0..1"),
    "negative": (np.full((4, 5, 3), -0.1), "values from -0.1 to -0.1"),
    "too wide": (np.zeros((1, 16_385, 3), np.uint8), "16385 x 1 pixels"),
}


@pytest.mark.parametrize(("array", "message"), BAD_ARRAYS.values(), ids=BAD_ARRAYS)
def test_bad_arrays_are_refused(array: np.ndarray, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        open_picture(array)


def test_float_arrays_stay_float() -> None:
    for dtype in (np.float16, np.float32, np.float64):
        values = (PHOTO / 255).astype(dtype)
        ours = open_picture(values)
        assert ours.dtype == np.float32
        np.testing.assert_array_equal(ours, values.astype(np.float32))


def test_a_pil_picture_whose_file_is_cut_short() -> None:
    with (
        Image.open(io.BytesIO(encoded(PHOTO, "PNG")[:9000])) as lazy,
        pytest.raises(RequestError, match="cannot be decoded"),
    ):
        open_picture(lazy)
    with pytest.raises(RequestError, match="0 x 0 pixels"):
        open_picture(Image.new("RGB", (0, 0)))
    with pytest.raises(RequestError, match="cannot be decoded"):
        open_picture(Image.new("La", (2, 2)))


def as_rgb(values: list[int]) -> list[list[int]]:
    return [[value] * 3 for value in values]


def test_one_pixel() -> None:
    assert open_picture(encoded(np.array([[[1, 2, 3]]], np.uint8), "PNG")).tolist() == [[[1, 2, 3]]]


def test_grayscale_becomes_three_equal_channels() -> None:
    gray = np.array([[0, 7, 255]], np.uint8)
    assert open_picture(encoded(gray, "PNG")).tolist() == [as_rgb([0, 7, 255])]
    assert open_picture(Image.fromarray(gray > 5)).tolist() == [as_rgb([0, 255, 255])]


def test_palette() -> None:
    picture = Image.new("P", (2, 1))
    picture.putpalette([10, 20, 30, 40, 50, 60])
    picture.putpixel((1, 0), 1)
    expected = [[[10, 20, 30], [40, 50, 60]]]
    assert open_picture(encoded(picture, "PNG")).tolist() == expected
    assert open_picture(encoded(picture, "PNG", transparency=0)).tolist() == expected


def test_alpha_is_dropped_and_hidden_colours_show() -> None:
    rgba = np.array([[[10, 20, 30, 0], [40, 50, 60, 128]]], np.uint8)
    assert open_picture(encoded(rgba, "PNG")).tolist() == [[[10, 20, 30], [40, 50, 60]]]
    assert open_picture(encoded(Image.new("LA", (1, 1), (9, 0)), "PNG")).tolist() == [[[9, 9, 9]]]


def test_cmyk_is_pillows_plain_conversion() -> None:
    picture = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    red = open_picture(encoded(picture, "TIFF"))
    np.testing.assert_array_equal(red, np.broadcast_to([255, 0, 0], (16, 16, 3)))
    jpeg = open_picture(encoded(picture, "JPEG", quality=100))
    assert int(np.abs(jpeg.astype(int) - [255, 0, 0]).max()) < 8


def test_16_bit_gray_is_clipped_to_white() -> None:
    gray = np.array([[0, 1, 255, 256, 65_535]], np.uint16)
    for kind in ("PNG", "TIFF"):
        assert open_picture(encoded(gray, kind)).tolist() == [as_rgb([0, 1, 255, 255, 255])]


def test_16_bit_colour_keeps_its_upper_bits() -> None:
    rows = b"\0" + struct.pack(">6H", 0x0102, 0x0304, 0xFFFF, 0x00FF, 0x8000, 0x7FFF)
    content = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 2, 1, 16, 2, 0, 0, 0))
    content += chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    assert open_picture(content).tolist() == [[[1, 3, 255], [0, 128, 127]]]


def test_exif_rotation_is_ignored() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    assert open_picture(encoded(PHOTO, "JPEG", exif=exif)).shape == PHOTO.shape


def test_an_animation_gives_its_first_frame() -> None:
    frames = [Image.new("RGB", (4, 3), colour) for colour in ("red", "blue")]
    gif = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    np.testing.assert_array_equal(open_picture(gif), np.broadcast_to([255, 0, 0], (3, 4, 3)))


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM"])
def test_lossless_formats_give_the_picture(kind: str) -> None:
    np.testing.assert_array_equal(open_picture(encoded(PHOTO, kind)), PHOTO)


@pytest.mark.parametrize("kind", ["JPEG", "WEBP", "AVIF", "JPEG2000", "MPO"])
def test_lossy_formats_open(kind: str) -> None:
    assert open_picture(encoded(PHOTO, kind)).shape == PHOTO.shape


GOOD = [encoded(PHOTO[:40, :50], kind) for kind in ("PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP")]


@given(st.sampled_from(GOOD), st.data())
@settings(deadline=None, max_examples=300)
@pytest.mark.filterwarnings("ignore")
def test_damaged_bytes_give_a_picture_or_a_refusal(content: bytes, data: st.DataObject) -> None:
    damaged = bytearray(content)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(damaged)))
    for variant in (bytes(damaged), bytes(damaged[:cut])):
        try:
            pixels = open_picture(variant)
        except RequestError:
            continue
        assert pixels.dtype == np.uint8
        assert pixels.ndim == 3
