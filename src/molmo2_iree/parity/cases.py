"""What the gates ask: named conversations about photographs and drawings, none of them of one colour."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from molmo2_iree.errors import GateError

EXAMPLES = Path("examples")
"""Of the project, whose root is the working directory."""

DIGITS = str(3**2000)
"""955 digits without a pattern."""

DIGITS_FOLLOW = "Read these digits: "


@dataclass(frozen=True)
class Picture:
    """A photograph or drawing, see :func:`photograph`: as it is, or scaled to the size a tiling of crops covers."""

    photograph: str
    tiling: tuple[int, int] | None = None

    def pixels(self, size: Sequence[int], margin: Sequence[int]) -> np.ndarray:
        """RGB uint8 [H, W, 3]; ``size`` of a crop and ``margin`` that neighbours share, both in pixels."""
        image = Image.open(photograph(self.photograph)).convert("RGB")
        if self.tiling is not None:
            height, width = (m + n * (s - m) for m, n, s in zip(margin, self.tiling, size, strict=True))
            image = image.resize((width, height), Image.Resampling.LANCZOS)
        return np.asarray(image)


@dataclass(frozen=True)
class Case:
    """One question; ``slot`` is where the modules put it, ``followup`` an answer and the question after it.

    ``fills`` is the number of ids that digits behind the question bring the prompt to; a digit is a token everywhere.
    """

    name: str
    question: str
    pictures: tuple[Picture, ...]
    slot: int
    followup: tuple[str, str] | None = None
    fills: int | None = None

    def filled(self, length: int) -> "Case":
        """With the digits that are missing, if the prompt has ``length`` ids without them."""
        missing = (self.fills or length) - length
        return replace(self, question=self.question + DIGITS[:missing])

    def first_turn(self) -> list[dict[str, Any]]:
        """The first question, an image part for each picture before the text."""
        parts = [*({"type": "image"} for _ in self.pictures), {"type": "text", "text": self.question}]
        return [{"role": "user", "content": parts}]

    def messages(self) -> list[dict[str, Any]]:
        """The whole conversation."""
        roles = zip(("assistant", "user"), self.followup or (), strict=False)
        later = [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in roles]
        return [*self.first_turn(), *later]

    def open(self, size: Sequence[int], patch: int, margins: Sequence[int]) -> list[np.ndarray]:
        """The pictures for crops of ``size`` pixels that share ``margins``, in patches of ``patch`` pixels."""
        shared = [patch * sum(margins)] * 2
        return [picture.pixels(size, shared) for picture in self.pictures]


COFFEE, CAT, ROCKET, FACE = "coffee.png", "chelsea.png", "rocket.jpg", "astronaut.png"
SHAPES, MORE_SHAPES = "examples/shapes.png", "examples/more-shapes.png"
TILINGS = ((1, 1), (1, 2), (1, 3), (1, 4), (4, 1), (2, 3), (2, 4), (8, 1))
"""With crops [3, 5, 9]: 2 crops leave a place empty, 3 fill a bucket, 4 are one over, 5 fill, 7 leave two, 9 fill."""

FOUR = tuple(Picture(name, (1, 2)) for name in (COFFEE, CAT, ROCKET, FACE))

CASES = {
    case.name: case
    for case in (
        Case("text", "What colours does the word sky bring to mind?", (), slot=0),
        Case("photo", "What is in the picture?", (Picture(COFFEE),), slot=1),
        Case(
            "second-turn",
            "What is in the picture?",
            (Picture(COFFEE),),
            slot=2,
            followup=("A cup of coffee and a spoon.", "Which of the two is made of metal, and what is left of it?"),
        ),
        Case("drawing", "Point to the red circle.", (Picture(SHAPES),), slot=1),
        Case("two-drawings", "Which picture shows a star?", (Picture(SHAPES), Picture(MORE_SHAPES)), slot=2),
        Case("drawings-swapped", "Which picture shows a star?", (Picture(MORE_SHAPES), Picture(SHAPES)), slot=2),
        Case("full-tokens", DIGITS_FOLLOW, (), slot=0, fills=128),
        Case("over-tokens", DIGITS_FOLLOW, (), slot=3, fills=129),
        Case("longest", DIGITS_FOLLOW, (Picture(COFFEE),), slot=1, fills=768),
        Case("two-pictures", "Which picture shows a cat?", (Picture(CAT), Picture(ROCKET)), slot=2),
        Case("two-swapped", "Which picture shows a cat?", (Picture(ROCKET), Picture(CAT)), slot=2),
        Case("four-pictures", "Which picture shows a face?", FOUR, slot=3),
        Case("four-swapped", "Which picture shows a face?", FOUR[::-1], slot=3),
        *(
            Case(f"tiling-{rows}x{columns}", "What is in the picture?", (Picture(CAT, (rows, columns)),), slot=rows % 4)
            for rows, columns in TILINGS
        ),
    )
}


def case_named(name: str) -> Case:
    """A case by name; GateError lists the known ones."""
    if name not in CASES:
        raise GateError(f"case {name}", got="no such case", expected=", ".join(CASES), fix="correct gates.cases")
    return CASES[name]


def photograph(name: str) -> Path:
    """The file of a photograph in the installed scikit-image, or of a drawing in the project's ``examples``."""
    try:
        path = Path(name)
        if path.parent == EXAMPLES and path.is_file():
            return path
        path = Path(str(files("skimage") / "data" / name))
    except ModuleNotFoundError as error:
        raise GateError(
            "photographs",
            got="scikit-image is not installed",
            expected="the gates extra",
            fix="pip install 'molmo2-iree[gates]'",
        ) from error
    if not path.is_file():
        raise GateError(f"photograph {name}", got="no such file", expected=str(path), fix="reinstall scikit-image")
    return path
