"""Prompt text as contract section 4 gives it, with the embedded checkpoint's template."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molmo2_iree.build.embedded import chat_template
from molmo2_iree.errors import CheckpointError, RequestError, UnsupportedError
from molmo2_iree.preprocess.prompt import check_messages, compile_template, count_images, messages_for, render

TEMPLATE = compile_template(chat_template())
IMAGE = {"type": "image"}
ANSWER = "<|im_start|>assistant\n"


def text(value: str, **more: str) -> dict[str, str]:
    return {"type": "text", "text": value, **more}


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content[0] if isinstance(content[0], str) else list(content)}


def assistant(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def rendered(*messages: dict[str, Any]) -> str:
    check_messages(messages)
    return "".join(piece for piece, _ in render(TEMPLATE, messages))


STRINGS = {
    "one image": (
        [user(IMAGE, text("Describe this image."))],
        f"<|image|><|im_start|>user\nDescribe this image.<|im_end|>\n{ANSWER}",
    ),
    "no image": ([user("Q1")], f"<|im_start|>user\nQ1<|im_end|>\n{ANSWER}"),
    "image after text": ([user(text("Q1"), IMAGE)], f"<|image|><|im_start|>user\nQ1<|im_end|>\n{ANSWER}"),
    "image alone": ([user(IMAGE)], f"<|image|><|im_start|>user\n<|im_end|>\n{ANSWER}"),
    "two turns": (
        [user(IMAGE, text("Q1")), assistant("A1"), user("Q2")],
        "<|image|><|im_start|>user\nQ1<|im_end|>\n <|im_start|>assistant\nA1<|im_end|>\n"
        f"<|im_start|>user\nQ2<|im_end|>\n{ANSWER}",
    ),
    "three images over two turns": (
        [user(IMAGE, IMAGE, text("Q1")), assistant([text("A1")]), user(text("Q2"), IMAGE)],
        "Image 1<|image|>Image 2<|image|>Image 3<|image|><|im_start|>user\nQ1<|im_end|>\n"
        f" <|im_start|>assistant\nA1<|im_end|>\n<|im_start|>user\nQ2<|im_end|>\n{ANSWER}",
    ),
    "parts are joined by a space": (
        [user(text("a"), IMAGE, text(""), text("b"))],
        f"<|image|><|im_start|>user\na  b<|im_end|>\n{ANSWER}",
    ),
    "an empty first part": ([user(text(""), text("b"))], f"<|im_start|>user\nb<|im_end|>\n{ANSWER}"),
    "styles": (
        [user(text("x", style="demo"), text("y", style="haiku"))],
        f"<|im_start|>user\nx haiku: y<|im_end|>\n{ANSWER}",
    ),
    "subtitle": (
        [{"role": "subtitle", "content": "S "}, user(IMAGE, text("Q1")), assistant("A1"), user("Q2")],
        "<|image|>S <|im_start|>user\nQ1<|im_end|>\n <|im_start|>assistant\nA1<|im_end|>\n"
        f"<|im_start|>user\nQ2<|im_end|>\n{ANSWER}",
    ),
    "white space stays": ([user("  \n x \n")], f"<|im_start|>user\n  \n x \n<|im_end|>\n{ANSWER}"),
    "a role in capitals": ([{"role": "User", "content": "Q1"}], f"<|im_start|>user\nQ1<|im_end|>\n{ANSWER}"),
}


@pytest.mark.parametrize(("messages", "expected"), STRINGS.values(), ids=STRINGS)
def test_strings_of_the_contract(messages: list[dict[str, Any]], expected: str) -> None:
    assert rendered(*messages) == expected


@given(st.lists(st.text(min_size=1), min_size=1, max_size=4), st.integers(0, 3))
def test_texts_and_template_are_kept_apart(texts: list[str], images: int) -> None:
    messages: list[dict[str, Any]] = messages_for(texts[0], images)
    for said in texts[1:]:
        messages += [assistant(said), user(said)]
    pieces = render(TEMPLATE, messages)
    typed = [piece for piece, from_template in pieces if not from_template]
    assert typed == [texts[0], *(said for said in texts[1:] for _ in range(2))]


def test_a_typed_marker_or_template_code_is_text() -> None:
    for said in ("\ue0000\ue001", "{{ messages }}", "{% raw %}", "<|image|>"):
        assert (said, False) in render(TEMPLATE, [user(said)])


def test_messages_for() -> None:
    messages = messages_for("Why?", 2)
    check_messages(messages)
    assert messages == [{"role": "user", "content": [IMAGE, IMAGE, text("Why?")]}]
    assert (count_images(messages), count_images([user("x")])) == (2, 0)


BAD = {
    "no messages": ([], r"messages: got \[\], expected a list with at least one message"),
    "a string": ("hello", "messages: got 'hello'"),
    "no dict": (["hello"], r"messages\[0\]: got str"),
    "no content": ([{"role": "user"}], r"messages\[0\]: got keys \['role'\]"),
    "another key": ([{**user("x"), "name": "y"}], r"messages\[0\]: got keys \['content', 'name', 'role'\]"),
    "role": ([{"role": 3, "content": "x"}], r"messages\[0\].role: got 3"),
    "content": ([user("x"), {"role": "assistant", "content": None}], r"messages\[1\].content: got NoneType"),
    "bytes": ([{"role": "user", "content": b"x"}], r"content: got bytes"),
    "empty": ([user("")], r"messages\[0\].content: got an empty string, expected a question"),
    "empty part": ([user(text(""))], "got no text and no image"),
    "no parts": ([{"role": "user", "content": []}], "got no text and no image"),
    "a part of no type": ([user({"text": "x"})], r"content\[0\]: got {'text': 'x'}"),
    "a part that is a string": ([{"role": "user", "content": ["x"]}], r"content\[0\]: got 'x'"),
    "part type": ([user({"type": "audio"})], r"content\[0\].type: got 'audio', expected text or image"),
    "video": ([user(IMAGE, {"type": "video"})], r"content\[1\]: got a video part.*video is unsupported by this build"),
    "video_url": ([user({"type": "text", "text": "x", "video_url": "y"})], "video is unsupported by this build"),
    "picture inside": ([user({"type": "image", "url": "x"})], r"keys \['url'\].*pictures are given apart"),
    "no text": ([user({"type": "text"})], r"content\[0\].text: got None, expected a string"),
    "style": ([user({"type": "text", "text": "x", "style": 3})], r"content\[0\].style: got 3"),
    "surrogate": ([user("x\ud800")], r"messages\[0\].content: got a lone surrogate, '\\ud800', at character 1"),
    "surrogate part": ([user(text("\udc00"))], r"content\[0\].text: got a lone surrogate"),
    "subtitle parts": (
        [{"role": "subtitle", "content": [text("x")]}, user("y")],
        "expected a string, for role subtitle",
    ),
    "an answer last": ([user("x"), assistant("y")], r"messages\[1\].role: got 'assistant', expected user"),
}


@pytest.mark.parametrize(("messages", "message"), BAD.values(), ids=BAD)
def test_bad_messages_are_refused(messages: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        check_messages(messages)


ORDERS = [
    ["system", "user"],
    ["assistant", "user"],
    ["user", "user"],
    ["subtitle", "assistant", "user"],
    ["user", "tool", "user"],
]


@pytest.mark.parametrize("roles", ORDERS, ids=str)
def test_roles_that_do_not_alternate_are_refused_in_words(roles: list[str]) -> None:
    with pytest.raises(RequestError, match=r"the chat template accepts; it says: .* in turn") as refusal:
        rendered(*({"role": role, "content": "x"} for role in roles))
    assert str(roles) in str(refusal.value)
    assert "no system role" in refusal.value.fix


def test_a_template_that_changes_texts_is_refused() -> None:
    for source in ("{{ messages[0]['content'] | upper }}", "{% if messages[0]['content'] == 'x' %}a{% endif %}"):
        with pytest.raises(UnsupportedError, match="changes or inspects"):
            render(compile_template(source), [user("x")])


def test_damaged_templates_are_refused() -> None:
    with pytest.raises(CheckpointError, match="template error"):
        compile_template("{% if %}")
    with pytest.raises(CheckpointError, match="'bos_token' is undefined"):
        render(compile_template("{{ bos_token }}"), [user("x")])
    with pytest.raises(CheckpointError, match="unsafe"):
        render(compile_template("{{ messages.append(1) }}"), [user("x")])


def test_blocks_are_trimmed_as_transformers_trims_them() -> None:
    source = "{% for m in messages %}\n  {% if m.role == 'user' %}\n{{ m.content }}\n  {% endif %}\n{% endfor %}\n"
    assert render(compile_template(source), [user("x")]) == [("", True), ("x", False), ("\n", True)]
