"""``molmo2 chat`` as its users start it: turns, commands, and Ctrl-C that ends the answer and not the program."""

import os
import pty
import re
import select
import signal
import subprocess
import time
from pathlib import Path

import pytest
from asking import MOLMO2, PATIENCE, ROOT

from molmo2_iree.commands.ask import CONTROL
from molmo2_iree.runtime.conversation import Conversation
from molmo2_iree.runtime.generate import generate
from molmo2_iree.runtime.model import Model

CAT = "examples/cat.jpg"


def chat(lines: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command fed with lines."""
    done = subprocess.run(
        [MOLMO2, "chat", *arguments], cwd=ROOT, input=lines.encode(), capture_output=True, timeout=PATIENCE, check=False
    )
    errors = done.stderr.decode("utf-8", "strict")
    assert "Traceback" not in errors
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode("utf-8", "strict"), errors)


def turn(model: Model, talk: Conversation, question: str, pictures: list[Path], tokens: int) -> str:
    """What the Python interface answers in the same conversation."""
    payload = talk.ask(question, pictures)
    ids = list(generate(model, payload, tokens))
    answer = model.processor.tokenizer.decode(ids)
    talk.answered(payload, question, pictures, ids, answer)
    return answer + "\n"


def test_a_conversation(model: Model) -> None:
    talk = Conversation(model)
    wanted = turn(model, talk, "What is it?", [Path(CAT)], 8) + turn(model, talk, "Why?", [], 8)
    done = chat("What is it?\nWhy?\n", "--image", CAT, "--max-tokens", "8")
    assert (done.returncode, done.stdout, done.stderr) == (0, wanted, "")


def test_commands(model: Model) -> None:
    first, second = Conversation(model), Conversation(model)
    wanted = turn(model, first, "What is it?", [Path(CAT)], 6) + turn(model, second, "/ is a slash", [], 6)
    done = chat(f"/image {CAT}\nWhat is it?\n/reset\n/help\n\n / is a slash\n/quit\nnever\n", "--max-tokens", "6")
    assert (done.returncode, done.stdout) == (0, wanted)
    assert "/image PATH" in done.stderr


def test_nothing_is_read_twice() -> None:
    done = chat("What is it, and what is it not?\nWhy?\nHow?\n", "--image", CAT, "--max-tokens", "8", "--timings")
    found = [tuple(map(int, line)) for line in re.findall(r"prompt (\d+) tokens, (\d+) of them", done.stderr)]
    assert len(found) == 3
    assert found[0][1] == 0
    assert all(reused == before + 7 for (_, reused), (before, _) in zip(found[1:], found, strict=False))


def test_refusals_are_told_and_the_conversation_goes_on() -> None:
    done = chat(f"/image nothing.png\n/image\n/dance\n/image {CAT}\nWhat is it?\n", "--max-tokens", "3")
    assert done.returncode == 0
    assert done.stdout.endswith("\n")
    assert len(done.stdout) > 1
    lines = done.stderr.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("molmo2: ") and " Fix: " in line for line in lines)
    assert "nothing.png: got no such file" in lines[0]
    assert "command: got /dance, expected one of /image /reset /help /quit" in lines[2]


def test_a_full_context_says_how_to_go_on() -> None:
    done = chat("~" * 1500 + "\nHi\n", "--max-tokens", "3")
    assert done.returncode == 0
    assert re.match(r"molmo2: conversation: got \d+ tokens, expected at most 1023. Fix: /reset", done.stderr)
    assert len(done.stdout) > 1


def test_options_are_checked_before_anything_is_asked() -> None:
    for option, value in (("--temperature", "nan"), ("--top-p", "0"), ("--image", "nothing.png")):
        done = chat("Hi\n", option, value)
        assert (done.returncode, done.stdout) == (10, "")
        assert done.stderr.startswith("molmo2: ")


def test_the_same_seed_gives_the_same_answers() -> None:
    warm = ("--temperature", "1.3", "--top-p", "0.9", "--max-tokens", "12")
    answers = [chat("Hi\nWhy?\n", *warm, "--seed", seed).stdout for seed in ("5", "5", "6")]
    assert answers[0] == answers[1] != answers[2]


class Terminal:
    """The command on a terminal."""

    def __init__(self, *arguments: str) -> None:
        self.leader, follower = pty.openpty()
        self.process = subprocess.Popen(
            [MOLMO2, "chat", *arguments], cwd=ROOT, stdin=follower, stdout=follower, stderr=follower,
            start_new_session=True,
        )  # fmt: skip
        os.close(follower)
        self.seen = ""

    def type(self, line: str) -> None:
        os.write(self.leader, line.encode())

    def wait(self, pattern: str) -> str:
        """Read until ``pattern`` shows; all that came up to there."""
        end = time.monotonic() + PATIENCE
        while not (found := re.search(pattern, self.seen)):
            assert time.monotonic() < end, self.seen
            if select.select([self.leader], [], [], 0.2)[0]:
                self.seen += os.read(self.leader, 65536).decode("utf-8", "replace")
        shown, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return shown

    def prompted(self) -> None:
        """Wait until it reads a line: between writing the prompt and reading, input() does not notice a signal."""
        self.wait(r"(^|\n)> $")
        time.sleep(0.1)

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def close(self) -> int:
        code = self.process.wait(PATIENCE)
        os.close(self.leader)
        return code


@pytest.mark.parametrize("delay", [0.0, 0.01, 0.05])
def test_ctrl_c_ends_the_answer_and_not_the_program(delay: float) -> None:
    terminal = Terminal("--max-tokens", "900", "--timings")
    terminal.prompted()
    terminal.type("Tell me everything.\n")
    terminal.wait(r"everything\.\r\n")
    time.sleep(delay)
    terminal.interrupt()
    terminal.prompted()
    terminal.interrupt()
    terminal.wait(r"\(Ctrl-D ends\)\r\n")
    terminal.prompted()
    terminal.type("And now?\n")
    terminal.wait("prompt .* tokens in ")
    terminal.prompted()
    terminal.type("\x04")
    assert terminal.close() == 0


def test_what_was_said_before_ctrl_c_is_remembered() -> None:
    terminal = Terminal("--max-tokens", "900", "--timings")
    terminal.prompted()
    terminal.type("Tell me everything.\n")
    terminal.wait(r"everything\.\r\n[^\r]+")
    terminal.interrupt()
    terminal.prompted()
    terminal.type("And now?\n")
    terminal.wait(r"And now\?")
    terminal.interrupt()
    terminal.prompted()
    terminal.type("/quit\n")
    assert terminal.close() == 0


def test_an_answer_on_a_terminal_has_no_control_characters(model: Model) -> None:
    terminal = Terminal("--max-tokens", "40", "--timings")
    terminal.prompted()
    terminal.type("Hi\n")
    shown = terminal.wait("prompt .* tokens in ").replace("\r\n", "\n").removeprefix("Hi\n")
    wanted = turn(model, Conversation(model), "Hi", [], 40)
    assert shown.startswith(CONTROL.sub("\ufffd", wanted))
    terminal.type("\x04")
    assert terminal.close() == 0
