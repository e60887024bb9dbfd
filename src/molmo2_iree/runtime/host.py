"""What this machine can execute, checked before a module is loaded: an unknown instruction kills the process."""

import platform
from pathlib import Path

from molmo2_iree.errors import BundleError

LEVELS = {
    "x86-64-v3": frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "abm"}),
    "x86-64-v4": frozenset({"avx2", "bmi2", "fma", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
}
"""Instruction sets of a named level, in the words of /proc/cpuinfo."""

_MACHINES = {"x86_64": {"x86_64", "amd64"}, "aarch64": {"aarch64", "arm64"}}


def check_host(triple: str, cpu: str, machine: str | None = None, flags: frozenset[str] | None = None) -> None:
    """Refuse modules of another instruction set. ``machine`` and ``flags`` default to this machine's own.

    The level is checked where the system lists its instruction sets (Linux on x86).
    """
    machine = (machine or platform.machine()).lower()
    wanted = triple.partition("-")[0]
    if machine not in _MACHINES.get(wanted, {wanted}):
        raise BundleError(
            "target.triple",
            got=f"a bundle for {triple}",
            expected=f"one for {machine}",
            fix=f"build a target for {machine}",
        )
    flags = _cpu_flags() if flags is None else flags
    missing = sorted(LEVELS.get(cpu, frozenset()) - flags) if flags else []
    if missing:
        raise BundleError(
            "target.cpu",
            got=f"a machine without {', '.join(missing)}",
            expected=f"one that has {cpu}",
            fix="build a target for a lower level",
        )


def _cpu_flags() -> frozenset[str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return frozenset()
    line = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return frozenset(line.partition(":")[2].split())
