"""The catalogue of wrong models, in the order of the line; the gates must reject each at the stage it names."""

from molmo2_iree.parity.mutant import Mutant
from molmo2_iree.parity.mutants_families import FAMILY_MUTANTS
from molmo2_iree.parity.mutants_text import TEXT_MUTANTS
from molmo2_iree.parity.mutants_vision import VISION_MUTANTS

MUTANTS: tuple[Mutant, ...] = (*VISION_MUTANTS, *TEXT_MUTANTS, *FAMILY_MUTANTS)
