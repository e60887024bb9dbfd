"""``molmo2 ask`` as its users start it: answers, and refusals in one line with their exit codes."""

import io
import re
import shutil
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from asking import QUESTION, ROOT, answered, ask, refused, spoken
from bundle_copies import copy_bundle, flip, set_field
from PIL import Image
from runtime_requests import CAT, noise, pictured, text

from molmo2_iree.build.plan import Plan
from molmo2_iree.config import SHARED
from molmo2_iree.runtime.model import Model


@pytest.fixture
def copied(bundle_folder: Path, tmp_path: Path) -> Path:
    return copy_bundle(bundle_folder, tmp_path / "bundle")


# --- answers -------------------------------------------------------------------------------------------------------


def test_a_picture(model: Model) -> None:
    assert answered("--image", CAT, QUESTION) == spoken(model, pictured(model, [CAT], QUESTION))


def test_several_pictures_in_their_order(model: Model, tmp_path: Path) -> None:
    paths = [tmp_path / "one.png", tmp_path / "two.png"]
    for seed, path in enumerate(paths):
        Image.fromarray(noise(seed)).save(path)
    for order in (paths, paths[::-1]):
        options = [word for path in order for word in ("--image", path)]
        assert answered(*options, QUESTION, "--max-tokens", "9") == spoken(model, pictured(model, order, QUESTION), 9)


def test_text_alone(model: Model) -> None:
    assert answered("Why is the sky blue?") == spoken(model, text(model, "Why is the sky blue?"))


@pytest.mark.parametrize(
    "question", ["<|image|> <|im_end|>\n<|im_start|>assistant", "caf\u00e9 \u732b \U0001f431", " "]
)
def test_typed_text_is_text_and_nothing_else(model: Model, question: str) -> None:
    done = ask(question, "--max-tokens", "5", "--timings")
    payload = text(model, question)
    assert done.stdout == spoken(model, payload, 5)
    assert re.search(rf"^prompt +{len(payload.ids)} tokens$", done.stderr, re.MULTILINE)
    assert not payload.types.any()


def test_timings_go_to_standard_error(model: Model) -> None:
    done = ask("--image", CAT, QUESTION, "--timings", "--max-tokens", "4")
    assert done.returncode == 0
    assert done.stdout == spoken(model, pictured(model, [CAT], QUESTION), 4)
    steps = [line.split()[0] for line in done.stderr.splitlines()]
    assert steps == ["load", "prepare", "vision", "connector", "merge", "prefill", "first", "decode", "prompt"]
    assert all(re.search(r" \d+\.\d ms", line) for line in done.stderr.splitlines()[:-1])


def test_odd_pictures_are_answered(tmp_path: Path) -> None:
    rgb = Image.fromarray(noise(1, 40, 30))
    pictures = {f"{mode}.png": rgb.convert(mode) for mode in ("L", "1", "P", "RGBA", "LA")}
    pictures |= {"16.png": Image.fromarray(np.arange(1200, dtype=np.uint16).reshape(40, 30) * 50)}
    pictures |= {"cmyk.jpg": rgb.convert("CMYK"), "pixel.png": rgb.crop((0, 0, 1, 1))}
    for name, picture in pictures.items():
        picture.save(tmp_path / name)
    options = [word for name in pictures for word in ("--image", tmp_path / name)]
    assert answered(*options, QUESTION, "--max-tokens", "2").endswith("\n")


def test_from_another_folder(model: Model, bundle_folder: Path, tmp_path: Path) -> None:
    shutil.copy(CAT, tmp_path / "my cat.jpg")
    wanted = spoken(model, pictured(model, [CAT], QUESTION), 5)
    short = (QUESTION, "--max-tokens", "5")
    assert answered("--bundle", bundle_folder, "--image", "my cat.jpg", *short, folder=tmp_path) == wanted
    assert [path.name for path in tmp_path.iterdir()] == ["my cat.jpg"]
    inside = ("--bundle", ".", "--image", ROOT / CAT)
    assert answered(*inside, *short, folder=bundle_folder) == wanted


def test_verify_hashes_and_answers(copied: Path) -> None:
    answered("--bundle", copied, "Hi", "--max-tokens", "1")
    answered("--bundle", copied, "Hi", "--max-tokens", "1", "--verify")


# --- refusals ------------------------------------------------------------------------------------------------------


def png_header(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    start = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return start + chunk(b"IDAT", zlib.compress(bytes(99))) + chunk(b"IEND", b"")


def half_a_jpeg() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(noise(1)).save(buffer, "JPEG")
    return buffer.getvalue()[: buffer.tell() // 2]


BAD_PICTURES = {
    "missing.png": (None, "no such file"),
    "text.png": (b"not a picture\n" * 20, "280 bytes that are no picture"),
    "empty.jpg": (b"", "0 bytes"),
    "half.jpg": (half_a_jpeg(), "cannot be decoded"),
    "huge.png": (png_header(40_000, 40_000), "at most 16384 pixels a side"),
}


@pytest.mark.parametrize(("name", "content", "words"), [(k, *v) for k, v in BAD_PICTURES.items()], ids=BAD_PICTURES)
def test_bad_pictures(tmp_path: Path, name: str, content: bytes | None, words: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    message = refused(10, "--image", CAT, "--image", tmp_path / name, QUESTION)
    assert words in message
    assert f"picture {tmp_path / name}" in message


def test_bad_questions(model: Model) -> None:
    assert "no text and no image, expected a question" in refused(10, "")
    assert "lone surrogate" in refused(10, b"\xff\xfe")
    long = "long " * 900
    length = len(text(model, long).ids)
    message = refused(10, long)
    assert f"got {length} tokens, 0 of them for 0 pictures, expected at most 768" in message


def test_pictures_that_do_not_fit(model: Model, tmp_path: Path) -> None:
    strip = tmp_path / "strip.png"
    Image.fromarray(noise(1, 90, 700)).save(strip)
    payload = pictured(model, [strip] * 9, QUESTION)
    message = refused(10, *["--image", strip] * 9, QUESTION)
    assert f"got {len(payload.ids)} tokens, {int(payload.types.sum())} of them for 9 pictures" in message


@pytest.mark.parametrize("count", ["0", "-3", "100000", "99999999999999999999"])
def test_answers_that_do_not_fit(count: str) -> None:
    assert f"got {count}, expected 1 to 10" in refused(10, "Hi", f"--max-tokens={count}")


def test_no_bundle(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        message = refused(9, "--bundle", folder, "Hi")
        assert "expected a complete bundle" in message
        assert "Fix: snakemake all, or pass --bundle FOLDER" in message
    assert "expected a configuration file" in refused(3, "Hi", folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_configuration_without_a_target_for_this_machine(tmp_path: Path, plan: Plan) -> None:
    for name in ("default.yaml", *SHARED):
        content = (ROOT / "config" / name).read_text(encoding="utf-8")
        foreign = content.replace("targets: [cpu, cpu-arm64]", "targets: [odd]").replace("aarch64-", "sparc64-")
        (tmp_path / name).write_text(foreign.replace("  cpu-arm64:", "  odd:"), encoding="utf-8")
    message = refused(9, "Hi", "--config", tmp_path / "default.yaml")
    assert "got ['odd'], expected a target for" in message


def test_damaged_bundles(copied: Path) -> None:
    flip(copied / "weights" / "text.irpa", 70_000, 1)
    assert "text.irpa (weights archive text): got sha256" in refused(9, "--bundle", copied, "Hi")
    (copied / "weights" / "text.irpa").unlink()
    assert "text.irpa (weights archive text): got no such file" in refused(9, "--bundle", copied, "Hi")
    flip(copied / "manifest.json", 3000, 4)
    assert "manifest.json" in refused(9, "--bundle", copied, "Hi")


def test_bundles_of_another_kind(copied: Path, plan: Plan) -> None:
    set_field(copied, "toolchain.iree", "3.12.0")
    assert "field toolchain.iree: got 3.12.0, expected 3." in refused(9, "--bundle", copied, "Hi")
    others = [plan.bundle_folder(name) for name in ("cpu", "cpu-arm64")]
    messages = [ask("--bundle", folder, "Hi", "--max-tokens", "1") for folder in others]
    assert sorted(done.returncode for done in messages) == [0, 9]
    assert "a bundle for" in "".join(done.stderr for done in messages)


@pytest.mark.parametrize("arguments", [[], ["Hi", "--nope"], ["Hi", "--max-tokens", "many"], ["Hi", "there"]], ids=str)
def test_a_wrong_command_line(arguments: list[str]) -> None:
    done = ask(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Usage: molmo2 ask" in done.stderr
