"""The compiler's flags of a target. Imports nothing heavy: they are part of a target's tag, known while planning."""

from molmo2_iree.config import Target

COMMON_FLAGS = (
    "--iree-input-type=stablehlo",
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-opt-level=O2",
)


def target_flags(target: Target) -> list[str]:
    """Every flag a target's modules are compiled with."""
    level = [f"--iree-llvmcpu-target-triple={target.triple}", f"--iree-llvmcpu-target-cpu={target.cpu}"]
    return [*COMMON_FLAGS, *level, *target.flags]
