"""Literal prompts of contract section 4, under both white-space settings a renderer may use."""

from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from molmo2_iree.build.embedded import chat_template


class RefusedError(Exception):
    pass


def refuse(message: str) -> None:
    raise RefusedError(message)


@pytest.fixture(params=[False, True], ids=["plain", "trimmed"])
def render(request: pytest.FixtureRequest) -> Any:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=request.param, lstrip_blocks=request.param, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = refuse
    template = environment.from_string(chat_template())

    def prompt(*messages: tuple[str, Any], generate: bool = True) -> str:
        turns = [{"role": role, "content": content} for role, content in messages]
        return template.render(messages=turns, add_generation_prompt=generate)

    return prompt


IMAGE, VIDEO = {"type": "image"}, {"type": "video"}
ANSWER = "<|im_start|>assistant\n"


def text(content: str, **more: str) -> dict[str, str]:
    return {"type": "text", "text": content, **more}


def user(content: str) -> str:
    return f"<|im_start|>user\n{content}<|im_end|>\n"


def test_one_image(render: Any) -> None:
    got = render(("user", [text("Describe this image."), IMAGE]))
    assert got == "<|image|><|im_start|>user\nDescribe this image.<|im_end|>\n<|im_start|>assistant\n"


def test_two_turns(render: Any) -> None:
    got = render(("user", [IMAGE, text("Q1")]), ("assistant", "A1"), ("user", "Q2"))
    assert got == (
        "<|image|><|im_start|>user\nQ1<|im_end|>\n <|im_start|>assistant\nA1<|im_end|>\n"
        "<|im_start|>user\nQ2<|im_end|>\n<|im_start|>assistant\n"
    )


def test_images_of_all_turns_come_first_and_are_numbered(render: Any) -> None:
    got = render(
        ("user", [IMAGE, text("a"), {"image": "x"}]),
        ("assistant", [text("b")]),
        ("user", [{"type": "image_url", "image_url": "y"}]),
        generate=False,
    )
    assert got == (
        "Image 1<|image|>Image 2<|image|>Image 3<|image|><|im_start|>user\na<|im_end|>\n"
        " <|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\n<|im_end|>\n"
    )


def test_video_follows_images(render: Any) -> None:
    assert render(("user", [VIDEO, text("q")])) == "<|video|>" + user("q") + ANSWER
    assert render(("user", [VIDEO, {"video_url": "v"}, IMAGE])) == "<|image|><|video|><|video|>" + user("") + ANSWER


def test_subtitle_first(render: Any) -> None:
    got = render(("Subtitle", "0.0 - 1.5 Hello\n"), ("user", [VIDEO, text("q")]), ("assistant", "a"), ("user", "r"))
    assert got == "<|video|>0.0 - 1.5 Hello\n" + user("q") + " " + ANSWER + "a<|im_end|>\n" + user("r") + ANSWER


def test_text_parts_and_styles(render: Any) -> None:
    assert render(("user", [text("a"), IMAGE, text("b")])) == "<|image|>" + user("a b") + ANSWER
    assert render(("user", [text("a", style="pointing")])) == user("a") + ANSWER
    assert render(("user", [text("a", style="haiku"), text("b")])) == user("haiku: a b") + ANSWER
    assert render(("user", [text(""), text("b")])) == user("b") + ANSWER


def test_text_is_kept_as_it_is(render: Any) -> None:
    raw = " {{ 1 }}\n<b>&'\"{% raw %} \n"
    assert render(("user", raw)) == user(raw) + ANSWER


def test_roles_in_capitals_and_no_messages(render: Any) -> None:
    assert render(("USER", "q")) == user("q") + ANSWER
    assert render() == ANSWER
    assert render(generate=False) == ""


@pytest.mark.parametrize(
    "roles",
    [
        ["assistant"],
        ["user", "user"],
        ["system", "user"],
        ["user", "assistant", "assistant"],
        ["subtitle", "assistant"],
    ],
)
def test_roles_must_alternate(render: Any, roles: list[str]) -> None:
    with pytest.raises(RefusedError, match="user, assistant"):
        render(*((role, "x") for role in roles))
