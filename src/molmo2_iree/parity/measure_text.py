"""The text half of a measurement: merge, prefill, cache rows, extend and decode against a reference.

The prompt goes into a slot that a cancelled request left, beside a companion that goes on decoding.
"""

from typing import Any

import numpy as np

from molmo2_iree.parity.cases import Case
from molmo2_iree.parity.compare import compare
from molmo2_iree.preprocess.payload import Payload
from molmo2_iree.preprocess.prompt import messages_for
from molmo2_iree.runtime.device import to_host
from molmo2_iree.runtime.model import Cache, Model
from molmo2_iree.stages import Program, tap_names

EXTENDED = 12
"""Greedy tokens appended in one piece to check the extend stage."""

FORMER_OWNER = "Name five things that are red, five that are green, and say of each whether it can be eaten raw. " * 2
"""Fills a slot before the measured prompt does, with more rows than a short prompt overwrites."""

DECODED = 3
"""Tokens the former owner got before it was cancelled, and the companion before it goes on."""

Arrays = dict[str, np.ndarray]


def _ranks(model: Model, program: Program, payload: Payload, tokens: np.ndarray) -> dict[str, Any]:
    """Which image token each position takes, scanned in the graph, against a count on the host; -1 where none."""
    bucket, length = program.sizes()["S"], len(payload.ids)
    image_tokens = np.zeros((bucket, tokens.shape[1]), np.float32)
    image_tokens[: len(tokens)] = tokens
    arguments = {
        "ids": np.pad(payload.ids, (0, bucket - length)),
        "image_tokens": image_tokens,
        "count": np.int32(len(tokens)),
    }
    ranks = to_host(model.call(program, arguments)[1])[:length]
    wanted = np.full(length, -1)
    places = [place for place, token in enumerate(payload.ids) if token == model.architecture.tokens.image_patch]
    for rank, place in enumerate(places):
        wanted[place] = rank
    return compare("merge.image_rank", ranks, wanted, exact=True)


def decoder(
    model: Model, taps: dict[str, Program], case: Case, payload: Payload, tokens: np.ndarray, wanted: Arrays
) -> list[dict[str, Any]]:
    """Comparisons from merge to the last greedy token; only merge's if the reference has no decoder of this kind."""
    length, slot = len(payload.ids), case.slot
    embeddings = model.merge(payload, tokens)
    found = [_ranks(model, taps["merge"], payload, tokens)]
    found.append(compare("merge.embeddings", to_host(embeddings)[:length], wanted["merge.embeddings"]))
    if "prefill.logits" not in wanted:
        return found  # a reference without this decoder; judge knows which may be
    found += _tapped_prefill(model, taps["prefill"], payload, to_host(embeddings), slot, wanted)
    cache, companions = used_cache(model, slot)
    before = [to_host(array) for array in cache.arrays]
    logits = [model.prefill_embeddings(payload, embeddings, cache, slot)]
    found.append(compare("prefill.logits.module", logits[0], wanted["prefill.logits"][-1]))
    found += _cache_rows(model, cache, before, slot, length, wanted)
    said = [int(token) for token in wanted["greedy.tokens"]]
    found.append(_extended(model, payload, embeddings, slot, said, wanted))
    if case.followup:
        found += _second_turn(model, case, payload, wanted)
    for step, token in enumerate(said[:-1]):
        positions = {slot: length + step} | {other: at + step for other, at in companions.items()}
        ids = {slot: token} | dict.fromkeys(companions, int(payload.ids[-1]))
        logits.append(model.decode(ids, positions, cache)[slot])
    found.append(compare("decode.logits", np.stack(logits), wanted["greedy.logits"]))
    found.append(compare("decode.tokens", np.argmax(np.stack(logits), -1), wanted["greedy.tokens"], exact=True))
    return found


def _tapped_prefill(
    model: Model, program: Program, payload: Payload, embeddings: np.ndarray, slot: int, wanted: Arrays
) -> list[dict[str, Any]]:
    length, bucket = len(payload.ids), program.sizes()["S"]
    arguments = {
        "embeddings": np.pad(embeddings[:length], ((0, bucket - length), (0, 0))),
        "types": np.pad(payload.types, (0, bucket - length)),
        "length": np.int32(length),
        "slot": np.int32(slot),
    }
    results = [to_host(value) for value in model.call(program, arguments, model.new_cache())]
    names = tap_names("prefill", model.architecture)
    found = []
    for name, value in zip(names, results[1:], strict=True):
        stage = "prefill.logits" if name == "all_logits" else f"prefill.{name}"
        found.append(compare(stage, value[:length], wanted[stage]))
    return found


def used_cache(model: Model, slot: int) -> tuple[Cache, dict[int, int]]:
    """A cache in use: ``slot`` holds the rows of a request cancelled while decoding, another slot a companion's.

    Returns (cache, companion's slot -> its rows).
    """
    cache = model.new_cache()
    owner = model.prepare(messages_for(FORMER_OWNER), [])
    other = (slot + 1) % model.bundle.cache.slots
    used, length = {slot, other}, len(owner.ids)
    ids = {place: int(np.argmax(model.prefill(owner, cache, place))) for place in used}
    for step in range(DECODED):
        logits = model.decode(ids, dict.fromkeys(used, length + step), cache)
        ids = {place: int(np.argmax(row)) for place, row in logits.items()}
    return cache, dict.fromkeys(used - {slot}, length + DECODED)


def _cache_rows(
    model: Model, cache: Cache, before: list[np.ndarray], slot: int, length: int, wanted: Arrays
) -> list[dict[str, Any]]:
    """Rows the prompt wrote, and every other row of the cache, which must hold the bytes it held ``before``."""
    found = []
    for layer in range(model.architecture.text.layers):
        keys, values = (to_host(array) for array in cache.arrays[2 * layer : 2 * layer + 2])
        found.append(compare(f"prefill.keys.{layer}", keys[slot, :, :, :length], wanted[f"prefill.keys.{layer}"]))
        found.append(compare(f"prefill.values.{layer}", values[slot, :, :length], wanted[f"prefill.values.{layer}"]))
        old_keys, old_values = before[2 * layer : 2 * layer + 2]
        keys[slot, :, :, :length], values[slot, :, :length] = (
            old_keys[slot, :, :, :length],
            old_values[slot, :, :length],
        )
        changed = np.array([np.count_nonzero(keys != old_keys), np.count_nonzero(values != old_values)])
        found.append(compare(f"prefill.untouched.{layer}", changed, np.zeros(2, int), exact=True))
    return found


def _extended(
    model: Model, payload: Payload, embeddings: Any, slot: int, said: list[int], wanted: Arrays
) -> dict[str, Any]:
    cache, count = model.new_cache(), min(EXTENDED, len(said) - 1, model.bundle.buckets.extend[-1])
    model.prefill_embeddings(payload, embeddings, cache, slot)
    logits = model.extend(said[:count], len(payload.ids), cache, slot)
    return compare("extend.logits", logits, wanted["greedy.logits"][count])


def _second_turn(model: Model, case: Case, payload: Payload, wanted: Arrays) -> list[dict[str, Any]]:
    """The conversation's last turn appended behind its first prompt, as a server goes on, against one whole prefill.

    The slot holds the first prompt and some answer; what the two prompts share stays, all else is written over.
    """
    first = model.prepare(case.first_turn(), case.open(*_look(model)))
    differing = np.flatnonzero(first.ids != payload.ids[: len(first.ids)])
    shared = int(differing[0]) if len(differing) else len(first.ids)
    cache, length, piece = model.new_cache(), len(payload.ids), model.bundle.buckets.extend[-1]
    model.prefill_embeddings(first, model.merge(first, model.image_tokens(first)), cache, case.slot)
    model.decode({case.slot: int(first.ids[0])}, {case.slot: len(first.ids)}, cache)
    ends = [min(begin + piece, length) for begin in range(shared, length, piece)]
    logits = [model.extend(payload.ids[b:e], b, cache, case.slot) for b, e in zip([shared, *ends], ends, strict=False)]
    places = [end - 1 for end in ends]
    found = [compare("extend.logits.turn", np.stack(logits), wanted["prefill.logits"][places])]
    for layer in range(model.architecture.text.layers):
        keys, values = (to_host(array)[case.slot] for array in cache.arrays[2 * layer : 2 * layer + 2])
        name = f"keys.{layer}", f"values.{layer}"
        found.append(compare(f"extend.{name[0]}", keys[:, :, :length], wanted[f"prefill.{name[0]}"]))
        found.append(compare(f"extend.{name[1]}", values[:, :length], wanted[f"prefill.{name[1]}"]))
    return found


def _look(model: Model) -> tuple[Any, int, Any]:
    """Size of a crop and margins, as a case's pictures need them."""
    processor = model.architecture.processor
    return processor.image_size, processor.patch_size, processor.overlap_margins
