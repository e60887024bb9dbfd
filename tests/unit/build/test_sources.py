"""Digests of source: every module that a step's bytes can come from is in its digest, found by following imports."""

import ast
from pathlib import Path

import pytest

from molmo2_iree.build import plan as plans
from molmo2_iree.identity import PACKAGE, source_digest

NAME = PACKAGE.name
NEUTRAL = {
    "errors.py",
    "files.py",
    "identity.py",
    "config.py",
    "lock.py",
    "build/plan.py",
    "build/sources.py",
    "build/flags.py",
}
"""Refusals, writing by rename, and what decides paths: these change no bytes under a path."""

IN_THE_IDENTITY = {*plans.TRACED_SOURCE}
IN_THE_BUNDLE = {*plans.BUNDLING_SOURCE, *plans.CONVERTING_SOURCE}
COMPARED = {"detect.py", "family.py", "released.py"}
"""Read an architecture from files; a runtime refuses another than the bundle states, so no number changes."""
REFERRED = {*plans.REFERENCE_SOURCE}
"""In the digest of the references, which names the records' folder."""
MEASURED = {*plans.MEASURING_SOURCE}
"""In the digest of the records, in whose folder the page is."""
ONLY_CHOOSES = {"stages.py"}
"""Which parameters a program reads; every parameter is converted."""

STEPS = {
    "convert": ("build/convert.py", plans.CONVERTING_SOURCE, ONLY_CHOOSES),
    "trace": ("build/trace.py", plans.TRACED_SOURCE, set()),
    "reference": ("parity/reference.py", plans.REFERENCE_SOURCE, set()),
    "measure": ("parity/measure.py", plans.MEASURING_SOURCE, IN_THE_IDENTITY | IN_THE_BUNDLE | COMPARED | REFERRED),
    "judge": ("parity/judge.py", plans.MEASURING_SOURCE, IN_THE_IDENTITY | IN_THE_BUNDLE | COMPARED | REFERRED),
    "report": (
        "parity/report.py",
        plans.REPORT_SOURCE,
        MEASURED | IN_THE_IDENTITY | IN_THE_BUNDLE | COMPARED | REFERRED,
    ),
}
"""First module, digested source, and modules that another digest of the same path covers."""


@pytest.mark.parametrize("step", STEPS)
def test_a_step_s_modules_are_in_its_digest(step: str) -> None:
    first, digested, elsewhere = STEPS[step]
    covered = modules_below({*digested, *elsewhere})
    assert reached(first) - covered - NEUTRAL == set()
    assert all((PACKAGE / name).exists() for name in digested), "a file of this list was renamed"


def modules_below(names: set[str]) -> set[str]:
    """Files, with folders replaced by the files in them."""
    paths = [
        file for name in names for file in ((PACKAGE / name).rglob("*.py") if "." not in name else [PACKAGE / name])
    ]
    return {path.relative_to(PACKAGE).as_posix() for path in paths}


def reached(first: str) -> set[str]:
    """Modules of this package that a module imports, directly or through others, inside functions too."""
    found, waiting = set(), [first]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            if name not in NEUTRAL:
                waiting += imported(PACKAGE / name)
    return {name for name in found if not name.endswith("__init__.py")}


def imported(path: Path) -> list[str]:
    files: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == NAME:
            module = Path(*str(node.module).split(".")[1:])
            candidates = [module.with_suffix(".py")] if module.parts else []
            candidates += [module / f"{alias.name}.py" for alias in node.names]
            files += [candidate.as_posix() for candidate in candidates if (PACKAGE / candidate).is_file()]
    return files


def test_a_digest_of_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("molmo2_iree.identity.PACKAGE", tmp_path)
    (tmp_path / "model" / "deep").mkdir(parents=True)
    (tmp_path / "model" / "a.py").write_text("1\n")
    first = source_digest(["model"])
    (tmp_path / "model" / "notes.txt").write_text("not source\n")
    (tmp_path / "model" / "__pycache__").mkdir()
    (tmp_path / "model" / "__pycache__" / "a.cpython-311.pyc").write_bytes(b"1")
    assert source_digest(["model"]) == first
    (tmp_path / "model" / "deep" / "b.py").write_text("2\n")
    second = source_digest(["model"])
    (tmp_path / "model" / "deep" / "b.py").rename(tmp_path / "model" / "deep" / "c.py")
    assert len({first, second, source_digest(["model"])}) == 3
