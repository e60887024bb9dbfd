"""Trace a program to StableHLO text whose weights are parameters of a memory-mapped archive.

The text names no file, folder or line, so that two checkouts write the same bytes.
"""

import re
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import jax

from molmo2_iree.errors import BuildError
from molmo2_iree.model.programs import Model, Traceable, traceable
from molmo2_iree.stages import STAGES, Program

FUNCTION = "main"

_ARGUMENT = re.compile(r"%arg(\d+): (tensor<[^>]*>)( \{[^}]*\})?")


def trace(model: Model, program: Program) -> str:
    """The program's text. Raises BuildError where the traced function does not have the expected form."""
    prepared = traceable(model, program)
    text = lower(prepared)
    names = [parameter.name for parameter in prepared.parameters]
    return externalize(text, names, scope=STAGES[program.stage].archive, module=program.name.replace("-", "_"))


def lower(prepared: Traceable) -> str:
    """StableHLO text without locations; the cache arguments are donated, so a result may reuse their memory."""
    specs = [*prepared.parameter_specs, *prepared.arguments]
    donated = range(len(specs) - prepared.cache, len(specs))
    lowered = jax.jit(prepared.function, keep_unused=True, donate_argnums=tuple(donated)).lower(*specs)
    module: Any = lowered.compiler_ir("stablehlo")
    return module.operation.get_asm(enable_debug_info=False)


def externalize(text: str, names: Sequence[str], *, scope: str, module: str) -> str:
    """Turn the first ``len(names)`` arguments of @main into globals backed by the archive's parameters.

    Donated arguments become in-place results. The rewrite is checked by the compiler when it parses the program.
    """
    start = text.index(f"func.func public @{FUNCTION}(")
    end = text.index("\n", start)
    head, results = text[start:end].split(") -> ", 1)
    arguments = _ARGUMENT.findall(head)
    if [int(number) for number, _, _ in arguments] != list(range(len(arguments))) or len(arguments) < len(names):
        raise BuildError(
            "traced program",
            got=head[:200],
            expected="numbered tensor arguments",
            fix=f"pin jax (installed: {version('jax')})",
        )
    kept = ", ".join(f"%arg{number}: {kind}{attributes}" for number, kind, attributes in arguments[len(names) :])
    kept = re.sub(r"tf\.aliasing_output = (\d+) : i32", r"iree.abi.output = \1 : index", kept)
    results = re.sub(r" ?\{jax\.result_info = \"[^\"]*\"\}", "", results)
    weights = list(zip(names, (kind for _, kind, _ in arguments), strict=False))
    parameter = "#flow.parameter.named"
    globals_ = "".join(
        f'  util.global private @p{i} = {parameter}<"{scope}"::"{name}"> : {kind}\n'
        for i, (name, kind) in enumerate(weights)
    )
    loads = "".join(f"    %arg{i} = util.global.load @p{i} : {kind}\n" for i, (_, kind) in enumerate(weights))
    above = re.sub(r"module @\S+", f"module @{module}", text[: text.rindex("\n", 0, start) + 1])
    return f"{above}{globals_}  func.func public @{FUNCTION}({kept}) -> {results}\n{loads}{text[end + 1 :]}"
