"""What a machine can execute is compared in words before a module is loaded."""

import pytest

from molmo2_iree.errors import BundleError
from molmo2_iree.runtime import host
from molmo2_iree.runtime.host import LEVELS, check_host

LINUX = "x86_64-unknown-linux-gnu"
ARM = "aarch64-unknown-linux-gnu"
V3, V4 = LEVELS["x86-64-v3"], LEVELS["x86-64-v4"]


@pytest.mark.parametrize(
    ("triple", "cpu", "machine", "flags"),
    [
        (LINUX, "x86-64-v3", "x86_64", V3 | {"sse2"}),
        (LINUX, "x86-64-v3", "AMD64", V4),
        (LINUX, "x86-64-v4", "x86_64", V4),
        (LINUX, "x86-64", "x86_64", frozenset({"sse2"})),
        (LINUX, "generic", "x86_64", frozenset({"sse2"})),
        (LINUX, "x86-64-v4", "x86_64", frozenset[str]()),
        (ARM, "neoverse-n1", "aarch64", frozenset[str]()),
        (ARM, "neoverse-n1", "arm64", frozenset[str]()),
        ("riscv64-unknown-linux-gnu", "generic", "riscv64", frozenset[str]()),
    ],
)
def test_fitting_machines(triple: str, cpu: str, machine: str, flags: frozenset[str]) -> None:
    check_host(triple, cpu, machine=machine, flags=flags)


@pytest.mark.parametrize(
    ("triple", "machine", "words"),
    [
        (ARM, "x86_64", "a bundle for aarch64-unknown-linux-gnu, expected one for x86_64"),
        (LINUX, "arm64", "a bundle for x86_64-unknown-linux-gnu, expected one for arm64"),
        ("", "x86_64", "a bundle for , expected one for x86_64"),
    ],
)
def test_another_instruction_set(triple: str, machine: str, words: str) -> None:
    with pytest.raises(BundleError, match=words) as refusal:
        check_host(triple, "generic", machine=machine, flags=V4)
    assert refusal.value.where == "target.triple"


@pytest.mark.parametrize(("cpu", "lost"), [("x86-64-v2", "ssse3"), ("x86-64-v3", "fma"), ("x86-64-v4", "avx512bw")])
def test_one_instruction_set_too_few(cpu: str, lost: str) -> None:
    with pytest.raises(BundleError, match=f"a machine without {lost}, expected one that has {cpu}") as refusal:
        check_host(LINUX, cpu, machine="x86_64", flags=LEVELS[cpu] - {lost})
    assert refusal.value.where == "target.cpu"


def test_a_level_that_is_not_known_is_not_tried() -> None:
    with pytest.raises(
        BundleError, match=r"znver5, whose instruction sets are not known here, expected one of generic"
    ):
        check_host(LINUX, "znver5", machine="x86_64", flags=V4)


def test_features_beyond_the_level() -> None:
    flags = ["--iree-llvmcpu-target-cpu-features=+avx512f,-sse4.2,+lzcnt,+amx-tile", "--iree-other=+x"]
    with pytest.raises(BundleError, match="a machine without amx_tile, avx512f, expected"):
        check_host(LINUX, "x86-64-v3", flags, machine="x86_64", flags=V3)
    check_host(LINUX, "x86-64-v3", flags, machine="x86_64", flags=V4 | {"amx_tile"})


def test_this_machine_lists_its_instruction_sets_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = host._cpu_flags()
    assert not listed or "sse2" in listed
    monkeypatch.setattr(host, "_cpu_flags", lambda: V3 - {"avx2"})
    with pytest.raises(BundleError, match="a machine without avx2"):
        check_host(LINUX, "x86-64-v3", machine="x86_64")
