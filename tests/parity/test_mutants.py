"""Every wrong model of the catalogue is traced, compiled, run, and rejected at the stage the catalogue names."""

from pathlib import Path
from typing import get_args

import pytest

from molmo2_iree.build.plan import Plan, make_plan
from molmo2_iree.config import read_config
from molmo2_iree.errors import GateError
from molmo2_iree.parity.cases import CASES
from molmo2_iree.parity.mutant import Family, Mutant
from molmo2_iree.parity.mutants import MUTANTS
from molmo2_iree.parity.mutate import chosen, family_of, mutated_package, run_mutants


def test_names_are_unique_and_cases_known() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert {mutant.case for mutant in MUTANTS} <= CASES.keys()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_an_edit_changes_one_place_and_stays_python(mutant: Mutant, tmp_path: Path) -> None:
    mutated_package(mutant, tmp_path)
    source = (tmp_path / "molmo2_iree" / mutant.file).read_text(encoding="utf-8")
    assert mutant.new in source
    compile(source, mutant.file, "exec")


def test_an_edit_that_no_longer_fits_is_refused(tmp_path: Path) -> None:
    stale = Mutant("stale", "model/text.py", "no such text", "x", (), "text", "prefill.layer.0")
    with pytest.raises(GateError, match="0 times"):
        mutated_package(stale, tmp_path)


@pytest.mark.parametrize("name", ["perfect GELU", "YaRN on every layer"])
def test_a_name_unknown_to_the_family_is_refused(name: str) -> None:
    with pytest.raises(GateError, match="no such mutant of the qwen family"):
        chosen(["exact GELU", name], "qwen")


def config_of(family: Family) -> Path:
    return Path(f"config/family-{family}.yaml")


def plan_of(family: Family) -> Plan:
    """The family's plan; its gates ran before (make test builds the families first)."""
    return make_plan(read_config(config_of(family)))


@pytest.mark.parametrize("family", get_args(Family))
def test_every_mutant_is_caught_where_the_catalogue_says(family: Family) -> None:
    plan = plan_of(family)
    assert family_of(plan) == family
    outcomes = run_mutants(plan, config_of(family), "cpu", chosen([], family), 2, lambda outcome: None)
    caught = {outcome.mutant.name: outcome.caught for outcome in outcomes}
    assert caught == {mutant.name: mutant.first for mutant in MUTANTS if mutant.family == family}


@pytest.mark.parametrize("converted", [False, True])
def test_the_unchanged_model_survives(converted: bool) -> None:
    """Otherwise a catalogue that rejects everything would prove nothing."""
    same = Mutant(
        "nothing changed", "model/text.py", "EXACT = lax", "EXACT = lax", ("merge",), "photo", "none", "qwen", converted
    )
    outcomes = run_mutants(plan_of("qwen"), config_of("qwen"), "cpu", [same], 1, print)
    assert [outcome.caught for outcome in outcomes] == [None]
