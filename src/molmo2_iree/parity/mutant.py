"""What a wrong model of the catalogue is: one small named edit, and the first stage that must notice it."""

from dataclasses import dataclass
from typing import Literal

TEXT, VISION, CONNECTOR = "model/text.py", "model/vision.py", "model/connector.py"
CACHE, LAYERS, ROTATION, PARAMETERS = "model/cache.py", "model/layers.py", "model/rotation.py", "model/parameters.py"
CROPS, LAYOUT, RESIZE = "preprocess/crops.py", "preprocess/layout.py", "preprocess/resize.py"
PAYLOAD, RUNTIME = "preprocess/payload.py", "runtime/model.py"

VISION_STAGE, CONNECTOR_STAGE, MERGE, DECODER = ("vision",), ("connector",), ("merge",), ("prefill", "extend", "decode")

REFUSED = "refused before any module"
"""Where a mutant is caught whose own host checks refuse the request it prepared."""

Family = Literal["qwen", "olmo", "causal"]
"""Which kind of checkpoint shows the mistake; config/family-*.yaml build one each."""


@dataclass(frozen=True)
class Mutant:
    """An edit replaces ``old``, which stands in ``file`` exactly once (a test holds it), by ``new``.

    ``stages`` are compiled anew, none for an edit of host code; ``converted`` says that the archives are written anew.
    ``case`` is the smallest case in which the mistake can show.
    """

    name: str
    file: str
    old: str
    new: str
    stages: tuple[str, ...]
    case: str
    first: str
    family: Family = "qwen"
    converted: bool = False
