"""What a reference must have run with, by configuration and lock alone; a record that says otherwise fails."""

from collections.abc import Mapping
from typing import Any

from molmo2_iree.build.plan import Plan
from molmo2_iree.config import Reference
from molmo2_iree.errors import GateError

STAGES = ("vision", "connector", "merge", "prefill", "extend", "decode")
"""What a reference can speak about, in the order of the line."""

INFORMATIONAL: tuple[Reference, ...] = ("mlx-shipped",)
"""References known to be wrong: their records are shown and never pass."""

RUN_AGAIN = "pip install -c constraints.txt -e '.[gates]', delete that reference's outputs and run snakemake gates"


def expected_environment(plan: Plan, reference: Reference) -> dict[str, Any]:
    """Field by field what the reference's environment must hold; it may hold more."""
    pinned = plan.config.references[reference]
    return {
        "reference": reference,
        "device": pinned.device,
        "dtype": pinned.dtype,
        **pinned.versions,
        **{name: list(value) if isinstance(value, tuple) else value for name, value in pinned.switches.items()},
        "matrices_rounded_to": plan.config.weights.storage,
        "covers": list(covered(plan, reference)),
    }


def covered(plan: Plan, reference: Reference) -> tuple[str, ...]:
    """Stages the reference must speak about: all, but mlx-vlm's decoder is the pre-norm one without rotary scaling."""
    text = plan.lock.architecture.text
    has_decoder = (text.norm_after, text.qk_norm, text.yarn) == (False, "head", None)
    return STAGES if has_decoder or not reference.startswith("mlx") else STAGES[:3]


def check_environment(gate: str, environment: object, expected: Mapping[str, Any]) -> None:
    """GateError naming reference, field, got and expected, at the first field that is missing or another."""
    stated = environment if isinstance(environment, Mapping) else {}
    for field, value in expected.items():
        got = stated.get(field)
        if field not in stated or type(got) is not type(value) or got != value:
            raise GateError(
                f"gate {gate}, reference {expected['reference']}, {field}",
                got=repr(got) if field in stated else "nothing stated",
                expected=repr(value),
                fix=RUN_AGAIN,
            )
