"""The whole line in workspaces of their own: built twice, broken, repaired, built in another folder."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from workspace import NOTHING, ONE_OF_EACH, Workspace

from molmo2_iree.build.workflow import RUNNING, hold

TOLERANCES = "config/tolerances.yaml"
PACKAGE = "src/molmo2_iree"
FRESH = ("connector-c9", "merge-s768")
"""Programs that a second checkout compiles anew."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """One program of each stage, built whole; compiled modules come from the checkout where it has them."""
    workspace = Workspace.copied(tmp_path_factory.mktemp("built") / "checkout")
    workspace.configure(ONE_OF_EACH)
    workspace.share_modules()
    workspace.build("all")
    return workspace


def state(workspace: Workspace) -> dict[Path, tuple[int, str]]:
    """Time and content of every artifact."""
    artifacts = [path for path in workspace.files("**/*") if (workspace.folder / path).is_file()]
    return {path: ((workspace.folder / path).stat().st_mtime_ns, sha256(workspace.folder / path)) for path in artifacts}


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_everything_is_there(built: Workspace) -> None:
    manifest = json.loads((built.folder / built.plan("bundle_folder('cpu')") / "manifest.json").read_bytes())
    assert len(manifest["modules"]) == 6
    assert len(built.files("*/*/records/*/*/*.verdict.json")) == 2
    assert built.files("**/.*.tmp") == []
    assert built.files("*/logs/**/bundle.log")


def test_the_second_build_does_nothing(built: Workspace) -> None:
    before = state(built)
    assert NOTHING in built.build("all")
    assert state(built) == before


def test_a_file_lost_from_a_bundle_comes_back(built: Workspace) -> None:
    folder = built.folder / built.plan("bundle_folder('cpu')")
    before = {path: sha256(path) for path in folder.rglob("*") if path.is_file() and path.name[0] != "."}
    lost = [folder / "modules/merge-s768.vmfb", folder / "weights/text.irpa", folder / "processor/config.json"]
    for path in lost:
        path.unlink()
    built.build("bundles")
    assert {path: sha256(path) for path in before} == before
    assert NOTHING in built.build("bundles")


def test_a_second_run_is_refused_while_one_builds(built: Workspace, tmp_path: Path) -> None:
    workspace = Workspace.copied(tmp_path / "checkout")
    with hold(workspace.folder / RUNNING):
        done = workspace.snakemake("programs")
        assert done.returncode != 0
        assert "another snakemake building in this folder" in done.stdout
        assert workspace.jobs("programs"), "a dry run may look"
    assert workspace.files("*/programs/*.mlir") == []


def test_a_remark_in_the_model_compiles_nothing(built: Workspace, tmp_path: Path) -> None:
    workspace = built.clone(tmp_path / "checkout")
    names = ("connector-c9", "decode-b4x1024")
    before = {name: sha256(workspace.folder / module(workspace, name)) for name in names}
    old = workspace.plan("identity")
    workspace.append(f"{PACKAGE}/model/layers.py", "# a remark\n")
    assert workspace.plan("identity") != old
    paths = {name: module(workspace, name) for name in names}
    assert workspace.jobs(*paths.values()) == {"trace": 2, "compile": 2}
    workspace.build(*paths.values())
    assert {name: sha256(workspace.folder / path) for name, path in paths.items()} == before
    for log in workspace.files(f"{workspace.plan('identity')}/logs/cpu-*/*.log"):
        assert (workspace.folder / log).read_text().startswith("found ")

    stale = workspace.molmo2("trace", "merge-s768", "--output", f"artifacts/{old}/programs/merge-s768.mlir")
    assert stale.returncode == 7, "a step planned before an edit would write new code under an old name"
    assert "planned before an edit" in stale.stdout


def module(workspace: Workspace, name: str) -> str:
    return workspace.plan(f"module_path('cpu', plan.program('{name}'))")


def test_another_checkout_writes_the_same_bytes(built: Workspace, tmp_path: Path) -> None:
    other = Workspace.copied(tmp_path / "another" / "deeper" / "checkout", built.folder)
    shutil.copytree(built.folder / "artifacts/cache", other.folder / "artifacts/cache")
    for name in FRESH:
        for path in cached(built, name):
            (other.folder / path).unlink()
    other.build("bundles")
    compiled = [path for path in other.files("*/logs/cpu-*/*.log") if "compiled" in (other.folder / path).read_text()]
    assert sorted(path.stem for path in compiled) == list(FRESH)

    kinds = ("*/programs/*.mlir", "*/cpu-*/*.vmfb", "*/cpu-*/bundle-*/**/*.*", "weights/*/*", "cache/modules/*")
    for kind in kinds:
        ours = {path for path in built.files(kind) if (built.folder / path).is_file() and path.name[0] != "."}
        theirs = {path for path in other.files(kind) if (other.folder / path).is_file()}
        common = ours & theirs
        assert theirs <= ours
        assert common
        assert {path: sha256(built.folder / path) for path in common} == {
            path: sha256(other.folder / path) for path in common
        }


def cached(workspace: Workspace, name: str) -> list[Path]:
    """The cache's files with the content of a module."""
    content = sha256(workspace.folder / module(workspace, name))
    found = [path for path in workspace.files("cache/modules/*.vmfb") if sha256(workspace.folder / path) == content]
    assert len(found) == 1
    return [found[0], found[0].with_suffix(".sha256")]


def test_a_limit_that_is_not_met_fails_the_build_and_leaves_the_record_and_the_page(
    built: Workspace, tmp_path: Path
) -> None:
    workspace = built.clone(tmp_path / "checkout")
    key = "tolerances/float32/vision.features/atol"
    limits = (workspace.folder / TOLERANCES).read_text()
    workspace.configure({key: 1e-12}, TOLERANCES)
    done = workspace.snakemake("all")
    assert done.returncode != 0
    assert "gate specification-photo on cpu, first divergent stage vision.features" in done.stdout
    assert workspace.files("*/*/records/*/specification-photo.json")
    page, junit, said = (workspace.folder / path for path in reports(workspace))
    assert "<title>Gates of cpu: failed</title>" in page.read_text(encoding="utf-8")
    assert '<failure message="at [' in junit.read_text(encoding="utf-8")
    assert len(said.read_text(encoding="utf-8").splitlines()) == 3
    assert done.stdout.rpartition("Exiting because a job execution failed")[2].find(said.read_text("utf-8")) >= 0
    assert "first divergent stage" in workspace.snakemake("all", "-q", "all").stdout

    (workspace.folder / TOLERANCES).write_text(limits)
    assert NOTHING in workspace.build("all")


def reports(workspace: Workspace) -> list[Path]:
    """The gate page, the JUnit file and the three lines of the plan's tolerances."""
    return [
        Path(workspace.plan("report_folder('cpu')")) / name for name in ("gates.html", "gates.xml", "divergence.txt")
    ]


def test_snakemake_s_own_report_has_the_page(built: Workspace) -> None:
    built.build("all", "--report", "report.html")
    assert "gates.html" in (built.folder / "report.html").read_text(encoding="utf-8")


def test_a_wrong_model_fails_at_its_stage_and_passes_when_repaired(built: Workspace, tmp_path: Path) -> None:
    workspace = built.clone(tmp_path / "checkout")
    source, right = f"{PACKAGE}/model/vision.py", "for i in v.layers]"
    workspace.replace(source, right, "for i in v.layers[::-1]]")
    done = workspace.snakemake("all")
    assert done.returncode != 0
    assert "gate specification-photo on cpu, first divergent stage vision.features" in done.stdout
    identity = workspace.plan("identity")
    assert workspace.files(f"{identity}/*/records/*/specification-photo.json")
    assert not workspace.files(f"{identity}/*/records/**/specification-photo.verdict.json")

    workspace.replace(source, "for i in v.layers[::-1]]", right)
    assert NOTHING in workspace.build("all")


@pytest.mark.parametrize(
    ("tool", "verb"),
    [
        ("jax", ["trace", "merge-s768", "--output", "x.mlir"]),
        ("iree", ["compile", "merge-s768.mlir", "--target", "cpu"]),
    ],
)
def test_other_tools_than_the_pinned_ones_are_refused(
    built: Workspace, tmp_path: Path, tool: str, verb: list[str]
) -> None:
    workspace = Workspace.copied(tmp_path / "checkout")
    workspace.configure(ONE_OF_EACH)
    shutil.copy(next(built.folder.glob("artifacts/*/programs/merge-s768.mlir")), workspace.folder)
    workspace.configure({f"toolchain.{tool}": "0.0.1"}, "config/targets.yaml")
    done = workspace.molmo2(*verb, *(["--output", "x.vmfb"] if tool == "iree" else []))
    assert done.returncode == 7
    assert f"toolchain.{tool}: got" in done.stdout
    assert "expected 0.0.1" in done.stdout
    assert not list(workspace.folder.glob("x.*"))
