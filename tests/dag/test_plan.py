"""What rebuilds when: dry runs in a workspace where everything is built, each after one edit.

The small configuration has 14 programs and 4 diagnostic ones, two targets of which cpu has gates, and four gates.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from workspace import TWO_TARGETS, Workspace

PROGRAMS, TAPS, GATES = 14, 4, 4
REPORTED = {"report_cpu": 1}
MEASURED = {"measure_cpu": GATES, **REPORTED, "judge_cpu": GATES}
BUNDLED = {"bundle_cpu": 1, "bundle_cpu_arm64": 1, **MEASURED}
COMPILED = {"compile": 2 * PROGRAMS + TAPS, **BUNDLED}
REPAIRED = {"bundle_cpu": 1, **MEASURED}
TRACED = {"trace": PROGRAMS + TAPS, **COMPILED}
REFERRED = {"reference_specification": 1, "reference_native": 1}
EVERYTHING = {"checkpoint": 1, "convert": 1, **TRACED, **REFERRED}

TARGETS, TOLERANCES = "config/targets.yaml", "config/tolerances.yaml"
REFERENCES = "config/references.yaml"
LOCK = "config/locks/embedded.yaml"
PACKAGE = "src/molmo2_iree"
COMMENT = "# a remark\n"

Edit = Callable[[Workspace], object]
Jobs = dict[str, int]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Everything of the small configuration built, as far as a plan can see."""
    workspace = Workspace.copied(tmp_path_factory.mktemp("built") / "checkout")
    workspace.configure(TWO_TARGETS)
    workspace.pretend_built()
    return workspace


def comment(file: str) -> Edit:
    return lambda w: w.append(f"{PACKAGE}/{file}", COMMENT)


def default(**edits: object) -> Edit:
    return lambda w: w.configure({key.replace("__", "."): value for key, value in edits.items()})


def setting(file: str, key: str, value: object) -> Edit:
    return lambda w: w.configure({key: value}, file)


def forget(w: Workspace) -> None:
    shutil.rmtree(w.folder / ".snakemake")


def scramble(w: Workspace) -> None:
    """Times as after a download: what was made last is oldest."""
    for age, path in enumerate(sorted(w.folder.rglob("*"), key=lambda path: path.stat().st_mtime_ns)):
        os.utime(path, (1e9 - age, 1e9 - age))


def touch(w: Workspace) -> None:
    for path in (w.folder / PACKAGE).rglob("*.py"):
        path.touch()


def add_target(w: Workspace) -> None:
    w.configure({"known_targets.old": {"triple": "x86_64-linux-gnu", "cpu": "x86-64-v2", "gates_on": "none"}}, TARGETS)
    w.configure({"targets": ["cpu", "cpu-arm64", "old"]})


def delete(pattern: str) -> Edit:
    def apply(w: Workspace) -> None:
        found = w.files(pattern)
        assert found, pattern
        for path in found:
            (w.folder / path).unlink()

    return apply


CASES: dict[str, tuple[Edit, Jobs]] = {
    # Nothing that bytes depend on.
    "nothing changed": (lambda w: None, {}),
    "snakemake's records lost": (forget, {}),
    "other times": (scramble, {}),
    "source touched": (touch, {}),
    "command line edited": (comment("cli.py"), {}),
    "a target dropped": (default(targets=["cpu"]), {}),
    "a target's definition that is not selected": (
        setting(TARGETS, "known_targets.other", {"triple": "t", "cpu": "c", "gates_on": "none"}),
        {},
    ),
    # Gates.
    "a tolerance": (
        setting(TOLERANCES, "tolerances/float32/vision.block/atol", 1.0),
        {**REPORTED, "judge_cpu": GATES},
    ),
    "a reason reworded": (
        setting(TOLERANCES, "tolerances/float32/vision.block/reason", "the same limit in other words"),
        REPORTED,
    ),
    "a gate dropped": (default(gates__cases=["text"]), REPORTED),
    "source of the page": (comment("parity/report_page.py"), REPORTED),
    "the page's template": (lambda w: w.append(f"{PACKAGE}/parity/report_page.html.jinja", "\n"), REPORTED),
    "the catalogue of wrong models": (comment("parity/mutants.py"), REPORTED),
    "a gate added": (
        default(gates__cases=["text", "photo", "two-pictures"]),
        {**REFERRED, "measure_cpu": 2, **REPORTED, "judge_cpu": 2},
    ),
    "greedy tokens": (default(gates__greedy_tokens=16), {**REFERRED, **MEASURED}),
    "a reference's pin": (
        setting(REFERENCES, "references/native/versions/torch", "2.14.0"),
        {**REFERRED, **MEASURED},
    ),
    "source of the comparison": (comment("parity/compare.py"), MEASURED),
    "source of the specification": (comment("parity/specification_text.py"), {**REFERRED, **MEASURED}),
    "source of the runtime": (comment("runtime/model.py"), MEASURED),
    "source of the engine": (comment("runtime/engine.py"), {}),
    "source of the preprocessing": (comment("preprocess/resize.py"), MEASURED),
    # Buckets and targets.
    "a prompt bucket added": (
        default(buckets__tokens=[256, 512, 768]),
        {"trace": 2, "compile": 4, **BUNDLED},
    ),
    "a prompt bucket dropped": (
        default(buckets__tokens=[768]),
        BUNDLED,
    ),
    "a context bucket added": (default(buckets__context=[256, 512, 1024]), {"trace": 3, "compile": 6, **BUNDLED}),
    "flags of the gated target": (
        setting(TARGETS, "known_targets.cpu.flags", ["--iree-llvmcpu-loop-unrolling"]),
        {"compile": PROGRAMS + TAPS, "bundle_cpu": 1, **MEASURED},
    ),
    "level of the other target": (
        setting(TARGETS, "known_targets.cpu-arm64.cpu", "neoverse-v1"),
        {"compile": PROGRAMS, "bundle_cpu_arm64": 1},
    ),
    "flags of every target": (lambda w: w.replace(f"{PACKAGE}/build/flags.py", "level=O2", "level=O3"), COMPILED),
    "a target added": (add_target, {"compile": PROGRAMS, "bundle_old": 1}),
    "source of the bundle": (comment("build/bundle.py"), BUNDLED),
    # The model and the checkpoint.
    "a remark in the model": (comment("model/layers.py"), TRACED),
    "a new file in the model": (lambda w: w.append(f"{PACKAGE}/model/new.py", COMMENT), TRACED),
    "the name table": (comment("model/parameters.py"), {"convert": 1, **TRACED}),
    "the converter": (comment("build/convert.py"), {"convert": 1, **TRACED}),
    "the cache": (default(cache__dtype="bfloat16"), TRACED),
    "the compiler's pin": (setting(TARGETS, "toolchain.iree", "3.14.0"), TRACED),
    "the weights' storage": (default(weights__storage="bfloat16"), {"convert": 1, **TRACED, **REFERRED}),
    "another revision": (setting(LOCK, "revision", "0" * 40), EVERYTHING),
    # The revision names a checkpoint's files, so they are not fetched again.
    "another digest under the same revision": (
        setting(LOCK, "files/tokenizer.json/sha256", "0" * 64),
        {"convert": 1, **TRACED, **REFERRED},
    ),
    # What is missing comes back, and no more than that.
    "a module lost from a bundle": (
        delete("*/cpu-[!a]*/bundle-*/modules/decode-b1x256.vmfb"),
        {"bundle_cpu": 1},
    ),
    "an archive lost from a bundle": (delete("*/cpu-arm64-*/bundle-*/weights/text.irpa"), {"bundle_cpu_arm64": 1}),
    "manifests lost": (delete("*/*/bundle-*/manifest.json"), BUNDLED),
    "a bundle and its modules lost": (
        delete("*/cpu-arm64-*/**/merge-s*.vmfb"),
        {"compile": 2, "bundle_cpu_arm64": 1},
    ),
    "a verdict lost": (delete("*/*/records/*/*/native-text.verdict.json"), {"judge_cpu": 1}),
    "a verdict and its record lost": (
        delete("*/*/records/**/native-text*.json"),
        {"measure_cpu": 1, **REPORTED, "judge_cpu": 1},
    ),
    "a page lost": (delete("*/*/records/*/*/report-*/gates.html"), REPORTED),
    "programs lost, their modules are there": (delete("*/programs/*.mlir"), {}),
    "archives lost, the bundles are there": (delete("weights/*/text.irpa"), {}),
}


WITHOUT_RECORDS = {
    f"{name}, snakemake's records lost": (lambda w, edit=CASES[name][0]: (forget(w), edit(w)), CASES[name][1])
    for name in ("flags of the gated target", "a tolerance", "greedy tokens", "the cache")
}
CASES |= WITHOUT_RECORDS


@pytest.fixture(scope="module")
def planned(
    request: pytest.FixtureRequest, built: Workspace, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Jobs]]]:
    """What the chosen cases plan. Dry runs start many at a time: each is a second of one core."""

    def plan(case: str) -> Jobs:
        workspace = built.clone(tmp_path_factory.mktemp("case") / "checkout")
        CASES[case][0](workspace)
        return workspace.jobs()

    chosen = {item.name for item in request.session.items}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield {case: pool.submit(plan, case) for case in CASES if f"{test_what_rebuilds.__name__}[{case}]" in chosen}


@pytest.mark.parametrize("case", CASES)
def test_what_rebuilds(planned: dict[str, Future[Jobs]], case: str) -> None:
    assert planned[case].result() == CASES[case][1]


def test_what_was_built_before_an_edit_is_found_again_after_it_is_undone(built: Workspace, tmp_path: Path) -> None:
    workspace = built.clone(tmp_path / "checkout")
    workspace.append(f"{PACKAGE}/model/layers.py", COMMENT)
    assert workspace.jobs() == TRACED
    workspace.replace(f"{PACKAGE}/model/layers.py", COMMENT, "")
    assert workspace.jobs() == {}
