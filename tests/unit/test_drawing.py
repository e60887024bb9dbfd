"""Drawing an answer's points: where the ring lies, on which picture, and that small pictures are enlarged."""

from pathlib import Path

import numpy as np
from PIL import Image

from molmo2_iree.commands.drawing import GAP, draw_points
from molmo2_iree.runtime.points import Point


def grey(path: Path, width: int, height: int) -> Path:
    Image.new("RGB", (width, height), (128, 128, 128)).save(path)
    return path


def test_the_ring_lies_around_its_point_and_nowhere_else(tmp_path: Path) -> None:
    draw_points([grey(tmp_path / "a.png", 400, 200)], [Point(1, 1, 0.25, 0.5, "x")], tmp_path / "out.png")
    drawn = np.asarray(Image.open(tmp_path / "out.png"))
    rows, columns = np.nonzero((drawn != 128).any(-1))
    assert drawn.shape == (200, 400, 3)
    assert abs(columns.mean() - 100) < 2
    assert abs(rows.mean() - 100) < 2
    assert columns.max() - columns.min() < 30


def test_each_point_on_the_picture_it_names(tmp_path: Path) -> None:
    pictures = [grey(tmp_path / "a.png", 400, 300), grey(tmp_path / "b.png", 400, 300)]
    draw_points(pictures, [Point(2, 1, 0.5, 0.5, "x")], tmp_path / "out.png")
    drawn = np.asarray(Image.open(tmp_path / "out.png"))
    assert (drawn[:, :400] == 128).all()
    assert (drawn[:, 400 : 400 + GAP] == 255).all()
    assert (drawn[:, 400 + GAP :] != 128).any()


def test_a_small_picture_is_enlarged_by_a_whole_factor(tmp_path: Path) -> None:
    draw_points([grey(tmp_path / "a.png", 96, 56)], [Point(1, 1, 0.5, 0.5, "x")], tmp_path / "out.png")
    assert Image.open(tmp_path / "out.png").size == (384, 224)
