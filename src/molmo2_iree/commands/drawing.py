"""Pictures with an answer's points drawn on them, side by side in one PNG."""

import io
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw

from molmo2_iree.files import write_whole
from molmo2_iree.runtime.points import Point

SMALLEST = 360
"""Pixels that a picture's longer side has at least: a small one is enlarged by a whole factor."""

GAP = 12


def draw_points(pictures: Sequence[Path], points: Sequence[Point], output: Path) -> None:
    """Write ``output``: a ring with a cross for each point, on the picture whose number it names."""
    shown = [_marked(path, [p for p in points if p.place == number]) for number, path in enumerate(pictures, 1)]
    size = sum(image.width for image in shown) + GAP * (len(shown) - 1), max(image.height for image in shown)
    sheet, left = Image.new("RGB", size, "white"), 0
    for image in shown:
        sheet.paste(image, (left, 0))
        left += image.width + GAP
    data = io.BytesIO()
    sheet.save(data, "PNG", optimize=True)
    write_whole(output, data.getvalue())


def _marked(path: Path, points: Sequence[Point]) -> Image.Image:
    image = Image.open(path).convert("RGB")
    factor = max(1, -(-SMALLEST // max(image.size)))
    image = image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    pen, radius = ImageDraw.Draw(image), max(image.size) / 40
    for point in points:
        x, y = point.pixel(*image.size)
        for width, colour in ((5, "white"), (2, "black")):
            pen.ellipse((x - radius, y - radius, x + radius, y + radius), outline=colour, width=width)
            pen.line((x - radius / 2, y, x + radius / 2, y), fill=colour, width=width)
            pen.line((x, y - radius / 2, x, y + radius / 2), fill=colour, width=width)
    return image
