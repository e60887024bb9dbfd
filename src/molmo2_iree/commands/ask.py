"""``molmo2 ask``: one question, any number of pictures, the answer streamed to the terminal."""

import io
import platform
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from molmo2_iree.commands.options import DEFAULT_CONFIG, ConfigFile
from molmo2_iree.errors import BundleError, RequestError
from molmo2_iree.runtime.interrupt import uninterrupted

if TYPE_CHECKING:
    from molmo2_iree.runtime.generate import Timings

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Characters that a terminal obeys instead of showing; a line feed and a tab are harmless."""


def ask(
    question: Annotated[str, typer.Argument(help="What to ask.")],
    image: Annotated[list[str] | None, typer.Option("--image", help="A picture; may be repeated.")] = None,
    bundle: Annotated[
        Path | None, typer.Option(help="A bundle's folder.", show_default="the one --config builds")
    ] = None,
    config: ConfigFile = DEFAULT_CONFIG,
    max_tokens: Annotated[int, typer.Option(help="Longest answer.")] = 64,
    draw: Annotated[
        Path | None, typer.Option(help="Write the pictures as PNG with the points that the answer names.")
    ] = None,
    timings: Annotated[bool, typer.Option("--timings", help="Print the time of each step afterwards.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Hash the weights even if they look unchanged.")] = False,
) -> None:
    """Answer a question about pictures, or without any.

    Example: molmo2 ask --image examples/shapes.png "Point to the red circle." --draw pointed.png
    """
    began = time.perf_counter()
    with uninterrupted():
        from molmo2_iree.preprocess.prompt import messages_for
        from molmo2_iree.runtime.detokenize import TextStream
        from molmo2_iree.runtime.generate import Timings, generate
        from molmo2_iree.runtime.model import load

    spent = Timings()
    folder, expected = (bundle, None) if bundle else built_bundle(config)
    model = load(folder, expected, verify_all=verify)
    spent.add("load", began)
    started = time.perf_counter()
    pictures = [Path(path) for path in image or ()]
    payload = model.prepare(messages_for(question, len(pictures)), pictures)
    spent.add("prepare", started)
    stream, pieces = TextStream(model.processor.tokenizer), []
    for count, token in enumerate(generate(model, payload, max_tokens, spent)):
        if not count:
            spent.add("first token", began)
        pieces.append(stream.push(token))
        say(pieces[-1])
    pieces.append(stream.flush())
    say(pieces[-1] + "\n")
    if draw:
        _draw(pictures, "".join(pieces), draw)
    if timings:
        _report(spent, len(payload.ids))


def _draw(pictures: list[Path], answer: str, output: Path) -> None:
    from molmo2_iree.commands.drawing import draw_points
    from molmo2_iree.runtime.points import parse_points

    points = parse_points(answer)
    if not points or not pictures:
        named = f"{len(points)} points and {len(pictures)} pictures"
        raise RequestError(
            "--draw",
            got=f"an answer with {named}",
            expected="a picture and an answer that points at something in it",
            fix='ask "Point to ..." with --image',
        )
    draw_points(pictures, points, output)
    sys.stderr.write(f"wrote {output}: {len(points)} points\n")


def say(text: str) -> None:
    """Write at once: exact into a pipe or a file, without control characters on a terminal."""
    if sys.stdout.isatty():
        text = CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a locale without UTF-8
    sys.stdout.write(text)
    sys.stdout.flush()


def built_bundle(config: Path) -> tuple[Path, dict[str, Any]]:
    """The bundle that a configuration builds for this machine, and the fields it must have."""
    from molmo2_iree.commands.build import read_plan

    plan = read_plan(config)
    machine = {"arm64": "aarch64", "amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    fitting = [name for name in plan.config.targets if plan.target(name).triple.startswith(f"{machine}-")]
    if not fitting:
        raise BundleError(
            f"{config}, targets",
            got=list(plan.config.targets),
            expected=f"a target for {machine}",
            fix="add one, or pass --bundle FOLDER",
        )
    return plan.bundle_folder(fitting[0]), plan.compatibility(fitting[0])


def _report(spent: "Timings", prompt: int) -> None:
    for step, seconds in spent.steps.items():
        sys.stderr.write(f"{step:12} {seconds * 1000:9.1f} ms\n")
    if spent.decode:
        each = sum(spent.decode) / len(spent.decode)
        sys.stderr.write(f"{'decode':12} {each * 1000:9.1f} ms a token, {len(spent.decode)} tokens\n")
    sys.stderr.write(f"{'prompt':12} {prompt:9} tokens\n")
