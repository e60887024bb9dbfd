"""The ``molmo2 ask`` command in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

from molmo2_iree.preprocess.payload import Payload
from molmo2_iree.runtime.generate import generate
from molmo2_iree.runtime.model import Model

ROOT = Path(__file__).resolve().parent.parent
MOLMO2 = str(Path(sys.executable).with_name("molmo2"))
QUESTION = "What is in the picture?"
PATIENCE = 120
"""Seconds after which a hanging command is a failure."""

Answered = subprocess.CompletedProcess[str]


def ask(*arguments: str | bytes | Path, folder: Path = ROOT, **environment: str) -> Answered:
    """Run the command; whatever happens, it shows no traceback."""
    done = subprocess.run(
        [MOLMO2, "ask", *arguments],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    output, errors = done.stdout.decode("utf-8", "strict"), done.stderr.decode("utf-8", "strict")
    assert "Traceback" not in errors
    return subprocess.CompletedProcess(done.args, done.returncode, output, errors)


def answered(*arguments: str | Path, folder: Path = ROOT) -> str:
    done = ask(*arguments, folder=folder)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def refused(code: int, *arguments: str | bytes | Path, folder: Path = ROOT) -> str:
    """The message of a refusal: one line on standard error, nothing on standard output."""
    done = ask(*arguments, folder=folder)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert done.stderr.startswith("molmo2: ")
    assert done.stderr.count("\n") == 1
    assert ", expected " in done.stderr
    assert " Fix: " in done.stderr
    return done.stderr


def spoken(model: Model, payload: Payload, count: int = 64) -> str:
    """What the Python interface answers."""
    return model.processor.tokenizer.decode(list(generate(model, payload, count))) + "\n"
