"""Held-out pictures and questions as files, answers by transformers, and the judging of anybody's answers.

``python -m training.evaluate --write FOLDER`` draws them, ``--answers FILE`` or ``--native CHECKPOINT`` judges.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table

from training.batches import pick_tiling, scene_for
from training.questions import NO_PICTURE, SINGLE, Ask, compare, judge
from training.shape import VARIANT
from training.world import Scene, draw_scene

KINDS = (*SINGLE, "absent", "compare", "none")

BARS = {
    "colour-single": 0.95,
    "shape-single": 0.95,
    "count": 0.85,
    "point": 0.85,
    "digit": 0.90,
    "compare": 0.85,
}
"""Least share of right answers; the other kinds are only stated."""

ABSENT = ("colour", "shape", "point", "digit")
"""Kinds of question that may turn out to ask for what is not there."""


def held_out(kind: str, seed: int, number: int) -> tuple[Ask, list[Scene]]:
    """The question of a kind with this number, and its own scenes."""
    generator = np.random.default_rng((seed, KINDS.index(kind), number))
    while True:
        scenes = [scene_for(generator, VARIANT, pick_tiling(generator)) for _ in range(2)]
        if kind == "compare":
            ask = compare(generator, *scenes)
        else:
            asked = kind
            if kind in ("absent", "none"):
                choices = ABSENT if kind == "absent" else tuple(SINGLE)
                asked, scenes = choices[generator.integers(len(choices))], scenes[:1]
            ask, scenes = SINGLE[asked][0](generator, scenes[0]), scenes[:1]
        if ask and kind == "none":
            return Ask("none", ask.question, NO_PICTURE), []
        if ask and ask.kind == kind:
            return ask, scenes


def write(folder: Path, seed: int, per_kind: int) -> Path:
    """Pictures as PNG files and ``requests.jsonl``, whose picture paths are relative to ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for kind in KINDS:
        for number in range(per_kind):
            ask, scenes = held_out(kind, seed, number)
            names = [f"{kind}-{number:04}-{k + 1}.png" for k in range(len(scenes))]
            for name, scene in zip(names, scenes, strict=True):
                Image.fromarray(draw_scene(scene)).save(folder / name)
            data = {"images": names, "question": ask.question, "kind": kind, "answer": ask.answer, "reach": ask.reach}
            if ask.point is not None:
                data["points"] = [list(ask.point)]
            lines.append(json.dumps(data))
    path = folder / "requests.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a JSON Lines file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def as_ask(request: dict[str, Any]) -> Ask:
    """The question that a line of ``requests.jsonl`` stands for."""
    point = tuple(request["points"][0]) if "points" in request else None
    return Ask(request["kind"], request["question"], request["answer"], point, request["reach"])


def tally(requests: Sequence[dict[str, Any]], answers: Sequence[str]) -> dict[str, tuple[int, int]]:
    """(right, asked) by kind."""
    if len(requests) != len(answers):
        raise ValueError(f"{len(answers)} answers to {len(requests)} requests")
    counts: dict[str, list[bool]] = defaultdict(list)
    for request, answer in zip(requests, answers, strict=True):
        counts[request["kind"]].append(judge(as_ask(request), answer))
    return {kind: (sum(right), len(right)) for kind, right in counts.items()}


def misses(requests: Sequence[dict[str, Any]], answers: Sequence[str]) -> Iterator[str]:
    """A line for every wrong answer."""
    for request, answer in zip(requests, answers, strict=True):
        if not judge(as_ask(request), answer):
            pictures = " ".join(request["images"])
            yield f"{pictures}: {request['question']} {answer} (right: {request['answer']})"


def table(counts: dict[str, tuple[int, int]]) -> Table:
    """Right answers by kind, with the bar."""
    shown = Table("kind", "right", "of", "share", "bar")
    for kind, (right, asked) in counts.items():
        bar = BARS.get(kind)
        word = "" if bar is None else f"{bar:.0%} {'reached' if right >= bar * asked else 'MISSED'}"
        shown.add_row(kind, str(right), str(asked), f"{right / asked:.1%}", word)
    return shown


def main() -> int:
    """Command line; exit code 1 when a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m training.evaluate", description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="draw pictures and requests.jsonl into FOLDER")
    parser.add_argument("--requests", type=Path, metavar="FILE", help="requests.jsonl to judge answers to")
    parser.add_argument("--answers", type=Path, metavar="FILE", help='JSON Lines of {"answer": text} in the same order')
    parser.add_argument("--native", type=Path, metavar="CHECKPOINT", help="answer with transformers, greedily")
    parser.add_argument("--seed", type=int, default=1_000_003, help="seed of the pictures, another than training's")
    parser.add_argument("--per-kind", type=int, default=200, help="questions of each kind")
    parser.add_argument("--misses", action="store_true", help="list the wrong answers")
    options = parser.parse_args()
    path = write(options.write, options.seed, options.per_kind) if options.write else options.requests
    if not isinstance(path, Path):
        parser.error("give --write FOLDER or --requests FILE")
    requests = read(path)
    if options.native is not None:
        from training.native import answer_all

        answers = answer_all(options.native, requests, path.parent)
    elif options.answers is not None:
        answers = [line["answer"] for line in read(options.answers)]
    else:
        print(path)
        return 0
    counts = tally(requests, answers)
    Console().print(table(counts))
    if options.misses:
        print("\n".join(misses(requests, answers)))
    return int(any(counts[kind][0] < bar * counts[kind][1] for kind, bar in BARS.items() if kind in counts))


if __name__ == "__main__":
    raise SystemExit(main())
