"""What the gates ask: named conversations about real photographs, none of them of one colour."""

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from molmo2_iree.errors import GateError


@dataclass(frozen=True)
class Case:
    """One question. ``pictures`` are photographs of the scikit-image wheel; ``slot`` is where the modules put it."""

    name: str
    question: str
    pictures: tuple[str, ...]
    slot: int

    def messages(self) -> list[dict[str, Any]]:
        """The conversation, an image part for each picture before the text."""
        parts = [*({"type": "image"} for _ in self.pictures), {"type": "text", "text": self.question}]
        return [{"role": "user", "content": parts}]

    def paths(self) -> list[Path]:
        """The photographs' files."""
        return [photograph(name) for name in self.pictures]


CASES = {
    case.name: case
    for case in (
        Case("text", "What colours does the word sky bring to mind?", (), slot=0),
        Case("photo", "What is in the picture?", ("coffee.png",), slot=1),
        Case("two-pictures", "Which picture shows a cat?", ("chelsea.png", "rocket.jpg"), slot=2),
    )
}


def case_named(name: str) -> Case:
    """A case by name; GateError lists the known ones."""
    if name not in CASES:
        raise GateError(f"case {name}", got="no such case", expected=", ".join(CASES), fix="correct gates.cases")
    return CASES[name]


def photograph(name: str) -> Path:
    """The file of a photograph in the installed scikit-image."""
    try:
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
