"""``molmo2 answer``: many questions from a file, an answer each, in one process."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel, ConfigDict, ValidationError

from molmo2_iree.commands.ask import built_bundle
from molmo2_iree.commands.options import DEFAULT_CONFIG, ConfigFile
from molmo2_iree.errors import RequestError
from molmo2_iree.files import write_whole


class Asked(BaseModel):
    """A line of the file; other keys are the writer's own."""

    model_config = ConfigDict(extra="ignore", strict=True)

    question: str
    images: list[str] = []


def answer(
    requests: Annotated[Path, typer.Argument(help='JSON Lines: {"question": "...", "images": ["a.png"]}.')],
    output: Annotated[Path, typer.Option(help='JSON Lines to write: {"answer": "..."}, in the same order.')],
    bundle: Annotated[
        Path | None, typer.Option(help="A bundle's folder.", show_default="the one --config builds")
    ] = None,
    config: ConfigFile = DEFAULT_CONFIG,
    max_tokens: Annotated[int, typer.Option(help="Longest answer.")] = 64,
) -> None:
    """Answer every question of a file. Pictures are found from the file's own folder.

    Example: molmo2 answer questions.jsonl --output answers.jsonl
    """
    from rich.console import Console
    from rich.progress import track

    from molmo2_iree.preprocess.prompt import messages_for
    from molmo2_iree.runtime.generate import generate
    from molmo2_iree.runtime.model import load

    asked = read_requests(requests)
    folder, expected = (bundle, None) if bundle else built_bundle(config)
    model = load(folder, expected)
    lines = []
    for request in track(asked, "answering", console=Console(stderr=True)):
        pictures = [requests.parent / path for path in request.images]
        payload = model.prepare(messages_for(request.question, len(pictures)), pictures)
        ids = list(generate(model, payload, max_tokens))
        lines.append(json.dumps({"answer": model.processor.tokenizer.decode(ids)}, ensure_ascii=False) + "\n")
    write_whole(output, "".join(lines))


def read_requests(path: Path) -> list[Asked]:
    """Every line, checked; RequestError names the file and the line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(
            str(path), got=str(error), expected="a file of JSON Lines", fix="molmo2 answer --help"
        ) from error
    return [_request(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]


def _request(path: Path, number: int, line: str) -> Asked:
    try:
        return Asked.model_validate_json(line)
    except ValidationError as error:
        first: Any = error.errors()[0]
        raise RequestError(
            f"{path}, line {number}, {'.'.join(map(str, first['loc'])) or 'the line'}",
            got=repr(first["input"])[:120],
            expected=first["msg"],
            fix='write {"question": "...", "images": ["a.png"]}',
        ) from error
