import hashlib
import io
import json
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from molmo2_iree import cli
from molmo2_iree.build.embedded import OLMO, write_checkpoint
from molmo2_iree.build.embedded_config import json_files
from molmo2_iree.commands.inspect import inspect
from molmo2_iree.commands.show import draw, of_size, table
from molmo2_iree.detect import read_architecture
from molmo2_iree.errors import BundleError, CheckpointError, UnsupportedError, WeightsError
from molmo2_iree.identity import digest, flatten
from molmo2_iree.manifest import manifest_text
from molmo2_iree.stages import STAGE_ABI, CacheLayout, programs, signature

BUCKETS = {"crops": [3, 9], "tokens": [128], "extend": [16], "slots": [1, 2], "context": [256]}
HERE = f"{platform.machine().lower().replace('arm64', 'aarch64').replace('amd64', 'x86_64')}-unknown-linux-gnu"


def said(capsys: pytest.CaptureFixture[str], path: Path, **options: Any) -> dict[str, str]:
    """What a verb printed, as first cell -> the rest of its line."""
    inspect(path, **options)
    return lines_of(capsys.readouterr().out)


def lines_of(text: str) -> dict[str, str]:
    rows = [line.strip().partition("  ") for line in text.splitlines() if line.startswith("  ")]
    return {head: tail.strip() for head, _, tail in rows}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def test_checkpoint_directory_in_words(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = said(capsys, checkpoint)
    assert rows["family"] == "Molmo2"
    assert rows["text"].startswith("Qwen3-like (norms before attention and MLP, q/k norm on each head), 4 layers")
    assert rows["video"] == "its files say so; this build does not run it yet"
    assert rows["mask policy"].startswith("needed from the pin, no file says it")
    assert rows["parameters"] == "623,280 in 146 tensors"
    assert (rows["count"], rows["size"], rows["stored as"]) == ("146 in 2 file(s)", "2.4 MiB", "F32 (146)")
    assert rows["ViT blocks"] == "8 declared, 6 stored, 6 used"
    assert rows["agreement"] == "every tensor that config.json calls for is there, in its shape"
    assert rows["vision-c9"].split("  ")[0] == "992.4 KiB"


def test_sizes_come_from_a_configuration_if_given(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = said(capsys, checkpoint, config=Path(__file__).parents[2] / "config" / "family-qwen.yaml")
    assert {"vision-c3", "prefill-s768", "extend-t16x1024", "decode-b4x1024"} < rows.keys()
    assert (rows["in total"], rows["shares"]) == ("4.0 MiB", "1.0 MiB for each of 4 slots of 1,024 rows (float32)")


def test_molmoweb_goes_by_folder_or_configured_name(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = "needed from the pin: it goes by the name of MolmoWeb, trained causal"
    by_folder = checkpoint.rename(checkpoint.parent / "MolmoWeb-4B")
    assert said(capsys, by_folder)["mask policy"].startswith(told)
    config = json.loads((by_folder / "config.json").read_text()) | {"_name_or_path": "allenai/MolmoWeb-4B"}
    (by_folder / "config.json").write_text(json.dumps(config))
    assert said(capsys, by_folder.rename(checkpoint))["mask policy"].startswith(told)


def test_every_tensor_is_listed_if_asked(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = said(capsys, checkpoint, verbose=True)
    assert rows["model.transformer.ln_f.weight"].split()[:2] == ["F32", "80"]


def test_a_sibling_is_refused_by_name(checkpoint: Path) -> None:
    (checkpoint / "config.json").write_text('{"model_type": "molmo", "architectures": ["MolmoForCausalLM"]}')
    with pytest.raises(UnsupportedError, match="which is Molmo v1"):
        inspect(checkpoint)


@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff", b'{"a":' + b"[" * 100_000])
def test_a_file_that_is_no_json_object_is_refused(checkpoint: Path, content: bytes) -> None:
    (checkpoint / "preprocessor_config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match="no JSON object"):
        inspect(checkpoint)


def test_tensors_that_do_not_agree_are_told_and_refused(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    config["text_config"]["intermediate_size"] += 16
    (checkpoint / "config.json").write_text(json.dumps(config))
    with pytest.raises(WeightsError, match=r"blocks\.0\.mlp\.ff_out\.weight|blocks\.0\.mlp\.ff_proj\.weight"):
        inspect(checkpoint)
    assert lines_of(capsys.readouterr().out)["agreement"] == "refused, see the last line"


def test_a_checkpoint_without_weights_still_says_what_it_is(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkpoint / "model.safetensors.index.json").unlink()
    with pytest.raises(WeightsError, match="no weights"):
        inspect(checkpoint)
    assert lines_of(capsys.readouterr().out)["family"] == "Molmo2"


def test_without_the_build_extra_it_says_so(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.delitem(sys.modules, "molmo2_iree.build.tensors", raising=False)
    assert said(capsys, checkpoint)["not read"].endswith("pip install 'molmo2-iree[build]'")


@pytest.mark.parametrize("name", ["empty", "absent"])
def test_anything_else_is_refused_in_words(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"expected a checkpoint directory \(config.json\) or a bundle"):
        inspect(tmp_path / name)


# --- bundles -------------------------------------------------------------------------------------------------------


def stored(folder: Path, name: str, data: bytes) -> dict[str, Any]:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return {"file": name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def described(side: list[tuple[str, tuple[int, ...], str]]) -> list[dict[str, Any]]:
    return [{"name": name, "shape": list(shape), "dtype": dtype} for name, shape, dtype in side]


def write_bundle(folder: Path, *, triple: str = HERE, gates_on: str = "cpu", **changed: Any) -> Path:
    """A bundle whose modules and archives are a few bytes: everything but running it is as in a real one."""
    contents = json_files(OLMO)
    files = {n: stored(folder, f"processor/{n}", json.dumps(c).encode()) for n, c in sorted(contents.items())}
    architecture, cache = read_architecture(contents), {"slots": 2, "context": 256, "dtype": "float32"}
    layout = CacheLayout(2, 256, "float32")
    modules = {
        p.name: stored(folder, f"modules/{p.name}.vmfb", b"m" * 512)
        | dict(zip(("arguments", "results"), map(described, signature(p, architecture, layout)), strict=True))
        for p in programs(BUCKETS)
    }
    tensor = {"dtype": "float32", "shape": [2], "sha256": "0" * 64}
    archives = {
        name: stored(folder, f"weights/{name}.irpa", b"w" * 2048) | {"tensors": dict.fromkeys("ab", tensor)}
        for name in ("vision", "text")
    }
    compatibility = flatten(
        {
            "abi": STAGE_ABI,
            "architecture": architecture.model_dump(mode="json"),
            "buckets": BUCKETS,
            "cache": cache,
            "checkpoint": {"name": "small", "revision": "a" * 40},
            "files": {name: file["sha256"] for name, file in files.items()},
            "mask_policy": "bidirectional",
            "storage": "float32",
            "target": {"name": "cpu", "triple": triple, "cpu": "generic", "flags": []},
            "toolchain": {"iree": version("iree-base-runtime"), "jax": "0.10.2"},
        }
    )
    compatibility |= changed
    manifest = {
        "schema_version": 1,
        "compatibility_digest": digest(compatibility),
        "compatibility": compatibility,
        "gates_on": gates_on,
        "modules": modules,
        "archives": archives,
        "files": files,
    }
    (folder / "manifest.json").write_text(manifest_text(manifest))
    return folder


def test_bundle_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = write_bundle(tmp_path / "bundle")
    rows = said(capsys, bundle)
    assert rows["checkpoint"] == f"small at {'a' * 40}"
    assert (rows["weights"], rows["target"]) == ("stored as float32", f"cpu: {HERE}, generic")
    assert rows["buckets"] == "context 256; crops 3, 9; extend 16; slots 1, 2; tokens 128"
    assert rows["on this machine"] == "opens: every file is as the manifest says"
    assert rows["compatibility"] == json.loads((bundle / "manifest.json").read_text())["compatibility_digest"]
    assert rows["text"].startswith("Olmo3-like")
    assert rows["mask policy"] == "bidirectional, as its pin states"
    assert rows["no verdict"] == "none found beside the bundle: snakemake gates"
    # 2 x 4 layers x 4 kv heads x 256 rows x 16, in float32
    assert (rows["in total"], rows["shares"]) == ("1.0 MiB", "512.0 KiB for each of 2 slots of 256 rows (float32)")


def test_sizes_and_totals_of_a_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inspect(write_bundle(tmp_path / "bundle"), verbose=True)
    text = capsys.readouterr().out
    assert [line.split()[1:] for line in text.splitlines() if line.startswith("  total")][:2] == [
        ["4.5", "KiB"],
        ["4.0", "KiB"],
    ]
    assert "  vision   2        2.0 KiB" in text.splitlines()
    assert "  merge-s128      in    count         int32    one value" in text.splitlines()


def test_a_bundle_for_another_machine_is_checked_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = write_bundle(tmp_path / "bundle", triple="riscv64-unknown-linux-gnu", gates_on="none")
    rows = said(capsys, bundle)
    assert rows["on this machine"] == (
        "does not run (a bundle for riscv64-unknown-linux-gnu); every file is as the manifest says"
    )
    assert rows["not run here"].startswith("gates of this target do not run where it is built")
    assert rows["family"] == "Molmo2"
    (bundle / "modules" / "vision-c3.vmfb").write_bytes(b"n" * 512)
    with pytest.raises(BundleError, match=r"vision-c3\.vmfb"):
        inspect(bundle)


def test_a_damaged_bundle_is_told_then_refused_with_its_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = write_bundle(tmp_path / "bundle")
    (bundle / "processor" / "config.json").write_text("{}")
    monkeypatch.setattr(sys, "argv", ["molmo2", "inspect", str(bundle)])
    with pytest.raises(SystemExit) as left:
        cli.main()
    told = capsys.readouterr()
    assert left.value.code == BundleError.exit_code == 9
    assert lines_of(told.out)["on this machine"] == "refused, see the last line"
    assert "vision-c9" in lines_of(told.out)
    assert told.err.startswith("molmo2: ")
    assert "config.json" in told.err


@pytest.mark.parametrize(
    ("changed", "field"),
    [({"toolchain.iree": "0.1"}, "toolchain.iree"), ({"abi": 0}, "abi"), ({"storage": "int3"}, "compatibility")],
)
def test_a_bundle_of_another_kind_is_refused_by_field(tmp_path: Path, changed: dict[str, Any], field: str) -> None:
    with pytest.raises(BundleError, match=field):
        inspect(write_bundle(tmp_path / "bundle", **changed))


def test_an_incomplete_bundle_is_refused_as_one(tmp_path: Path) -> None:
    (write_bundle(tmp_path / "bundle") / "manifest.json").unlink()
    with pytest.raises(BundleError, match="the manifest is written last"):
        inspect(tmp_path / "bundle")


def write_verdict(bundle: Path, measuring: str, gate: str, verdicts: object, **more: object) -> None:
    compatibility = json.loads((bundle / "manifest.json").read_text())["compatibility_digest"]
    folder = bundle.parent / "records" / f"{compatibility[:12]}-{measuring}"
    folder.mkdir(parents=True, exist_ok=True)
    content = {"gate": gate, "target": "cpu", "verdicts": verdicts}
    (folder / f"{gate}.verdict.json").write_text(json.dumps(content | more))


def test_verdicts_beside_a_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = write_bundle(tmp_path / "bundle")
    exact = {"stage": "input.ids", "kind": "exact", "passed": True}
    near = {"stage": "vision.block.3", "kind": "close", "passed": True, "margin": 0.25}
    nearer = {"stage": "decode.logits", "kind": "close", "passed": True, "margin": 0.5}
    failed = {"stage": "merge.embeddings", "kind": "close", "passed": False, "margin": 2.0}
    write_verdict(bundle, "00000000", "native-photo", [exact, near, nearer])
    write_verdict(bundle, "00000000", "native-text", [exact])
    write_verdict(bundle, "00000000", "specification-text", [exact, failed])
    write_verdict(bundle, "00000000", "specification-photo", 7)
    for gate, first in (("mlx-shipped-photo", failed), ("mlx-shipped-text", None)):
        note: dict[str, Any] = {"informational": True, "first_difference": first}
        write_verdict(bundle, "00000000", gate, [{"stage": "input.ids", "agrees": True}], **note)
    rows = said(capsys, bundle)
    assert rows["native-photo"] == "passed, 3 compared, closest to its limit decode.logits at 0.50 of it"
    assert rows["native-text"] == "passed, 1 compared"
    assert rows["specification-text"] == "failed, first at merge.embeddings"
    assert rows["specification-photo"].startswith("unreadable verdict")
    assert rows["mlx-shipped-photo"] == "decides nothing, 1 compared, first differs at merge.embeddings"
    assert rows["mlx-shipped-text"] == "decides nothing, 1 compared, differs nowhere"


def test_looking_into_a_bundle_loads_neither_jax_nor_the_compiler_nor_torch(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "bundle")
    script = (
        "import sys; from pathlib import Path; from molmo2_iree.commands.inspect import inspect;"
        f"inspect(Path({str(bundle)!r}));"
        "print(sorted({'jax', 'torch', 'iree.compiler', 'safetensors'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


# --- showing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (19_403_476_800, "18.1 GiB"), (2**60, "1048576.0 TiB")],
)
def test_sizes_for_a_reader(size: int, text: str) -> None:
    assert of_size(size) == text


def test_a_pipe_gets_aligned_text(capsys: pytest.CaptureFixture[str]) -> None:
    table("Things", ("name", "size"), [("a", "1"), ("longer", "22")])
    assert capsys.readouterr().out == "Things\n  name    size\n  a       1\n  longer  22\n"


def test_a_terminal_gets_a_table_and_no_cell_is_markup() -> None:
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=60, color_system=None)
    draw(console, "Things [a]", ("name", "size"), [("[bold]x[/bold]", "1")])
    assert "Things [a]" in written.getvalue()
    assert "[bold]x[/bold]" in written.getvalue()
