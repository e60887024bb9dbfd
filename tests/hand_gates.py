"""Hand-made gates for the tests of the gate page, the JUnit file and the terminal table."""

from pathlib import Path

from molmo2_iree.parity.report import Gap, Gate, Line

BLOCKS = (
    Line("vision.block.0", True, error=2e-6, allowed=1e-5, margin=0.2, rms=1e-7, rms_allowed=1e-6, rms_margin=0.1),
    Line(
        "vision.block.1",
        False,
        error=4e-5,
        allowed=1e-5,
        margin=4.0,
        rms=2e-6,
        rms_allowed=1e-6,
        rms_margin=2.0,
        index=(0, 3),
        why="at [0, 3]: got 1.0, expected 2.0, allowed 1e-05",
    ),
)
IDS = Line("input.ids", True, exact=True)
LOGITS = Line("decode.logits", True, error=0.01, allowed=0.1, margin=0.1, rms=0.0, rms_allowed=1.0, rms_margin=0.0)
TOKENS = Line("decode.tokens", False, exact=True, why="at [4]: got 7.0, expected 8.0, allowed equal")


def gate(name: str, *lines: Line, refused: str = "", gap: Gap | None = None) -> Gate:
    """A gate called {reference}-{case}."""
    reference, case = ("mlx-shipped", name[12:]) if name.startswith("mlx-shipped-") else name.split("-", 1)
    environment = {"dtype": "float32", "covers": ["vision", "decode"], "deterministic": True, "threads": 1}
    record = Path(f"records/{name}.json")
    return Gate(name, reference, case, "cpu", record, lines, refused, 5, environment, {"iree": "3.13.0"}, gap)


PASSED = gate("specification-photo", IDS, BLOCKS[0], LOGITS, gap=Gap(0.5, 3, 8, (1, 2)))
FAILED = gate("native-photo", IDS, *BLOCKS, TOKENS)
SHIPPED = gate("mlx-shipped-photo", IDS, *BLOCKS)
REFUSED = gate("native-text", refused="not measured:\nrun snakemake gates")
