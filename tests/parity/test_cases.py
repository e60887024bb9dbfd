"""What the cases promise about buckets, read from the records of every configuration that ``make test`` builds."""

from pathlib import Path

import pytest

from molmo2_iree.build.plan import make_plan
from molmo2_iree.config import read_config
from molmo2_iree.parity.cases import CASES, Case
from molmo2_iree.parity.judge import read_record

CONFIGS = ("default", "family-qwen", "family-olmo", "family-causal")


@pytest.mark.parametrize("name", CONFIGS)
def test_prompts_that_fill_a_bucket_overflow_it_or_are_the_longest(name: str) -> None:
    plan = make_plan(read_config(Path(f"config/{name}.yaml")))
    tokens = plan.config.buckets.tokens
    length = {}
    for case in plan.config.gates.cases:
        record = read_record(plan.record_path("cpu", f"specification-{case}"))
        shapes = {entry["stage"]: entry["shape"] for entry in record["comparisons"]}
        length[case] = shapes["input.ids"][0]
        assert length[case] == (CASES[case].fills or length[case])
    assert length["full-tokens"] in tokens
    assert length["over-tokens"] == length["full-tokens"] + 1
    assert length["longest"] == tokens[-1]


def test_digits_bring_a_prompt_to_its_length() -> None:
    case = Case("x", "Read: ", (), slot=0, fills=10)
    assert case.filled(7).question == "Read: 174"
    assert Case("x", "Read: ", (), slot=0).filled(7).question == "Read: "
