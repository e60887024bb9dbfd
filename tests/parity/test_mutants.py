"""Every wrong model of the catalogue is traced, compiled, run, and rejected at the stage the catalogue names."""

from pathlib import Path

import pytest

from molmo2_iree.build.plan import Plan
from molmo2_iree.errors import GateError
from molmo2_iree.parity.cases import CASES
from molmo2_iree.parity.mutants import MUTANTS, Mutant
from molmo2_iree.parity.mutate import chosen, mutated_package, run_mutants


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


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(GateError, match="no such mutant"):
        chosen(["exact GELU", "perfect GELU"])


def test_every_mutant_is_caught_where_the_catalogue_says(plan: Plan, bundle_folder: Path) -> None:
    outcomes = run_mutants(plan, Path("config/default.yaml"), "cpu", MUTANTS, 2, lambda outcome: None)
    caught = {outcome.mutant.name: outcome.caught for outcome in outcomes}
    assert caught == {mutant.name: mutant.first for mutant in MUTANTS}


def test_the_unchanged_model_survives(plan: Plan, bundle_folder: Path) -> None:
    """Otherwise a catalogue that rejects everything would prove nothing."""
    same = Mutant("nothing changed", "model/text.py", "EXACT = lax", "EXACT = lax", ("merge",), "photo", "none")
    assert [outcome.caught for outcome in run_mutants(plan, Path("config/default.yaml"), "cpu", [same], 1, print)] == [
        None
    ]
