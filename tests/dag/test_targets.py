"""What can be asked for by name, from nothing; without a network; and what is refused before any job starts."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from workspace import ROOT, TWO_TARGETS, Workspace, job_table

FROM_NOTHING = {
    "cpu": {
        "checkpoint": 1,
        "convert": 1,
        "trace": 18,
        "compile": 18,
        "bundle_cpu": 1,
        "reference_native": 1,
        "reference_specification": 1,
        "measure_cpu": 4,
        "report_cpu": 1,
        "judge_cpu": 4,
    },
    "cpu-arm64": {"checkpoint": 1, "convert": 1, "trace": 14, "compile": 14, "bundle_cpu_arm64": 1},
    "bundles": {
        "checkpoint": 1,
        "convert": 1,
        "trace": 14,
        "compile": 28,
        "bundle_cpu": 1,
        "bundle_cpu_arm64": 1,
    },
    "programs": {"trace": 18},
}
FROM_NOTHING["gates"] = FROM_NOTHING["cpu"]

NO_NETWORK = """\
import socket


def refuse(*arguments, **options):
    raise OSError("this test has no network")


socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = socket.create_connection = refuse
"""


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """The small configuration, nothing built. No test edits it."""
    workspace = Workspace.copied(tmp_path_factory.mktemp("fresh") / "checkout")
    workspace.configure(TWO_TARGETS)
    return workspace


@pytest.mark.parametrize("target", FROM_NOTHING)
def test_a_target_by_name(fresh: Workspace, target: str) -> None:
    assert fresh.jobs(target) == FROM_NOTHING[target]


def test_the_ci_job_of_the_readme_asks_for_what_there_is(fresh: Workspace) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    job = yaml.safe_load(text.partition("```yaml\n")[2].partition("```")[0])
    commands = [step["run"] for step in job["jobs"]["cpu"]["steps"] if "run" in step]
    (gates,) = (command for command in commands if command.startswith("snakemake"))
    (report,) = (command for command in commands if command.startswith("molmo2"))
    planned = fresh.run("bash", "-c", f"{gates} -n -q rules")
    assert job_table(planned.stdout) == {**FROM_NOTHING["gates"], "gates": 1}, planned.stdout
    done = fresh.run("bash", "-c", report)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("not measured: run snakemake gates") == 5, "four rows and the first divergence"
    assert {path.name for path in (fresh.folder / "gates").iterdir()} == {"gates.html", "gates.xml", "divergence.txt"}


def test_the_names_are_listed(fresh: Workspace) -> None:
    listed = fresh.build("--list-target-rules").split()
    assert {"all", "bundles", "gates", "programs", "cpu", "cpu-arm64"} <= set(listed)


def test_a_file_by_name(fresh: Workspace) -> None:
    path = fresh.plan("module_path('cpu', plan.program('prefill-s256'))")
    assert fresh.jobs(path) == {"trace": 1, "compile": 1}


def test_a_file_that_no_rule_makes(fresh: Workspace) -> None:
    done = fresh.snakemake("artifacts/records/native-text.json", "-n")
    assert done.returncode != 0
    assert "MissingRuleException" in done.stdout


@pytest.mark.parametrize("lock", ["embedded", "molmo2-4b"])
def test_planning_needs_no_network(fresh: Workspace, tmp_path: Path, lock: str) -> None:
    workspace = fresh.clone(tmp_path / "checkout")
    workspace.append("src/sitecustomize.py", NO_NETWORK)
    assert workspace.python("import socket; print(socket.getaddrinfo.__name__)") == "refuse"
    workspace.configure({"checkpoint": f"config/locks/{lock}.yaml"})
    expected = FROM_NOTHING["cpu"] | FROM_NOTHING["bundles"] | {"trace": 18, "compile": 32}
    if lock != "embedded":
        del expected["checkpoint"]
        expected["fetch"] = 12
    assert workspace.jobs() == expected


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown key": ({"portt": 8000}, "configuration, portt: got an unknown key"),
    "wrong type": ({"cache.slots": "four"}, "configuration, cache.slots: got 'four', expected"),
    "bucket of 0": ({"buckets.tokens": [0, 768]}, "configuration, buckets.tokens.0: got 0, expected"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_wrong_configuration_stops_before_any_job(fresh: Workspace, tmp_path: Path, case: str) -> None:
    edits, message = REFUSALS[case]
    workspace = fresh.clone(tmp_path / "checkout")
    workspace.configure(edits)
    done = workspace.snakemake("all")
    assert done.returncode != 0
    assert message in done.stdout
    assert "config/README.md" in done.stdout
    assert "Job stats" not in done.stdout
