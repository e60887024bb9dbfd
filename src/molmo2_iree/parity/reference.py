"""What a reference says about a case, computed once and kept: inputs, every named intermediate, greedy tokens."""

import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from molmo2_iree.build.plan import Plan
from molmo2_iree.errors import GateError
from molmo2_iree.parity.cases import Case, case_named
from molmo2_iree.parity.rounding import rounded_checkpoint

ENVIRONMENT = "environment"


def split_gate(gate: str) -> tuple[str, Case]:
    """``native-photo`` is reference ``native``, case ``photo``."""
    reference, _, case = gate.partition("-")
    if reference not in ("specification", "native"):
        raise GateError(
            f"gate {gate}", got=reference, expected="specification or native", fix="correct gates.references"
        )
    return reference, case_named(case)


def write_reference(plan: Plan, gate: str, output: Path) -> None:
    """Write ``output`` (.npz): ``input.*``, the reference's arrays, ``greedy.tokens``, ``greedy.logits``."""
    from molmo2_iree.parity.inputs import inputs

    reference, case = split_gate(gate)
    folder, causal = plan.checkpoint_folder, plan.lock.mask_policy == "causal"
    given = inputs(folder, case)
    arrays = {f"input.{name}": value for name, value in given.items()}
    with TemporaryDirectory(prefix="molmo2-reference-") as scratch:
        storage = plan.config.weights.storage
        weights = rounded_checkpoint(folder, storage, Path(scratch))
        said, environment = _ask(reference, weights, given, plan.config.gates.greedy_tokens, causal)
    environment["matrices_rounded_to"] = storage
    arrays |= said
    wrong = [name for name, value in arrays.items() if not np.isfinite(value).all()]
    if wrong:
        raise GateError(
            f"reference {gate}, {wrong[0]}",
            got="values that are not finite",
            expected="finite values",
            fix="check the checkpoint; a reference that fails is no pass",
        )
    arrays[ENVIRONMENT] = np.array(json.dumps(environment, sort_keys=True))
    temporary = output.with_name(f".{output.name}.{os.getpid()}.tmp.npz")
    output.parent.mkdir(parents=True, exist_ok=True)
    np.savez(temporary, allow_pickle=False, **arrays)
    temporary.replace(output)


def _ask(
    reference: str, folder: Path, given: dict[str, np.ndarray], steps: int, causal: bool
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    arguments = [given[name] for name in ("ids", "types", "patches", "groups", "crops")]
    options = {"group_counts": given["group_counts"], "causal_image": causal}
    if reference == "native":
        from molmo2_iree.parity import native

        model = native.load(folder)
        said = native.observe(model, *arguments, **options)
        tokens, logits = native.greedy(model, *arguments, **options, steps=steps)
        environment: dict[str, Any] = native.environment()
    else:
        from molmo2_iree.parity import specification

        said = specification.specify(folder, *arguments, **options)
        tokens, logits = specification.greedy(folder, *arguments, **options, steps=steps)
        environment = {"python": sys.version.split()[0], "numpy": np.__version__, "dtype": "float64", "device": "cpu"}
    said |= {"greedy.tokens": np.array(tokens, np.int64), "greedy.logits": logits}
    return said, {"reference": reference, **environment}


def read_reference(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(arrays, environment) of a written reference; GateError if it is damaged."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        return arrays, json.loads(str(arrays.pop(ENVIRONMENT)))
    except (OSError, ValueError, KeyError) as error:
        raise GateError(
            str(path),
            got=str(error)[:200],
            expected="a reference's outputs",
            fix=f"delete {path} and run snakemake gates",
        ) from error
