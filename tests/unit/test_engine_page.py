"""The examples of docs/engine.md run as they stand, one after the other."""

import json
import re
from pathlib import Path
from typing import Any

PAGE = Path("docs/engine.md")


def test_the_examples(bundle_folder: Path) -> None:
    names: dict[str, Any] = {}
    for example in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        exec(compile(example, str(PAGE), "exec"), names)
    assert bundle_folder == Path(names["model"].bundle.folder).resolve()
    assert names["end"].reason in ("stop", "length")
    assert names["end"].usage.answer > 0
    assert names["text"].startswith(names["text"].strip("\n"))
    assert names["words"]
    assert names["ended"].usage.prompt == len(names["ids"])
    assert json.loads(names["constrained"])["animal"] in ("cat", "dog")


def test_every_counter_and_parameter_is_on_the_page() -> None:
    from molmo2_iree.runtime.counters import Counters, Metrics
    from molmo2_iree.runtime.sampling import Sampling
    from molmo2_iree.runtime.stopping import Stopping

    page = PAGE.read_text(encoding="utf-8")
    for kind in (Counters, Metrics, Sampling, Stopping):
        missing = [name for name in kind.__dataclass_fields__ if not re.search(rf"`[^`\n]*\b{name}\b[^`\n]*`", page)]
        assert not missing, kind
