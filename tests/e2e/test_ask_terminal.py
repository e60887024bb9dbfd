"""``molmo2 ask`` among pipes, terminals, full disks and Ctrl-C: it ends quietly and shows no traceback."""

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from asking import MOLMO2, PATIENCE, QUESTION, ROOT, ask, spoken
from runtime_requests import CAT, pictured
from runtime_requests import text as prompt

from molmo2_iree import cli
from molmo2_iree.commands.ask import CONTROL
from molmo2_iree.runtime.model import Model


def started(*arguments: str) -> subprocess.Popen[bytes]:
    """A long answer under way: its first byte is read."""
    process = subprocess.Popen(
        [MOLMO2, "ask", "Tell me everything.", "--max-tokens", "900", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    )
    assert process.stdout is not None
    assert process.stdout.read(1)
    assert process.poll() is None, "the answer came in one piece"
    return process


def test_ctrl_c_ends_quietly_at_any_moment() -> None:
    for delay in (0, 0.001, 0.003, 0.01, 0.03):
        process = started()
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
        assert (process.returncode, errors) == (130, b"")


def test_ctrl_c_while_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "application", interrupted)
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 130


def test_a_reader_that_leaves() -> None:
    process = started()
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.wait(PATIENCE) == 1
    assert process.stderr.read() == b""
    shell = subprocess.run(
        ["bash", "-c", 'set -o pipefail; "$0" ask "Tell me everything." --max-tokens 900 | head -c1', MOLMO2],
        cwd=ROOT,
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (len(shell.stdout), shell.stderr) == (1, b"")


def test_a_full_disk() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [MOLMO2, "ask", "Hi"], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, timeout=PATIENCE, check=False
        )
    assert (done.returncode, done.stderr) == (1, b"molmo2: [Errno 28] No space left on device\n")


def test_a_terminal_without_utf_8(model: Model) -> None:
    done = ask("Hi", PYTHONIOENCODING="ascii", LC_ALL="C")
    assert done.returncode == 0
    assert done.stdout == spoken(model, prompt(model, "Hi")).encode("ascii", "replace").decode()


def on_terminal(command: Sequence[str]) -> str:
    """What a command writes to a terminal."""
    leader, follower = pty.openpty()
    with subprocess.Popen(command, cwd=ROOT, stdout=follower, stderr=follower) as process:
        os.close(follower)
        content = b""
        try:
            while chunk := os.read(leader, 4096):
                content += chunk
        except OSError:
            pass  # the last writer has closed it
        os.close(leader)
    assert process.returncode == 0
    return content.decode().replace("\r\n", "\n")


def test_control_characters_stay_out_of_a_terminal() -> None:
    text = "".join(["a", *map(chr, range(32)), *map(chr, range(127, 160)), "b\n"])
    command = [sys.executable, "-c", f"from molmo2_iree.commands.ask import say; say({text!r})"]
    shown = on_terminal(command)
    assert shown == "a" + "\ufffd" * 9 + "\t\n" + "\ufffd" * 21 + "\ufffd" * 33 + "b\n"
    piped = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    assert piped == text


def test_an_answer_on_a_terminal(model: Model) -> None:
    shown = on_terminal([MOLMO2, "ask", "--image", str(CAT), QUESTION])
    wanted = spoken(model, pictured(model, [CAT], QUESTION))
    assert shown == CONTROL.sub("\ufffd", wanted)
