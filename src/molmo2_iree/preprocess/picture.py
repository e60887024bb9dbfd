"""Open a picture as RGB values, or refuse it in words.

What the reference does is kept: Pillow decodes, ``convert("RGB")`` drops transparency (the hidden colours show, nothing
is composited), EXIF rotation is ignored, an animation gives its first frame. Two effects of ``convert`` are worth
knowing: 16-bit and 32-bit *grayscale* is clipped, so every value above 255 becomes white, while 16-bit *colour* PNGs
keep their upper 8 bits.
"""

import io
import math
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from molmo2_iree.errors import RequestError

Source = Path | bytes | Image.Image | np.ndarray

FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
"""Formats that are opened: those whose decoder runs inside Pillow and states its size in the header."""

MOST_SIDE = 16_384
"""Pixels along the longer side."""

MOST_BYTES = 512 * 2**20
"""Decoded RGB bytes, 3 a pixel: 178,956,970 pixels. Both ceilings are checked on the header, before decoding."""


def open_picture(source: Source) -> np.ndarray:
    """RGB values of ``source``: uint8 [height, width, 3], or float32 in 0..1 where a float array was given.

    A path or bytes hold an encoded picture. An array is [height, width, 3], uint8 or float in 0..1, and is not copied
    where its type is already right. Raises RequestError for anything else.
    """
    if isinstance(source, np.ndarray):
        return _from_array(source)
    if isinstance(source, Image.Image):
        _check_size("picture", *source.size)
        return _decode(source, "picture")
    if isinstance(source, bytes):
        return _from_bytes(source, "picture")
    if isinstance(source, Path):
        return _from_path(source)
    raise RequestError(
        "picture",
        got=type(source).__name__,
        expected="a pathlib.Path, bytes, a PIL image or a numpy array",
        fix="pass one of these; a file name goes into pathlib.Path",
    )


def _from_path(path: Path) -> np.ndarray:
    where = f"picture {path}"
    if path.is_dir():
        raise RequestError(where, got="a directory", expected="a picture file", fix="name one picture in it")
    if not path.is_file():
        raise RequestError(where, got="no such file", expected="a picture file", fix="check the path")
    try:
        content = path.read_bytes()
    except OSError as wrong:
        raise RequestError(
            where, got=wrong.strerror, expected="a readable file", fix="check its permissions"
        ) from wrong
    return _from_bytes(content, where)


def _from_bytes(content: bytes, where: str) -> np.ndarray:
    if not content:
        raise RequestError(where, got="0 bytes", expected="a picture", fix="write the file again")
    try:
        Image.init()  # loads the decoders that Pillow does not load by itself
        picture = Image.open(io.BytesIO(content), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as bomb:
        raise _too_large(where, str(bomb)) from bomb
    except UnidentifiedImageError as wrong:
        got = f"{len(content)} bytes that are no picture"
        raise RequestError(where, got=got, expected=", ".join(FORMATS), fix="save it as PNG or JPEG") from wrong
    except Exception as wrong:  # Pillow's readers raise many kinds of error on a damaged header
        raise _damaged(where, wrong) from wrong
    with picture:
        _check_size(where, *picture.size)
        return _decode(picture, where)


def _decode(picture: Image.Image, where: str) -> np.ndarray:
    try:
        return np.asarray(picture if picture.mode == "RGB" else picture.convert("RGB"))
    except Exception as wrong:  # Pillow's decoders raise many kinds of error on damaged data
        raise _damaged(where, wrong) from wrong


def _from_array(array: np.ndarray) -> np.ndarray:
    where = "picture array"
    if array.ndim != 3 or array.shape[2] != 3:
        raise RequestError(
            where, got=f"shape {list(array.shape)}", expected="[height, width, 3]", fix="put the colour axis last, RGB"
        )
    _check_size(where, array.shape[1], array.shape[0])
    if array.dtype == np.uint8:
        return np.asarray(array)
    if array.dtype not in (np.float16, np.float32, np.float64):
        raise RequestError(
            where,
            got=f"dtype {array.dtype}",
            expected="uint8, or float in 0..1",
            fix="convert with .astype(numpy.uint8)",
        )
    values = np.asarray(array, np.float32)
    low, high = float(values.min()), float(values.max())
    if not (low >= 0 and high <= 1):
        got = "NaN" if math.isnan(low) else f"values from {low:g} to {high:g}"
        raise RequestError(where, got=got, expected="float values in 0..1", fix="divide values of 0..255 by 255")
    return values


def _check_size(where: str, width: int, height: int) -> None:
    if min(width, height) < 1:
        got = f"{width} x {height} pixels"
        raise RequestError(where, got=got, expected="at least 1 x 1", fix="check how the picture was made")
    if max(width, height) > MOST_SIDE or width * height * 3 > MOST_BYTES:
        raise _too_large(where, f"{width} x {height} pixels")


def _too_large(where: str, got: str) -> RequestError:
    expected = f"at most {MOST_SIDE} pixels a side and {MOST_BYTES // 2**20} MiB decoded ({MOST_BYTES // 3} pixels)"
    return RequestError(where, got=got, expected=expected, fix="scale the picture down first")


def _damaged(where: str, wrong: Exception) -> RequestError:
    got = f"a picture that cannot be decoded ({type(wrong).__name__}: {wrong})"
    return RequestError(where, got=got, expected="a complete picture", fix="fetch or save the file again")
