"""``molmo2 answer``: the same answers as ``molmo2 ask`` gives, in the file's order; refusals name the line."""

import json
import subprocess
from pathlib import Path

import pytest
from asking import QUESTION, spoken
from runtime_requests import CAT, pictured, text

from molmo2_iree.runtime.model import Model


def answer(requests: Path, *options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["molmo2", "answer", str(requests), *map(str, options)], capture_output=True, text=True, check=False
    )


def test_every_question_in_order(model: Model, tmp_path: Path) -> None:
    asked = [
        {"question": QUESTION, "images": [str(CAT.resolve())], "kind": "mine"},
        {"question": "Why is the sky blue?"},
        {"question": QUESTION, "images": ["cat.jpg", "cat.jpg"]},
    ]
    (tmp_path / "cat.jpg").write_bytes(CAT.read_bytes())
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(line) + "\n\n" for line in asked))
    done = answer(tmp_path / "q.jsonl", "--output", tmp_path / "a.jsonl", "--max-tokens", 6)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line)["answer"] + "\n" for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    payloads = [
        pictured(model, [CAT], QUESTION),
        text(model, "Why is the sky blue?"),
        pictured(model, [CAT, CAT], QUESTION),
    ]
    assert answers == [spoken(model, payload, 6) for payload in payloads]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2, the line: got '{'"),
        ("{}", "line 2, question: got {}"),
        ('{"question": 3}', "line 2, question: got 3"),
        ('{"question": "a", "images": "a.png"}', "line 2, images: got 'a.png'"),
    ],
)
def test_a_line_that_is_no_request(line: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text('{"question": "a"}\n' + line)
    done = answer(tmp_path / "q.jsonl", "--output", tmp_path / "a.jsonl")
    assert (done.returncode, said in done.stderr) == (10, True), done.stderr
    assert not (tmp_path / "a.jsonl").exists()
