"""The default checkpoint: a miniature in the original release format, made from a seed and byte-identical everywhere.

Only this package knows that it is a miniature: it is locked, fetched, converted and compiled as any other checkpoint.
"""

import hashlib
import json
from importlib import resources
from pathlib import Path

from molmo2_iree.build.embedded_config import DEFAULT, OLMO, Variant, json_files
from molmo2_iree.build.embedded_tensors import weight_files
from molmo2_iree.build.embedded_tokenizer import tokenizer_json
from molmo2_iree.detect import read_architecture
from molmo2_iree.lock import EmbeddedSource, Lock, LockedFile, MaskPolicy, content_revision

__all__ = ["DEFAULT", "OLMO", "Variant", "chat_template", "checkpoint_files", "embedded_lock", "write_checkpoint"]

VARIANTS = {"default": DEFAULT, "olmo": OLMO}
"""By the name that a lock's source gives."""


def chat_template() -> str:
    """The chat template: text that renders messages as contract section 4 says."""
    return resources.files("molmo2_iree.build").joinpath("embedded_template.jinja").read_text(encoding="utf-8")


def checkpoint_files(seed: int = 0, variant: Variant = DEFAULT) -> dict[str, bytes]:
    """Every file of the checkpoint by name."""
    data = json_files(variant) | {"tokenizer.json": tokenizer_json(variant)}
    files = {name: (json.dumps(value, indent=2, sort_keys=True) + "\n").encode() for name, value in data.items()}
    files["chat_template.jinja"] = chat_template().encode()
    return dict(sorted((files | weight_files(variant, seed)).items()))


def write_checkpoint(folder: Path, seed: int = 0, variant: Variant = DEFAULT) -> list[Path]:
    """Write the checkpoint's files into ``folder``, each by rename; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, data in checkpoint_files(seed, variant).items():
        temporary = folder / f".{name}.tmp"
        temporary.write_bytes(data)
        paths.append(temporary.replace(folder / name))
    return paths


def embedded_lock(
    seed: int = 0, variant: str = "default", name: str = "embedded", mask_policy: MaskPolicy = "bidirectional"
) -> Lock:
    """The lock of a variant: sizes and digests of the files as generated, the revision made from them."""
    source = EmbeddedSource.model_validate({"seed": seed, "variant": variant})
    files = checkpoint_files(seed, VARIANTS[source.variant])
    locked = {name: LockedFile(size=len(data), sha256=hashlib.sha256(data).hexdigest()) for name, data in files.items()}
    return Lock(
        name=name,
        source=source,
        revision=content_revision(locked),
        mask_policy=mask_policy,
        files=locked,
        architecture=read_architecture(
            {name: json.loads(data) for name, data in files.items() if name.endswith("config.json")}
        ),
    )
