"""What this machine can execute, checked before a module is loaded: an unknown instruction kills the process."""

import platform
import re
from collections.abc import Iterable
from pathlib import Path

from molmo2_iree.errors import BundleError

_V2 = frozenset({"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"})
_V3 = _V2 | {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"}
LEVELS = {
    "generic": frozenset[str](),
    "x86-64": frozenset[str](),
    "x86-64-v2": _V2,
    "x86-64-v3": _V3,
    "x86-64-v4": _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
}
"""Instruction sets of a named level, in the words of /proc/cpuinfo."""

_FEATURES = re.compile(r"target-cpu-features=(\S+)")
_OTHER_WORDS = {"lzcnt": "abm", "sse3": "pni", "pclmul": "pclmulqdq", "rdrnd": "rdrand", "sahf": "lahf_lm"}
"""Features that the compiler and /proc/cpuinfo name differently."""

_MACHINES = {"x86_64": {"x86_64", "amd64"}, "aarch64": {"aarch64", "arm64"}}


def check_host(
    triple: str,
    cpu: str,
    compiler_flags: Iterable[str] = (),
    machine: str | None = None,
    flags: frozenset[str] | None = None,
) -> None:
    """Refuse modules of another instruction set. ``machine`` and ``flags`` default to this machine's own.

    The level and further features are checked where the system lists its instruction sets (Linux on x86).
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
    if not flags:
        return
    if cpu not in LEVELS:
        raise BundleError(
            "target.cpu",
            got=f"a bundle for {cpu}, whose instruction sets are not known here",
            expected=f"one of {', '.join(LEVELS)}",
            fix="build a target for one of these levels",
        )
    missing = sorted((LEVELS[cpu] | _features(compiler_flags)) - flags)
    if missing:
        raise BundleError(
            "target.cpu",
            got=f"a machine without {', '.join(missing)}",
            expected=f"one that has {cpu} and the target's own features",
            fix="build a target for a lower level",
        )


def _features(compiler_flags: Iterable[str]) -> frozenset[str]:
    """Features a target adds: --iree-llvmcpu-target-cpu-features=+avx512f,-sse4.2 adds avx512f."""
    listed = [name for text in compiler_flags for found in _FEATURES.findall(text) for name in found.split(",")]
    added = [re.sub(r"[-.]", "_", name[1:]) for name in listed if name.startswith("+")]
    return frozenset(_OTHER_WORDS.get(name, name) for name in added)


def _cpu_flags() -> frozenset[str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return frozenset()
    line = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return frozenset(line.partition(":")[2].split())
