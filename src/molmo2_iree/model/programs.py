"""From a program to the function that is traced: parameters first, then the stage's arguments, then the cache."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from molmo2_iree.architecture import Architecture
from molmo2_iree.model.connector import connector
from molmo2_iree.model.layers import Parameters
from molmo2_iree.model.parameters import Parameter, stage_parameters
from molmo2_iree.model.text import decode, extend, merge, prefill
from molmo2_iree.model.vision import Taps, vision
from molmo2_iree.stages import STAGES, CacheLayout, Program, signature, tap_names

Outputs = tuple[tuple[jax.Array, ...], Taps]
"""(results, taps) of a stage."""


@dataclass(frozen=True)
class Model:
    """Everything a traced program depends on besides its own name."""

    architecture: Architecture
    cache: CacheLayout
    storage: str
    causal_image: bool


@dataclass(frozen=True)
class Traceable:
    """``function(*parameters, *arguments)`` returns the results, then the taps if the program has them.

    ``arguments`` are specs in order, ``cache`` the number of trailing ones that are the cache.
    """

    function: Callable[..., tuple[jax.Array, ...]]
    parameters: list[Parameter]
    parameter_specs: list[jax.ShapeDtypeStruct]
    arguments: list[jax.ShapeDtypeStruct]
    cache: int


def traceable(model: Model, program: Program) -> Traceable:
    """The function and the specs of one program."""
    chosen = stage_parameters(model.architecture, program.stage)
    given, _ = signature(program, model.architecture, model.cache)
    count = len(chosen)
    names = [parameter.name for parameter in chosen]

    def function(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        results, taps = run_stage(model, program, dict(zip(names, arrays[:count], strict=True)), arrays[count:])
        if not program.taps:
            return results
        return (*results, *(taps[name] for name in tap_names(program.stage, model.architecture)))

    return Traceable(
        function=function,
        parameters=chosen,
        parameter_specs=[jax.ShapeDtypeStruct(p.shape, jnp.dtype(p.dtype(model.storage))) for p in chosen],
        arguments=[jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for _, shape, dtype in given],
        cache=2 * model.architecture.text.layers if STAGES[program.stage].cache else 0,
    )


def run_stage(model: Model, program: Program, p: Parameters, arguments: tuple[jax.Array, ...]) -> Outputs:
    """Call the stage's model function with its arguments in the order of the stage table."""
    a = model.architecture
    fixed = len(STAGES[program.stage].arguments)
    given, cache = arguments[:fixed], list(arguments[fixed:])
    if program.stage == "vision":
        features, taps = vision(a.vision, p, *given)
        return (features,), taps
    if program.stage == "connector":
        tokens, valid, taps = connector(a.connector, p, *given)
        return (tokens, valid), taps
    if program.stage == "merge":
        embeddings, taps = merge(a.text, a.tokens.image_patch, p, *given)
        return (embeddings,), taps
    if program.stage == "prefill":
        logits, cache, taps = prefill(a.text, model.causal_image, p, *given, cache=cache)
    elif program.stage == "extend":
        logits, cache, taps = extend(a.text, program.sizes()["X"], p, *given, cache=cache)
    else:
        logits, cache, taps = decode(a.text, program.sizes()["X"], p, *given, cache=cache)
    return (logits, *cache), taps
