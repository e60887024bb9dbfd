"""What is loaded for a request: the smallest bucket that fits, one decoder for text and pictures, the weights once."""

import re
import threading
from pathlib import Path

import numpy as np
import pytest
from runtime_requests import CAT, close, noise, of_length, pictured, text

from molmo2_iree.errors import RequestError
from molmo2_iree.runtime.model import Model, load
from molmo2_iree.stages import Program


def test_one_decoder_for_text_and_pictures(bundle_folder: Path) -> None:
    model = load(bundle_folder)
    words, picture = of_length(model, 120), pictured(model, [CAT])
    assert model.prefill(picture, model.new_cache()).shape == (model.architecture.text.vocabulary,)
    loaded = dict(model.modules)
    assert sorted(loaded) == ["connector-c9", "merge-s128", "prefill-s128", "vision-c9"]
    model.prefill(words, model.new_cache())
    assert model.modules == loaded
    assert all(model.modules[name] is module for name, module in loaded.items())


@pytest.mark.parametrize(("length", "bucket"), [(17, 128), (127, 128), (128, 128), (129, 256), (256, 256), (768, 768)])
def test_the_smallest_bucket_that_fits_a_prompt(bundle_folder: Path, length: int, bucket: int) -> None:
    model = load(bundle_folder)
    model.prefill(of_length(model, length), model.new_cache())
    assert sorted(model.modules) == [f"merge-s{bucket}", f"prefill-s{bucket}"]


def test_a_prompt_one_over_the_largest_bucket(bundle_folder: Path) -> None:
    model = load(bundle_folder)
    with pytest.raises(RequestError, match="prompt tokens, pictures included: got 769, expected at most 768"):
        model.prefill(of_length(model, 769), model.new_cache())
    assert not model.modules


@pytest.mark.parametrize(("height", "width", "bucket"), [(40, 40, 3), (98, 98, 3), (150, 150, 5), (90, 700, 9)])
def test_the_smallest_bucket_that_fits_a_picture(bundle_folder: Path, height: int, width: int, bucket: int) -> None:
    model = load(bundle_folder)
    image = pictured(model, [noise(1, height, width)]).image(0)
    model.connector(image, model.vision(image))
    assert sorted(model.modules) == [f"connector-c{bucket}", f"vision-c{bucket}"]
    assert image.crops <= bucket


def test_the_smallest_buckets_that_fit_a_step(bundle_folder: Path) -> None:
    model = load(bundle_folder)
    cache = model.new_cache()
    steps = [((0,), 255, "decode-b1x256"), ((0,), 256, "decode-b1x1024"), ((1,), 0, "decode-b4x256")]
    for slots, position, name in steps:
        model.modules.clear()
        model.decode(dict.fromkeys(slots, 1), dict.fromkeys(slots, position), cache)
        assert list(model.modules) == [name]
    for count, start, name in [(16, 240, "extend-t16x256"), (16, 241, "extend-t16x1024"), (17, 0, "extend-t64x256")]:
        model.modules.clear()
        model.extend([1] * count, start, cache)
        assert list(model.modules) == [name]


def test_buckets_do_not_change_the_answer(model: Model) -> None:
    payload = text(model)
    merged = model.call(
        Program("merge", (768,)),
        {
            "ids": np.pad(payload.ids, (0, 768 - len(payload.ids))),
            "image_tokens": np.zeros((768, model.architecture.text.width), np.float32),
            "count": 0,
        },
    )[0]
    large = model.prefill_embeddings(payload, merged, model.new_cache())
    close(large, model.prefill(payload, model.new_cache()))


def test_weights_are_mapped_once(bundle_folder: Path) -> None:
    maps, status = Path("/proc/self/maps"), Path("/proc/self/status")
    archives = [bundle_folder / "weights" / name for name in ("text.irpa", "vision.irpa")]

    def mappings() -> dict[str, int]:
        lines = maps.read_text(encoding="utf-8", errors="replace").splitlines()
        return {path.name: sum(line.endswith(str(path)) for line in lines) for path in archives}

    def anonymous() -> int:
        found = re.search(r"RssAnon:\s+(\d+) kB", status.read_text(encoding="utf-8"))
        return int(found.group(1)) * 1024 if found else 0

    before = mappings()
    model = load(bundle_folder)
    opened, memory = mappings(), anonymous()
    assert {name: opened[name] - before[name] for name in opened} == {"text.irpa": 1, "vision.irpa": 1}
    for name, program in model.bundle.programs.items():
        model.add_module(program, bundle_folder / model.bundle.manifest.modules[name].file)
    assert mappings() == opened
    sizes = {path.name: path.stat().st_size for path in archives}
    own_copies = sum(
        sizes["vision.irpa" if program.stage in ("vision", "connector") else "text.irpa"]
        for program in model.bundle.programs.values()
    )
    assert anonymous() - memory < own_copies / 2


def test_threads_may_share_a_model(model: Model) -> None:
    payload = pictured(model, [CAT])

    def answer() -> np.ndarray:
        cache = model.new_cache()
        model.prefill(payload, cache)
        return model.decode({0: 5}, {0: len(payload.ids)}, cache)[0]

    expected = answer()
    answers: list[np.ndarray] = []

    def ask() -> None:
        for _ in range(5):
            answers.append(answer())

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 20
    for logits in answers:
        np.testing.assert_array_equal(logits, expected)
