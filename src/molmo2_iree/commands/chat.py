"""``molmo2 chat``: a conversation in the terminal, with pictures, each turn going on from the rows of the last."""

import queue
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from molmo2_iree.commands.ask import built_bundle, say
from molmo2_iree.commands.options import DEFAULT_CONFIG, ConfigFile
from molmo2_iree.errors import MolmoError, RequestError
from molmo2_iree.runtime.interrupt import uninterrupted

if TYPE_CHECKING:
    from molmo2_iree.runtime.conversation import Conversation
    from molmo2_iree.runtime.engine import Engine
    from molmo2_iree.runtime.events import Event, Finished
    from molmo2_iree.runtime.request import Request
    from molmo2_iree.runtime.sampling import Sampling

HELP = """\
/image PATH   show a picture with the next question; may be repeated
/reset        forget the conversation
/help         this
/quit         end; so does Ctrl-D. Ctrl-C ends the answer only.
"""


@dataclass
class Chat:
    """What the commands change."""

    engine: "Engine"
    sampling: "Sampling"
    max_tokens: int
    timings: bool
    conversation: "Conversation"
    pictures: list[Path] = field(default_factory=list[Path])
    """Shown with the next question."""
    typing: bool = False
    """Whether a line is being read."""
    cancel: Callable[[], None] | None = None
    """Ends the answer under way."""
    interrupted: bool = False
    """Whether Ctrl-C came since the line was read."""

    def interrupt(self, *_: object) -> None:
        """What Ctrl-C does: it ends the line, or the answer, or drops the question that is being prepared."""
        if self.typing:
            raise KeyboardInterrupt
        self.interrupted = True
        if self.cancel is not None:
            self.cancel()


def chat(
    image: Annotated[list[str] | None, typer.Option("--image", help="A picture for the first question.")] = None,
    bundle: Annotated[
        Path | None, typer.Option(help="A bundle's folder.", show_default="the one --config builds")
    ] = None,
    config: ConfigFile = DEFAULT_CONFIG,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 256,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token each time.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Only the likeliest tokens that sum to this.")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same answers.")] = None,
    timings: Annotated[bool, typer.Option("--timings", help="Say after each answer what it took.")] = False,
) -> None:
    """Talk about pictures, or without any. /help lists what can be typed besides questions.

    Example: molmo2 chat --image examples/cat.jpg
    """
    with uninterrupted():
        from molmo2_iree.runtime.conversation import Conversation
        from molmo2_iree.runtime.engine import Engine
        from molmo2_iree.runtime.model import load
        from molmo2_iree.runtime.sampling import Sampling, check_sampling

    folder, expected = (bundle, None) if bundle else built_bundle(config)
    model = load(folder, expected)
    sampling = Sampling(temperature=temperature, top_p=top_p, seed=seed)
    check_sampling(sampling, model.architecture.text.vocabulary)
    with Engine(model) as engine:
        talk = Chat(engine, sampling, max_tokens, timings, Conversation(model))
        for path in image or ():
            show(talk, path)
        if sys.stdin.isatty():
            sys.stderr.write("Ask away; /help lists the commands.\n")
        before = signal.signal(signal.SIGINT, talk.interrupt)
        try:
            while obey(talk):
                talk.interrupted = False
        finally:
            signal.signal(signal.SIGINT, before)


def obey(talk: Chat) -> bool:
    """Read and do one line; False at the end. A refusal is told and changes nothing."""
    try:
        talk.typing = True
        line = input("> " if sys.stdin.isatty() else "")
        talk.typing = False
    except EOFError:
        say("\n" if sys.stdin.isatty() else "")
        return False
    except KeyboardInterrupt:
        talk.typing = False
        sys.stderr.write("\n(Ctrl-D ends)\n")
        return True
    command, _, argument = line.partition(" ") if line.startswith("/") else ("", "", "")
    if command in ("/quit", "/exit"):
        return False
    try:
        _do(talk, command, argument.strip(), line.strip())
    except MolmoError as error:
        sys.stderr.write(f"molmo2: {error}\n")
    return True


def _do(talk: Chat, command: str, argument: str, line: str) -> None:
    if command == "/help":
        sys.stderr.write(HELP)
    elif command == "/reset":
        talk.conversation, talk.pictures = type(talk.conversation)(talk.engine.model), []
    elif command == "/image":
        show(talk, argument)
    elif command:
        raise RequestError(
            "command", got=command, expected="one of /image /reset /help /quit", fix="put a space before a question's /"
        )
    elif line:
        reply(talk, line)


def show(talk: Chat, path: str) -> None:
    """Keep a picture for the next question; RequestError if it is none."""
    from molmo2_iree.preprocess.picture import open_picture

    open_picture(Path(path).expanduser())
    talk.pictures.append(Path(path).expanduser())


def reply(talk: Chat, question: str) -> None:
    """Answer, and remember what was said, also of an answer that Ctrl-C cut short."""
    from molmo2_iree.runtime.events import Token

    pictures = talk.pictures
    payload = talk.conversation.ask(question, pictures)
    request = talk.engine.request(payload, _room(talk, len(payload.ids)), talk.sampling)
    ids, text, end = list[int](), "", None
    for event in _events(talk, request):
        text += event.text
        say(event.text)
        if isinstance(event, Token):
            ids.append(event.id)
        else:
            end = event
    say("\n")
    if end is None or (end.reason == "cancelled" and not ids):
        return  # as if it had not been asked
    if end.error is not None:
        raise end.error
    talk.conversation.answered(payload, question, pictures, ids, text)
    talk.pictures = []
    if talk.timings:
        _report(end)


def _events(talk: Chat, request: "Request") -> Iterator["Event"]:
    """Submit, and yield every event to the last; Ctrl-C makes that come soon."""
    from molmo2_iree.runtime.events import Finished

    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    talk.cancel = talk.engine.submit(request, events.put).cancel
    if talk.interrupted:
        talk.cancel()
    event: Event | None = None
    while not isinstance(event, Finished):
        yield (event := events.get())
    talk.cancel = None


def _room(talk: Chat, length: int) -> int:
    context = talk.engine.model.bundle.cache.context
    if length >= context:
        raise RequestError("conversation", got=f"{length} tokens", expected=f"at most {context - 1}", fix="/reset")
    return min(talk.max_tokens, context - length)


def _report(end: "Finished") -> None:
    usage, times = end.usage, end.times
    first = times.finished if times.first_token is None else times.first_token
    sys.stderr.write(
        f"prompt {usage.prompt} tokens, {usage.reused} of them read before; first token after "
        f"{1000 * (first - times.submitted):.0f} ms, "
        f"{usage.answer} tokens in {times.finished - times.submitted:.2f} s\n"
    )
