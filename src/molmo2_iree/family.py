"""Which model a checkpoint is. Anything but Molmo2 is refused by name, with the nearest supported model."""

from collections.abc import Mapping

from molmo2_iree.errors import CheckpointError, UnsupportedError
from molmo2_iree.lock import MaskPolicy

MASK_POLICIES: Mapping[str, MaskPolicy] = {
    "allenai/Molmo2-4B": "bidirectional",
    "allenai/Molmo2-8B": "bidirectional",
    "allenai/Molmo2-O-7B": "bidirectional",
}
"""Repositories whose mask policy is known; for every other source the user states it."""

COMPARE = "compare with allenai/Molmo2-4B's file of that name"
NEAREST = "the nearest supported model is allenai/Molmo2-4B"

_POINT = ("Molmo Point", f"Molmo Point needs a pointing head; {NEAREST}, which points in text")
_ACT = ("MolmoAct", f"MolmoAct predicts a robot's actions; {NEAREST}")
_V1 = ("Molmo v1", f"Molmo v1 has another vision tower and maps image positions in another way; {NEAREST}")
SIBLINGS: Mapping[str, tuple[str, str]] = {
    "molmo": _V1,
    "molmoe": _V1,
    "molmopoint": _POINT,
    "molmo2point": _POINT,
    "molmoact": _ACT,
    "molmoact2": _ACT,
    "molmo2act": _ACT,
    "molmomotion": ("Molmo Motion", f"Molmo Motion predicts paths of points; {NEAREST}"),
    "molmoweb": (
        "MolmoWeb",
        "MolmoWeb is supported as released, under model_type molmo2, with its mask policy stated: "
        f"molmo2 lock --mask-policy causal; {NEAREST}",
    ),
}
"""Related models by model_type without _ and -: their names, and what to use instead."""


def unsupported(field: str, got: object, expected: str) -> UnsupportedError:
    """A value of a Molmo2 checkpoint that this project does not build."""
    return UnsupportedError(field, got=got, expected=expected, fix=f"use a checkpoint with that; {NEAREST}")


def check_kind(config: object) -> None:
    """Refuse a config.json of any other model by name, with the nearest supported one."""
    if not isinstance(config, Mapping):
        raise CheckpointError("config.json", got=repr(config)[:120], expected="a JSON object", fix=COMPARE)
    kind, names = _name(config, "model_type"), _names(config, "architectures")
    for field, given in (("model_type", kind), *(("architectures", name) for name in names)):
        name, instead = SIBLINGS.get(_plain(given).partition("for")[0], ("", ""))
        if name:
            raise UnsupportedError(
                f"config.json {field}", got=f"{given!r}, which is {name}", expected="Molmo2", fix=instead
            )
    if kind != "molmo2":
        nearest = "allenai/Molmo2-O-7B" if _plain(kind).startswith("olmo") else "allenai/Molmo2-4B"
        raise UnsupportedError(
            "config.json model_type",
            got=repr(kind) if kind else "none",
            expected="'molmo2'",
            fix=f"this project builds Molmo2 only; the nearest supported model is {nearest}",
        )
    if "Molmo2ForConditionalGeneration" not in names:
        raise unsupported("config.json architectures", names, "Molmo2ForConditionalGeneration")
    for field in ("quantization_config", "quantization"):
        if config.get(field) is not None:
            got = f"quantized weights ({config[field]!r})"[:120]
            raise unsupported(f"config.json {field}", got, "float weights and no such field")


def _name(config: Mapping[str, object], field: str) -> str:
    value = config.get(field)
    if not isinstance(value, str | None):
        raise CheckpointError(f"config.json {field}", got=repr(value)[:120], expected="a name", fix=COMPARE)
    return value or ""


def _names(config: Mapping[str, object], field: str) -> list[str]:
    value = config.get(field)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise CheckpointError(f"config.json {field}", got=repr(value)[:120], expected="a list of names", fix=COMPARE)
    return value


def is_molmoweb(*names: object) -> bool:
    """Whether a repository, folder or configured name is that of a MolmoWeb checkpoint, which no field tells.

    "allenai/MolmoWeb-4B" and "models/molmo_web" are, "allenai/Molmo2-4B" is not.
    """
    return any("molmoweb" in _plain(str(name)) for name in names)


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
