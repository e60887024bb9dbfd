"""Hand-made records and tolerances for the tests of judgement."""

import numpy as np

from molmo2_iree.config import Tolerance
from molmo2_iree.parity.compare import compare

REASON = "a reason of twenty letters"


def record(*entries: dict) -> dict:
    names = ("vision.features.module", "connector.tokens.module", "connector.tokens.table", "merge.embeddings")
    names += ("prefill.logits.module", "extend.logits", "decode.logits")
    required = [compare(stage, np.zeros(1), np.zeros(1)) for stage in names]
    exact = [compare(s, np.zeros(1), np.zeros(1), exact=True) for s in ("input.ids", "input.patches", "decode.tokens")]
    return {"gate": "native-photo", "target": "cpu", "comparisons": [*entries, *required, *exact]}


def tolerances(**values: Tolerance) -> dict[str, Tolerance]:
    zero = Tolerance(atol=0.0, rtol=0.0, rms=0.0, reason=REASON)
    keys = (
        "vision.features",
        "connector.tokens",
        "merge.embeddings",
        "prefill.logits",
        "extend.logits",
        "decode.logits",
    )
    return dict.fromkeys(keys, zero) | {name.replace("_", "."): value for name, value in values.items()}
