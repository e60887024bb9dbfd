"""The examples of docs/python-api.md run as they stand, one after the other."""

import re
from pathlib import Path
from typing import Any

import numpy as np

PAGE = Path("docs/python-api.md")


def test_the_examples(bundle_folder: Path) -> None:
    names: dict[str, Any] = {}
    for example in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        exec(compile(example, str(PAGE), "exec"), names)
    assert Path(names["folder"]).resolve() == bundle_folder
    assert names["answer"]
    np.testing.assert_array_equal(names["logits"], names["logits_again"])
    assert names["more"].shape == names["step"].shape == names["logits"].shape
    assert names["features_on_host"].shape[0] == names["crops"]
    assert names["refusal"] == "slots[0]: got 4, expected 0 to 3. Fix: pass an integer in that range"
    assert names["refusal"] in PAGE.read_text(encoding="utf-8")


def test_the_payload_table_is_the_record(bundle_folder: Path) -> None:
    from molmo2_iree.preprocess.payload import Payload

    listed = re.findall(r"^\| `(\w+)` \| (float32|int32) \[", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [name for name, _ in listed] == list(Payload.__dataclass_fields__)
