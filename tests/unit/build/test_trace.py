"""Traced programs: their names, parameters and in-place results, and that the text depends on nothing else."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from iree.compiler import ir as untyped_ir
from small_checkpoint import SMALL, small_architecture

from molmo2_iree.build.embedded import OLMO
from molmo2_iree.build.trace import externalize, trace
from molmo2_iree.errors import BuildError
from molmo2_iree.model.parameters import stage_parameters
from molmo2_iree.model.programs import Model
from molmo2_iree.stages import STAGES, CacheLayout, Program, parse_program, signature, tap_names

ir: Any = untyped_ir
PROGRAMS = [
    "vision-c2",
    "connector-c3",
    "merge-s16",
    "prefill-s16",
    "extend-t4x32",
    "decode-b2x32",
    "vision-c2-taps",
    "connector-c3-taps",
    "merge-s16-taps",
    "prefill-s16-taps",
]
KINDS = {"float32": "f32", "bfloat16": "bf16", "int32": "i32"}
WIDE, NARROW = (CacheLayout(3, 48, dtype) for dtype in ("float32", "bfloat16"))
MODELS = {
    "float32": Model(small_architecture(), WIDE, "float32", False),
    "bfloat16": Model(small_architecture(), NARROW, "bfloat16", True),
    "olmo": Model(small_architecture(replace(SMALL, qk_norm="olmo", yarn_layers=(1,))), NARROW, "float32", False),
}


@pytest.fixture(scope="module", params=[(model, program) for model in MODELS for program in PROGRAMS], ids="-".join)
def traced(request: pytest.FixtureRequest) -> tuple[Model, Program, str]:
    model, program = MODELS[request.param[0]], parse_program(request.param[1])
    return model, program, trace(model, program)


def kind(shape: tuple[int, ...], dtype: str) -> str:
    """tensor<4x8xf32>"""
    return f"tensor<{''.join(f'{size}x' for size in shape)}{KINDS[dtype]}>"


def main_line(text: str) -> str:
    return next(line for line in text.splitlines() if "func.func public @main(" in line)


def test_every_stage_parameter_is_a_global_in_order(traced: tuple[Model, Program, str]) -> None:
    model, program, text = traced
    found = re.findall(r'util\.global private @p(\d+) = #flow\.parameter\.named<"(\w+)"::"([^"]+)"> : (\S+)', text)
    archive = STAGES[program.stage].archive
    assert found == [
        (str(i), archive, p.name, kind(p.shape, p.dtype(model.storage)))
        for i, p in enumerate(stage_parameters(model.architecture, program.stage))
    ]
    assert text.count("util.global.load") == text.count("util.global private") == len(found)


def test_arguments_and_results_are_the_stage_tables(traced: tuple[Model, Program, str]) -> None:
    model, program, text = traced
    arguments, results = signature(program, model.architecture, model.cache)
    head, _, tail = main_line(text).partition(") -> ")
    assert re.findall(r"%arg\d+: (tensor<[^>]*>)", head) == [kind(*argument[1:]) for argument in arguments]
    returned = re.findall(r"tensor<[^>]*>", tail)
    assert returned[: len(results)] == [kind(*result[1:]) for result in results]
    taps = tap_names(program.stage, model.architecture) if program.taps else []
    assert len(returned) == len(results) + len(taps)


def test_cache_arguments_are_returned_in_place(traced: tuple[Model, Program, str]) -> None:
    """The first result of a decoder stage is its logits, then the cache in argument order."""
    model, program, text = traced
    cached = 2 * model.architecture.text.layers if STAGES[program.stage].cache else 0
    places = re.findall(r"\{iree\.abi\.output = (\d+) : index\}", main_line(text))
    assert places == [str(1 + i) for i in range(cached)]
    assert re.findall(r"\{[^}]*\}", main_line(text)) == [f"{{iree.abi.output = {i} : index}}" for i in places]
    assert "tf.aliasing_output" not in text
    assert "jax.buffer_donor" not in text


def test_the_text_names_its_module_and_nothing_of_this_machine(traced: tuple[Model, Program, str]) -> None:
    _, program, text = traced
    assert text.startswith(f"module @{program.name.replace('-', '_')} ")
    assert not re.search(r"\bloc\(|#loc", text)
    for word in ("/", "\\", ".py", "jax", os.environ.get("USER", "site-packages"), str(os.getpid())):
        assert word not in text, word


def test_the_compiler_parses_it(traced: tuple[Model, Program, str]) -> None:
    _, program, text = traced
    with ir.Context():
        module = ir.Module.parse(text)
        assert module.operation.verify()
        names = [str(op.attributes["sym_name"]) for op in module.body.operations if "sym_name" in op.attributes]
    assert '"main"' in names
    assert f"module @{program.name.replace('-', '_')}" in str(module)


def test_another_bucket_model_or_policy_is_another_text() -> None:
    model = MODELS["float32"]
    texts = [
        trace(model, parse_program("prefill-s16")),
        trace(model, parse_program("prefill-s32")),
        trace(replace(model, causal_image=True), parse_program("prefill-s16")),
        trace(replace(model, storage="bfloat16"), parse_program("prefill-s16")),
        trace(replace(model, cache=CacheLayout(4, 48, "float32")), parse_program("prefill-s16")),
    ]
    assert len(set(texts)) == len(texts)


def test_only_prefill_depends_on_the_mask_policy() -> None:
    """One policy's programs are the other's, so switching it compiles few anew."""
    model = MODELS["float32"]
    for name in ("vision-c2", "connector-c3", "merge-s16", "extend-t4x32", "decode-b2x32"):
        program = parse_program(name)
        assert trace(model, program) == trace(replace(model, causal_image=True), program)


TRACE = """
import sys
from molmo2_iree.build.embedded import OLMO
from molmo2_iree.build.embedded_config import json_files
from molmo2_iree.build.trace import trace
from molmo2_iree.detect import read_architecture
from molmo2_iree.model.programs import Model
from molmo2_iree.stages import CacheLayout, parse_program
model = Model(read_architecture(json_files(OLMO)), CacheLayout(2, 48, "bfloat16"), "bfloat16", False)
for name in sys.argv[1:]:
    sys.stdout.write(trace(model, parse_program(name)))
"""


def traced_elsewhere(folder: Path, environment: Mapping[str, str]) -> bytes:
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", TRACE, *PROGRAMS],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        check=True,
    )
    return done.stdout


def test_two_processes_write_the_same_bytes(tmp_path: Path) -> None:
    """In other folders, with other hash seeds and another zone, and as this process does."""
    first = traced_elsewhere(tmp_path / "a", {"PYTHONHASHSEED": "1", "TZ": "UTC"})
    second = traced_elsewhere(
        tmp_path / "b", {"PYTHONHASHSEED": "2", "TZ": "Asia/Tokyo", "JAX_TRACEBACK_FILTERING": "off"}
    )
    assert first == second
    model = Model(small_architecture(OLMO), CacheLayout(2, 48, "bfloat16"), "bfloat16", False)
    assert "".join(trace(model, parse_program(name)) for name in PROGRAMS).encode() == first


def test_the_order_of_tracing_does_not_matter() -> None:
    model = MODELS["float32"]
    first = {name: trace(model, parse_program(name)) for name in PROGRAMS}
    again = {name: trace(model, parse_program(name)) for name in reversed(PROGRAMS)}
    assert first == again


FEW = """module @jit_f {
  func.func public @main(%arg0: tensor<2xf32>, %arg1: tensor<3xf32>) -> (tensor<3xf32>) {
    return %arg1 : tensor<3xf32>
  }
}
"""


def test_externalize_by_hand() -> None:
    assert externalize(FEW, ["a.b"], scope="text", module="merge_s1") == (
        """module @merge_s1 {
  util.global private @p0 = #flow.parameter.named<"text"::"a.b"> : tensor<2xf32>
  func.func public @main(%arg1: tensor<3xf32>) -> (tensor<3xf32>) {
    %arg0 = util.global.load @p0 : tensor<2xf32>
    return %arg1 : tensor<3xf32>
  }
}
"""
    )


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (FEW, ["a", "b", "c"]),
        (FEW.replace("%arg1: ", "%arg7: "), ["a"]),
        (FEW.replace("%arg0: tensor<2xf32>", "%arg0: !stablehlo.token"), ["a"]),
    ],
    ids=["too few", "a gap", "no tensor"],
)
def test_a_form_that_is_not_expected_is_refused(text: str, names: list[str]) -> None:
    with pytest.raises(BuildError, match="expected numbered tensor arguments") as refusal:
        externalize(text, names, scope="text", module="m")
    assert refusal.value.fix.startswith("pin jax")
