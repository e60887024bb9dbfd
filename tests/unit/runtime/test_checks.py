"""Every stage called directly with what it must not see: refused in words, before any module is called."""

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from molmo2_iree.errors import RequestError
from molmo2_iree.runtime.device import Module
from molmo2_iree.runtime.model import Cache, Model
from molmo2_iree.stages import STAGES, Program, parse_program, signature

PROGRAMS = ("vision-c3", "connector-c3", "merge-s128", "prefill-s128", "extend-t16x256", "decode-b4x256")
GROUPS, WIDTH, VOCABULARY, PATCH = 32, 80, 640, 514


def fitting(model: Model, program: Program) -> dict[str, np.ndarray]:
    """Arguments that a stage takes: zeros, no group, and a length of one."""
    stage = STAGES[program.stage]
    sides, _ = signature(program, model.architecture, model.bundle.cache.layout())
    arguments = {name: np.zeros(shape, dtype) for name, shape, dtype in sides[: len(stage.arguments)]}
    if "length" in arguments:
        arguments["length"] = np.array(1, np.int32)
    return arguments


@pytest.fixture(scope="module")
def cache(model: Model) -> Cache:
    return model.new_cache()


def run(model: Model, name: str, arguments: Any, cache: Cache) -> list[Any]:
    return model.call(name, arguments, cache if STAGES[parse_program(name).stage].cache else None)


def refused(model: Model, name: str, cache: Cache, **changed: Any) -> str:
    before = list(cache.arrays)
    with pytest.raises(RequestError) as refusal:
        run(model, name, fitting(model, parse_program(name)) | changed, cache)
    assert cache.arrays == before or all(a is b for a, b in zip(cache.arrays, before, strict=True))
    return str(refusal.value)


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """No module may be called."""

    def native(self: Module, *values: Any) -> Any:
        raise AssertionError(f"{self.program.name} was called")

    monkeypatch.setattr(Module, "__call__", native)


@pytest.mark.parametrize("name", PROGRAMS)
def test_fitting_arguments(model: Model, cache: Cache, name: str) -> None:
    assert run(model, name, fitting(model, parse_program(name)), cache)


RANGES = [
    ("connector-c3", "groups", (5, 2), 147, "groups[5, 2]: got 147, expected -1 to 146"),
    ("connector-c3", "groups", (0, 0), -2, "groups[0, 0]: got -2, expected -1 to 146"),
    ("connector-c3", "groups", (0, 0), -(2**31), "got -2147483648"),
    ("merge-s128", "ids", (127,), VOCABULARY, f"ids[127]: got {VOCABULARY}, expected 0 to {VOCABULARY - 1}"),
    ("merge-s128", "ids", (0,), -1, "ids[0]: got -1"),
    ("merge-s128", "ids", (9,), PATCH, "count (= image_patch ids): got 0, expected 1"),
    ("merge-s128", "count", (), 1, "count (= image_patch ids): got 1, expected 0"),
    ("merge-s128", "count", (), -1, "got -1, expected 0"),
    ("prefill-s128", "types", (3,), 2, "types[3]: got 2, expected 0 to 1"),
    ("prefill-s128", "length", (), 0, "length: got 0, expected 1 to 128"),
    ("prefill-s128", "length", (), 129, "length: got 129, expected 1 to 128"),
    ("prefill-s128", "slot", (), 4, "slot: got 4, expected 0 to 3"),
    ("prefill-s128", "slot", (), -1, "slot: got -1, expected 0 to 3"),
    ("extend-t16x256", "ids", (15,), VOCABULARY, "ids[15]"),
    ("extend-t16x256", "length", (), 17, "length: got 17, expected 1 to 16"),
    ("extend-t16x256", "start", (), 256, "start: got 256, expected 0 to 255"),
    ("extend-t16x256", "start", (), -1, "start: got -1"),
    ("extend-t16x256", "slot", (), 2**31 - 1, "slot: got 2147483647"),
    ("decode-b4x256", "ids", (3,), -5, "ids[3]: got -5"),
    ("decode-b4x256", "positions", (2,), 256, "positions[2]: got 256, expected 0 to 255"),
    ("decode-b4x256", "positions", (2,), -1, "positions[2]: got -1"),
    ("decode-b4x256", "active", (1,), 2, "active[1]: got 2, expected 0 to 1"),
]


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize(("name", "argument", "place", "value", "words"), RANGES, ids=[str(row[4]) for row in RANGES])
def test_values_out_of_range(
    model: Model, cache: Cache, name: str, argument: str, place: tuple[int, ...], value: int, words: str
) -> None:
    array = fitting(model, parse_program(name))[argument]
    array[place] = value
    message = refused(model, name, cache, **{argument: array})
    assert words in message
    assert message.startswith(f"stage {parse_program(name).stage}, ")


@pytest.mark.usefixtures("untouched")
def test_a_span_must_end_inside_the_context(model: Model, cache: Cache) -> None:
    message = refused(model, "extend-t16x256", cache, start=250, length=7)
    assert "start: got 250, expected 0 to 249" in message


def spoilt(array: np.ndarray) -> dict[str, Any]:
    """What is not this array, by name."""
    other = np.float64 if array.dtype == np.float32 else np.int64
    return {
        "None": None,
        "a string": "0",
        "a list": np.atleast_1d(array).tolist(),
        "bytes": b"",
        "a float": 0.5,
        "wider": array.astype(other),
        "narrower": array.astype(np.float16 if array.dtype == np.float32 else np.int16),
        "unsigned": array.astype(np.uint32),
        "bool": array.astype(bool),
        "complex": array.astype(np.complex64),
        "objects": array.astype(object),
        "other byte order": array.astype(array.dtype.newbyteorder(">")),
        "records": array.astype([("a", array.dtype)]),
        "text": array.astype("U3"),
        "times": array.astype(np.int64).astype("M8[s]"),
        "one axis more": array[None],
        "one row more": np.concatenate([array, array[:1]]) if array.ndim else array[None],
        "one row less": array[1:] if array.ndim else array[None],
        "nothing": array[:0] if array.ndim else np.zeros(0, array.dtype),
        "masked": np.ma.masked_array(array, mask=np.ones(array.shape, bool)),
        "a number": np.float32(0),
        "too many bits": 2**31,
        "very many bits": 10**5000,
        "True": True,
    }


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("name", PROGRAMS)
def test_arguments_of_another_kind(model: Model, cache: Cache, name: str) -> None:
    for argument, array in fitting(model, parse_program(name)).items():
        for kind, value in spoilt(array).items():
            message = refused(model, name, cache, **{argument: value})
            assert argument in message, kind
            assert "got" in message, kind
        if array.ndim:
            assert argument in refused(model, name, cache, **{argument: 0})


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("name", PROGRAMS)
def test_other_arguments(model: Model, cache: Cache, name: str) -> None:
    arguments = fitting(model, parse_program(name))
    first = next(iter(arguments))
    fewer = {key: value for key, value in arguments.items() if key != first}
    for wrong in (
        {},
        fewer,
        arguments | {"extra": 0},
        fewer | {first.upper(): 0},
        arguments | {3: 0},
        None,
        [1],
        "ids",
    ):
        with pytest.raises(RequestError):
            run(model, name, wrong, cache)


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("name", PROGRAMS)
def test_other_caches(model: Model, cache: Cache, name: str) -> None:
    arguments, arrays = fitting(model, parse_program(name)), cache.arrays
    wrong: list[Any] = [cache] if not STAGES[parse_program(name).stage].cache else [None]
    if wrong == [None]:
        wrong += [Cache([]), Cache(arrays[1:]), Cache(arrays[::-1]), Cache([*arrays, arrays[0]]), arrays, 3, "cache"]
        wrong += [Cache(None), Cache(tuple(arrays)), Cache([None, *arrays[1:]]), Cache([[1.0], *arrays[1:]])]  # pyright: ignore
        wrong += [Cache([np.zeros(arrays[0].shape), *arrays[1:]])]
    for value in wrong:
        with pytest.raises(RequestError):
            model.call(name, arguments, value)


@pytest.mark.parametrize(
    "program",
    ["", "vision", "vision-c4", "vision-c3-taps", "nope-c3", None, 3, [], Program("vision", (4,)), Program("x", (3,)),
     Program("vision", ()), Program("extend", (16,)), Program("decode", (1, 256), taps=True)],
    ids=repr,
)  # fmt: skip
def test_programs_that_are_none(model: Model, program: Any) -> None:
    with pytest.raises(RequestError, match=r"program: got .*expected one of vision-c3, connector-c3"):
        model.call(program, {})


def test_arrays_that_only_lie_differently(model: Model) -> None:
    generator = np.random.default_rng(1)
    patches = generator.standard_normal((3, 49, 588), np.float32)
    expected = np.asarray(model.call("vision-c3", {"patches": patches})[0].to_host())
    spread = np.zeros((6, 49, 588), np.float32)
    spread[::2] = patches
    frozen = patches.copy()
    frozen.flags.writeable = False
    for same in (np.asfortranarray(patches), spread[::2], patches[::-1].copy()[::-1], frozen):
        np.testing.assert_array_equal(model.call("vision-c3", {"patches": same})[0].to_host(), expected)


def test_device_arrays_are_checked(model: Model, cache: Cache) -> None:
    zeros = model.device.zeros((3, 49, 588), "float32")
    features = model.call("vision-c3", {"patches": zeros})[0]
    np.testing.assert_array_equal(
        features.to_host(), model.call("vision-c3", fitting(model, parse_program("vision-c3")))[0].to_host()
    )
    for wrong in (model.device.zeros((5, 49, 588), "float32"), model.device.zeros((3, 49, 588), "bfloat16"), features):
        with pytest.raises(RequestError, match="argument patches"):
            model.call("vision-c3", {"patches": wrong})
    with pytest.raises(RequestError, match="argument groups"):
        model.call("connector-c3", {"features": features, "groups": zeros})


def test_numbers_that_are_none_harm_nobody(model: Model, cache: Cache) -> None:
    for name in PROGRAMS:
        for argument, array in fitting(model, parse_program(name)).items():
            if array.dtype == np.float32:
                for number in (np.nan, np.inf, -np.inf, 3e38, 1e-45):
                    run(
                        model,
                        name,
                        fitting(model, parse_program(name)) | {argument: np.full_like(array, number)},
                        cache,
                    )
    healthy = run(model, "vision-c3", fitting(model, parse_program("vision-c3")), cache)[0].to_host()
    assert np.isfinite(healthy).all()


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(-2, 700),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.integers(-3, 700), max_size=20),
    st.dictionaries(st.integers(-1, 5), st.integers(-2, 2000), max_size=4),
    st.builds(
        lambda shape, dtype, fill: np.full(shape, fill).astype(dtype),
        st.lists(st.sampled_from([0, 1, 3, 4, 16, 32, 49, 80, 128, 588]), max_size=3).filter(
            lambda shape: np.prod(shape) < 10**6
        ),
        st.sampled_from(["float32", "int32", "int64", "uint8", "bool", ">i4", "float16"]),
        st.integers(-2, 130),
    ),
)


@given(st.sampled_from(PROGRAMS), st.data())
@settings(deadline=None, max_examples=250, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_reaches_a_stage_only_refusals_leave_it(
    model: Model, cache: Cache, name: str, data: st.DataObject
) -> None:
    arguments: dict[str, Any] = dict(fitting(model, parse_program(name)))
    for argument in data.draw(st.sets(st.sampled_from(sorted(arguments)), min_size=1)):
        array = arguments[argument]
        if array.dtype == np.int32 and data.draw(st.booleans()):
            array[...] = data.draw(st.integers(-(2**31), 2**31 - 1) | st.integers(-2, 300))
        else:
            arguments[argument] = data.draw(VALUES)
    with contextlib.suppress(RequestError):
        assert run(model, name, arguments, cache)


@given(st.data())
@settings(deadline=None, max_examples=250, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_reaches_the_line_only_refusals_leave_it(model: Model, cache: Cache, data: st.DataObject) -> None:
    calls = {
        "extend": (VALUES, VALUES, st.just(cache) | VALUES, VALUES),
        "decode": (VALUES, VALUES, st.just(cache) | VALUES),
        "vision": (VALUES,),
        "connector": (VALUES, VALUES),
        "merge": (VALUES, VALUES),
        "prefill": (VALUES, st.just(cache) | VALUES, VALUES),
        "prefill_embeddings": (VALUES, VALUES, st.just(cache) | VALUES, VALUES),
        "image_tokens": (VALUES,),
        "call": (VALUES, VALUES, VALUES),
        "prepare": (VALUES, VALUES),
    }
    name = data.draw(st.sampled_from(sorted(calls)))
    with contextlib.suppress(RequestError):
        getattr(model, name)(*(data.draw(argument) for argument in calls[name]))
