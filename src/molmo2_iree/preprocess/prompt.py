"""Messages to ids: the checkpoint's chat template around the user's texts, and each picture's ids in its place.

A message is ``{"role": ..., "content": ...}``; the content is a string or a list of parts, each
``{"type": "text", "text": ...}`` (optionally with a ``style``) or ``{"type": "image"}``. Pictures are given apart from
the messages, in the order of the image parts.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from molmo2_iree.errors import CheckpointError, RequestError, UnsupportedError
from molmo2_iree.preprocess.tokenizer import Tokenizer, check_text

Message = Mapping[str, Any]
Piece = tuple[str, bool]
"""A stretch of prompt text and whether it is the template's own."""

PARTS = {"text": {"type", "text", "style"}, "image": {"type"}}
"""Keys that a content part of each type may have."""

_MARKER = re.compile("\ue000([0-9]+)\ue001")


class _Refusal(jinja2.TemplateError):
    """Raised by a template itself, through ``raise_exception``."""


def _refuse(message: str) -> NoReturn:
    raise _Refusal(message)


def compile_template(source: str) -> jinja2.Template:
    """Compile a ``chat_template.jinja`` in a sandbox, with the block trimming transformers gives it."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols], undefined=jinja2.StrictUndefined
    )
    environment.globals["raise_exception"] = _refuse
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as wrong:
        raise CheckpointError(
            "chat_template.jinja", got=f"a template error ({wrong})", expected="a jinja template", fix="fetch it again"
        ) from wrong


def messages_for(question: str, images: int = 0) -> list[dict[str, Any]]:
    """One user message: ``images`` pictures, then the question."""
    parts: list[dict[str, Any]] = [{"type": "image"} for _ in range(images)]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": question}]}]


def count_images(messages: Sequence[Message]) -> int:
    """How many image parts the messages have. They must have passed :func:`check_messages`."""
    contents = [message["content"] for message in messages if not isinstance(message["content"], str)]
    return sum(part["type"] == "image" for content in contents for part in content)


def check_messages(messages: Sequence[Message]) -> None:
    """Refuse, with RequestError, messages whose form is wrong or that hold something this build would ignore.

    White space alone is a question like any other; an empty user message, without text and without an image, is not.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        _wrong("messages", repr(messages), "a list with at least one message")
    for k, message in enumerate(messages):
        where = f"messages[{k}]"
        if not isinstance(message, Mapping) or set(message) != {"role", "content"}:
            got = f"keys {sorted(map(str, message))}" if isinstance(message, Mapping) else type(message).__name__
            _wrong(where, got, "a dict with role and content")
        if not isinstance(message["role"], str):
            _wrong(f"{where}.role", repr(message["role"]), "a string, user, assistant or subtitle")
        _check_content(message["content"], message["role"].lower(), f"{where}.content")
    if messages[-1]["role"].lower() != "user":
        _wrong(
            f"messages[{len(messages) - 1}].role", repr(messages[-1]["role"]), "user: the last message is the question"
        )


def check_labels(messages: Sequence[Message], tokenizer: Tokenizer) -> None:
    """Refuse a role or style that holds a special token: the template reads these, so they cannot be kept apart."""
    for k, message in enumerate(messages):
        labels = {f"messages[{k}].role": message["role"]}
        parts = [] if isinstance(message["content"], str) else message["content"]
        labels |= {
            f"messages[{k}].content[{n}].style": part["style"] for n, part in enumerate(parts) if "style" in part
        }
        for where, label in labels.items():
            if tokenizer.finds_added(label) or not label.isprintable():
                _wrong(where, repr(label), "printable text without special tokens")


def _check_content(content: object, role: str, where: str) -> None:
    if isinstance(content, str):
        check_text(content, where)
        if role == "user" and not content:
            _wrong(where, "an empty string", "a question")
        return
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        _wrong(where, type(content).__name__, "a string or a list of parts")
    if role == "subtitle":
        _wrong(where, "a list of parts", "a string, for role subtitle")
    for k, part in enumerate(content):
        _check_part(part, f"{where}[{k}]")
    if role == "user" and not any(part["type"] == "image" or part["text"] for part in content):
        _wrong(where, "no text and no image", "a question, an image or both")


def _check_part(part: object, where: str) -> None:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or not isinstance(kind, str):
        _wrong(where, repr(part), 'a dict with a type, "text" or "image"')
    if kind in ("video", "video_url") or {"video", "video_url"} & set(part):
        _wrong(where, "a video part", "text and image parts: video is unsupported by this build")
    if kind not in PARTS:
        _wrong(f"{where}.type", repr(kind), " or ".join(PARTS))
    unknown = sorted(str(key) for key in set(part) - PARTS[kind])
    if unknown:
        _wrong(where, f"keys {unknown}", f"only {sorted(PARTS[kind])}; pictures are given apart from the messages")
    for key in ("text", "style") if kind == "text" else ():
        if key == "text" or key in part:
            if not isinstance(part.get(key), str):
                _wrong(f"{where}.{key}", repr(part.get(key)), "a string")
            check_text(part[key], f"{where}.{key}")


def _wrong(where: str, got: str, expected: str) -> NoReturn:
    raise RequestError(where, got=got, expected=expected, fix="correct the messages")


def render(template: jinja2.Template, messages: Sequence[Message]) -> list[Piece]:
    """The prompt as pieces, the user's texts apart from the template's. ``messages`` have passed check_messages.

    The template is rendered twice: with every text replaced by a marker, which shows where the texts end up, and with
    the texts themselves, to refuse a template that changes them instead of copying them.
    """
    texts: list[str] = []
    marked = _run(template, [_mark(message, texts) for message in messages])
    pieces: list[Piece] = []
    for k, stretch in enumerate(_MARKER.split(marked)):
        pieces.append((texts[int(stretch)], False) if k % 2 and int(stretch) < len(texts) else (stretch, True))
    whole = _run(template, messages)
    if "".join(text for text, _ in pieces) != whole:
        raise UnsupportedError(
            "chat_template.jinja",
            got="a template that changes or inspects the text of messages",
            expected="one that copies it",
            fix="use the chat template of a Molmo2 release",
        )
    return pieces


def _mark(message: Message, texts: list[str]) -> dict[str, Any]:
    """The message with each text that is not empty moved to ``texts`` and a marker left in its place."""

    def marker(text: str) -> str:
        if not text:
            return text
        texts.append(text)
        return f"\ue000{len(texts) - 1}\ue001"

    content = message["content"]
    if isinstance(content, str):
        return {"role": message["role"], "content": marker(content)}
    parts = [{**part, "text": marker(part["text"])} if part["type"] == "text" else dict(part) for part in content]
    return {"role": message["role"], "content": parts}


def _run(template: jinja2.Template, messages: Sequence[Message]) -> str:
    try:
        return template.render(messages=messages, add_generation_prompt=True, tools=None, documents=None)
    except _Refusal as refusal:
        raise RequestError(
            "messages",
            got=f"roles {[message['role'] for message in messages]}",
            expected=f"what the chat template accepts; it says: {refusal}",
            fix="start with a user message and let user and assistant alternate; there is no system role",
        ) from refusal
    except jinja2.TemplateError as wrong:
        raise CheckpointError(
            "chat_template.jinja",
            got=f"a template error ({wrong})",
            expected="a release's template",
            fix="fetch it again",
        ) from wrong
