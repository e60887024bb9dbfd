"""A copy of the workflow and the package in a folder of its own, to edit, plan and build there."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
PARTS = ("Snakefile", "rules", "config", "profiles", "src/molmo2_iree")
NOTHING = "Nothing to be done"
PATIENCE = 300
"""Seconds after which a hanging command is a failure."""

TWO_TARGETS: dict[str, Any] = {
    "buckets.crops": [5, 9],
    "buckets.tokens": [256, 768],
    "buckets.extend": [16],
    "buckets.slots": [1, 4],
    "buckets.context": [256, 1024],
    "targets": ["cpu", "cpu-arm64"],
    "gates.cases": ["text", "photo"],
    "gates.references": ["specification", "native"],
}
"""14 programs and 4 diagnostic ones, two targets of which cpu has gates, four gates."""

ONE_OF_EACH: dict[str, Any] = {
    "buckets.crops": [9],
    "buckets.tokens": [768],
    "buckets.extend": [64],
    "buckets.slots": [4],
    "buckets.context": [1024],
    "targets": ["cpu"],
    "gates.cases": ["text", "photo"],
    "gates.references": ["specification"],
}
"""6 programs and 4 diagnostic ones, all of which config/family-qwen.yaml compiles too; two gates."""

Command = subprocess.CompletedProcess[str]


class Workspace:
    """``snakemake`` and ``molmo2`` run in the folder, with the folder's own source."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = os.environ | {
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(folder / "src"),
        }

    @classmethod
    def copied(cls, folder: Path, origin: Path = ROOT) -> "Workspace":
        """A fresh copy of the sources of the checkout, or of another workspace; nothing built.

        From the checkout the default configuration is the random miniature's, which needs no file but its lock.
        """
        for part in PARTS:
            source = origin / part
            if source.is_dir():
                shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                folder.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, folder / part)
        if origin == ROOT:
            shutil.copy(folder / "config/family-qwen.yaml", folder / "config/default.yaml")
        return cls(folder)

    def clone(self, folder: Path) -> "Workspace":
        """Another workspace with everything of this one, times included."""
        shutil.copytree(self.folder, folder, symlinks=True)
        return Workspace(folder)

    # --- edits -----------------------------------------------------------------------------------------------------

    def configure(self, edits: dict[str, Any], file: str = "config/default.yaml") -> None:
        """Set keys of a YAML file, dotted, or with slashes where a key has a dot: {"buckets.tokens": [256]}."""
        path = self.folder / file
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        for dotted, value in edits.items():
            *parents, key = dotted.split("/") if "/" in dotted else dotted.split(".")
            inner = content
            for parent in parents:
                inner = inner[parent]
            inner[key] = value
        path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")

    def replace(self, file: str, old: str, new: str) -> None:
        """Replace the one occurrence of ``old``."""
        path = self.folder / file
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times in {file}"
        path.write_text(text.replace(old, new), encoding="utf-8")

    def append(self, file: str, text: str) -> None:
        """Append to a file, made if absent."""
        with (self.folder / file).open("a", encoding="utf-8") as opened:
            opened.write(text)

    # --- commands --------------------------------------------------------------------------------------------------

    def run(self, *command: str) -> Command:
        """Run a command here; standard output and error together."""
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def snakemake(self, *arguments: str) -> Command:
        """Run snakemake here."""
        return self.run("snakemake", *arguments)

    def molmo2(self, *arguments: str) -> Command:
        """Run a verb here."""
        return self.run("molmo2", *arguments)

    def build(self, *arguments: str) -> str:
        """Run snakemake, which must succeed; its output."""
        done = self.snakemake(*arguments)
        assert done.returncode == 0, done.stdout[-4000:]
        return done.stdout

    def jobs(self, *targets: str) -> dict[str, int]:
        """Jobs by rule that a dry run plans, target rules aside; empty if there is nothing to be done."""
        planned = job_table(self.build(*targets, "-n", "-q", "rules"))
        return {rule: count for rule, count in planned.items() if rule not in (targets or ("all",))}

    def python(self, code: str) -> str:
        """What a piece of Python prints with this workspace's package."""
        done = self.run(sys.executable, "-c", code)
        assert done.returncode == 0, done.stdout[-4000:]
        return done.stdout.strip()

    def plan(self, expression: str) -> str:
        """An expression about this workspace's plan: "module_path('cpu', plan.programs[0])"."""
        return self.python(
            "from pathlib import Path\n"
            "from molmo2_iree.build.plan import make_plan\n"
            "from molmo2_iree.config import read_config\n"
            f"plan = make_plan(read_config(Path('config/default.yaml')))\nprint(plan.{expression})"
        )

    def start(self, *command: str) -> "Started":
        """Start a command in a process group of its own."""
        return Started(
            subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        )

    # --- state -----------------------------------------------------------------------------------------------------

    def pretend_built(self) -> None:
        """Write a stand-in for every artifact, and the records Snakemake keeps: all it looks at is what exists."""
        listed = self.build("all", "--summary")
        for line in listed.splitlines():
            path = self.folder / line.partition("\t")[0]
            if line.startswith("artifacts/") and not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(line, encoding="utf-8")
        self.build("all", "--touch", "--forceall", "-q", "all")

    def share_modules(self) -> None:
        """Start with the modules that the checkout has compiled, if any: they are keyed by their content."""
        cache = ROOT / "artifacts/cache/modules"
        if cache.is_dir():
            wanted = shutil.ignore_patterns(".*")
            shutil.copytree(cache, self.folder / "artifacts/cache/modules", ignore=wanted)

    def files(self, pattern: str) -> list[Path]:
        """Files below the artifacts, relative to the workspace."""
        return sorted(path.relative_to(self.folder) for path in (self.folder / "artifacts").glob(pattern))


class Started:
    """A running command and everything it started."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def kill_when(self, seen: Callable[[], bool]) -> None:
        """Wait until ``seen``, then kill -9 the command and everything it started."""
        deadline = time.monotonic() + PATIENCE
        while not seen():
            assert self.process.poll() is None, f"it ended first, with {self.process.returncode}"
            assert time.monotonic() < deadline, "it never came that far"
            time.sleep(0.002)
        os.killpg(self.process.pid, signal.SIGKILL)
        assert self.process.wait() == -signal.SIGKILL

    def runs(self, name: str) -> bool:
        """Whether a program of this name runs among the processes of the group."""
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                head, _, rest = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")
            except OSError:
                continue
            if head.endswith(f"({name}") and int(rest.split()[2]) == self.process.pid:
                return True
        return False


def job_table(output: str) -> dict[str, int]:
    """The rows below ``Job stats`` without the total: {"trace": 24, "compile": 44, "all": 1}."""
    if NOTHING in output:
        return {}
    _head, found, rest = output.partition("Job stats:")
    assert found, output[-2000:]
    rows = re.findall(r"^([\w-]+) +(\d+)$", rest.partition("\n\n")[0], re.MULTILINE)
    return {rule: int(count) for rule, count in rows if rule != "total"}
