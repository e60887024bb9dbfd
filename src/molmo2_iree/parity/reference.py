"""What a reference says about a case, computed once and kept: inputs, every named intermediate, greedy tokens."""

import json
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import numpy as np

from molmo2_iree.build.plan import Plan
from molmo2_iree.config import Reference
from molmo2_iree.errors import GateError
from molmo2_iree.parity.cases import Case, case_named
from molmo2_iree.parity.expected import STAGES, check_environment, expected_environment
from molmo2_iree.parity.rounding import rounded_checkpoint
from molmo2_iree.parity.table import hand_groups, sentinel_features

ENVIRONMENT = "environment"


@dataclass(frozen=True)
class Opened:
    """A reference on a checkpoint: what it ran with, and its three questions, each answered by arrays by name."""

    environment: dict[str, Any]
    observe: Callable[..., dict[str, np.ndarray]]
    greedy: Callable[..., tuple[list[int], np.ndarray]]
    connect: Callable[..., dict[str, np.ndarray]]


def reference_named(name: str) -> Reference:
    """A reference by name; GateError lists the known ones."""
    for reference in get_args(Reference):
        if name == reference:
            return reference
    raise GateError(
        f"reference {name}",
        got="no such reference",
        expected=f"one of {', '.join(get_args(Reference))}",
        fix="correct gates.references",
    )


def split_gate(gate: str) -> tuple[Reference, Case]:
    """``native-photo`` is reference ``native``, case ``photo``; ``mlx-shipped-photo`` is ``mlx-shipped``, ``photo``."""
    for reference in sorted(get_args(Reference), key=len, reverse=True):
        if gate.startswith(f"{reference}-"):
            return reference, case_named(gate.removeprefix(f"{reference}-"))
    raise GateError(
        f"gate {gate}",
        got="no known reference",
        expected=f"one of {', '.join(get_args(Reference))}, a hyphen and a case",
        fix="correct gates.references",
    )


def write_references(
    plan: Plan, reference: Reference, cases: Sequence[str], folder: Path, written: Callable[[Path], None]
) -> None:
    """Write ``{reference}-{case}.npz`` of each case: ``input.*``, the reference's arrays, ``greedy.*``.

    ``written`` is called with each path. The reference is loaded once; GateError if it ran in another environment.
    """
    storage = plan.config.weights.storage
    chosen = [case_named(name) for name in cases]
    with TemporaryDirectory(prefix="molmo2-reference-") as scratch:
        opened = _open(reference, rounded_checkpoint(plan.checkpoint_folder, storage, Path(scratch)))
        environment = opened.environment | {"reference": reference, "matrices_rounded_to": storage}
        check_environment(f"{reference}-{chosen[0].name}", environment, expected_environment(plan, reference))
        for case in chosen:
            output = folder / f"{reference}-{case.name}.npz"
            _write(_answers(plan, opened, case), environment, output)
            written(output)


def _answers(plan: Plan, opened: Opened, case: Case) -> dict[str, np.ndarray]:
    from molmo2_iree.parity.inputs import inputs

    given = inputs(plan.checkpoint_folder, case)
    arrays = {f"input.{name}": value for name, value in given.items()}
    arguments = [given[name] for name in ("ids", "types", "patches", "groups", "crops")]
    options = {"group_counts": given["group_counts"], "causal_image": plan.lock.mask_policy == "causal"}
    arrays |= opened.observe(*arguments, **options)
    if len(given["crops"]):
        arrays |= _table(opened, arrays)
    if "decode" in opened.environment["covers"]:
        tokens, logits = opened.greedy(*arguments, **options, steps=plan.config.gates.greedy_tokens)
        arrays |= {"greedy.tokens": np.array(tokens, np.int64), "greedy.logits": logits}
    return arrays


def _table(opened: Opened, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The reference's connector on the hand-made table: ``connector.*.table``."""
    features = sentinel_features(arrays["vision.features"])
    said = opened.connect(features, hand_groups(arrays["input.groups"].shape[1]))
    return {"input.table_features": features} | {f"{name}.table": value for name, value in said.items()}


def _write(arrays: dict[str, np.ndarray], environment: dict[str, Any], output: Path) -> None:
    """By rename, so that a reference that fails leaves nothing that could be compared with."""
    wrong = [name for name, value in arrays.items() if not np.isfinite(value).all()]
    if wrong:
        raise GateError(
            f"reference {output.stem}, {wrong[0]}",
            got="values that are not finite",
            expected="finite values",
            fix="check the checkpoint; a reference that fails is no pass",
        )
    arrays[ENVIRONMENT] = np.array(json.dumps(environment, sort_keys=True))
    temporary = output.with_name(f".{output.name}.{os.getpid()}.tmp.npz")
    output.parent.mkdir(parents=True, exist_ok=True)
    np.savez(temporary, allow_pickle=False, **arrays)
    temporary.replace(output)


def _open(reference: Reference, folder: Path) -> Opened:
    """The reference's own libraries are imported here and nowhere else."""
    from molmo2_iree.parity import specification as written

    if reference == "specification":
        environment = {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "dtype": "float64",
            "device": "cpu",
            "covers": list(STAGES),
        }
        functions = partial(written.specify, folder), partial(written.greedy, folder), partial(written.connect, folder)
        return Opened(environment, *functions)
    if reference == "native":
        from molmo2_iree.parity import native

        model = native.load(folder)
        functions = partial(native.observe, model), partial(native.greedy, model), partial(native.connect, model)
        return Opened(native.environment() | {"covers": list(STAGES)}, *functions)
    from molmo2_iree.parity import witness

    loaded = witness.load(folder, corrected=reference == "mlx")
    observe = partial(witness.observe, loaded)

    def shipped(*arguments: np.ndarray, **options: Any) -> dict[str, np.ndarray]:
        return observe(*arguments, **options, injected=written.specify(folder, *arguments, **options))

    seeing = observe if loaded.corrected else shipped
    return Opened(
        witness.environment(loaded), seeing, partial(witness.greedy, loaded), partial(witness.connect, loaded)
    )


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
