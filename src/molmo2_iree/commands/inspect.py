"""``molmo2 inspect``: what a checkpoint directory or a bundle is, in words."""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from molmo2_iree.architecture import Architecture
from molmo2_iree.capabilities import cache_bytes, describe, needs, usual_buckets
from molmo2_iree.commands.show import Row, facts, of_size, table
from molmo2_iree.detect import JSON_FILES, VIDEO_FILE, read_architecture
from molmo2_iree.errors import BundleError, CheckpointError, WeightsError
from molmo2_iree.manifest import MANIFEST, File, Manifest, read_manifest
from molmo2_iree.stages import CacheLayout

if TYPE_CHECKING:
    from molmo2_iree.build.tensors import Stored

BUNDLE_FOLDERS = ("modules", "processor", "weights")
HOST_FIELDS = ("target.triple", "target.cpu")
"""Fields whose refusal means another machine, not a fault of the bundle."""


def inspect(
    path: Annotated[Path, typer.Argument(help="A checkpoint directory or a bundle.")],
    config: Annotated[
        Path | None,
        typer.Option("--config", help="Sizes for a checkpoint's memory table.", show_default="usual ones"),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="List every tensor and every argument too.")] = False,
) -> None:
    """Say what a checkpoint directory or a bundle is, in words, with sizes.

    Example: molmo2 inspect artifacts/checkpoints/molmo2-4b@042abfa7a38879a376cec03d949eff0aefaa0600
    """
    if (path / MANIFEST).is_file() or any((path / name).is_dir() for name in BUNDLE_FOLDERS):
        inspect_bundle(path, verbose)
    elif (path / "config.json").is_file():
        inspect_checkpoint(path, config, verbose)
    else:
        raise CheckpointError(
            str(path),
            got="a directory with neither" if path.is_dir() else "no such directory",
            expected=f"a checkpoint directory (config.json) or a bundle ({MANIFEST})",
            fix="pass the folder itself; molmo2 fetch brings a checkpoint, snakemake all builds a bundle",
        )


# --- a checkpoint --------------------------------------------------------------------------------------------------


def inspect_checkpoint(folder: Path, config: Path | None, verbose: bool) -> None:
    """Capabilities from the JSON files, memory for each stage and bucket, then the stored tensors."""
    files = read_json_files(folder)
    architecture = read_architecture(files)
    claimed = str(files["config.json"].get("_name_or_path", ""))
    facts(f"Checkpoint {folder}", capability_rows(architecture, [claimed, folder.resolve().name]))
    buckets, layout, storage = _sizes(architecture, config)
    memory_table(architecture, layout, buckets, storage)
    try:
        from molmo2_iree.build.tensors import DTYPES, read_headers
    except ImportError as error:
        facts("Tensors", [("not read", f"{error}; pip install 'molmo2-iree[build]'")])
        return
    found = read_headers(folder)
    refusal = _disagreement(found, architecture)
    facts(
        "Tensors", _tensor_rows(found, architecture, {name: dtype.itemsize for name, dtype in DTYPES.items()}, refusal)
    )
    if verbose:
        every = [(name, t.dtype, "x".join(map(str, t.shape)), t.shard.name) for name, t in sorted(found.items())]
        table("Every tensor", ("name", "dtype", "shape", "file"), every)
    if refusal is not None:
        raise refusal


def _disagreement(found: "dict[str, Stored]", architecture: Architecture) -> WeightsError | None:
    from molmo2_iree.build.convert import check_names
    from molmo2_iree.model.parameters import parameters

    try:
        check_names(found, parameters(architecture), architecture)
    except WeightsError as error:
        return error
    return None


def _tensor_rows(
    found: "dict[str, Stored]", architecture: Architecture, width: Mapping[str, int], refusal: WeightsError | None
) -> list[Row]:
    size = sum(math.prod(t.shape) * width.get(t.dtype, 0) for t in found.values())
    dtypes = sorted(Counter(t.dtype for t in found.values()).items())
    blocks = {name.split("resblocks.")[1].partition(".")[0] for name in found if "resblocks." in name}
    v = architecture.vision
    agrees = "every tensor that config.json calls for is there, in its shape"
    return [
        ("count", f"{len(found):,} in {len({t.shard for t in found.values()})} file(s)"),
        ("size", of_size(size)),
        ("stored as", ", ".join(f"{dtype} ({count:,})" for dtype, count in dtypes)),
        ("ViT blocks", f"{v.declared_blocks} declared, {len(blocks)} stored, {v.blocks} used"),
        ("agreement", agrees if refusal is None else "refused, see the last line"),
    ]


def capability_rows(architecture: Architecture, sources: Sequence[str], mask_policy: Any = None) -> list[Row]:
    """The capabilities, a fact a row."""
    can = describe(architecture, sources=sources, mask_policy=mask_policy)
    return [
        ("family", can.family),
        ("text", can.text),
        ("vision", can.vision),
        ("images", can.images),
        ("video", can.video),
        ("mask policy", can.mask_policy),
        ("parameters", f"{can.parameters:,} in {can.tensors:,} tensors"),
    ]


def read_json_files(folder: Path) -> dict[str, Any]:
    """The JSON files an architecture is read from; CheckpointError for one that is no JSON object."""
    files = {}
    for name in (*JSON_FILES, VIDEO_FILE):
        try:
            files[name] = json.loads((folder / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, RecursionError) as error:
            files[name] = str(error)
        if not isinstance(files[name], dict):
            got = f"no JSON object ({str(files[name])[:80]})"
            raise CheckpointError(str(folder / name), got=got, expected="a JSON object", fix="replace the file")
    return files


def memory_table(
    architecture: Architecture, layout: CacheLayout, buckets: Mapping[str, Sequence[int]], storage: str
) -> None:
    """What each program needs; all share one copy of the weights and one cache, so columns must not be added up."""
    every = needs(architecture, layout, buckets, storage)
    rows = [
        (n.program, *(of_size(s) if s else "-" for s in (n.weights, n.arguments, n.cache, n.temporaries)))
        for n in every
    ]
    heads = ("program", "weights", "arguments", "cache", "temporaries (estimate)")
    table(f"Memory by stage and bucket, {storage} weights", heads, rows)
    total = cache_bytes(architecture, layout)
    each = (
        f"{of_size(total // layout.slots)} for each of {layout.slots} slots of {layout.context:,} rows ({layout.dtype})"
    )
    facts("Cache", [("in total", of_size(total)), ("shares", each)])


def _sizes(architecture: Architecture, config: Path | None) -> tuple[Mapping[str, Sequence[int]], CacheLayout, str]:
    if config is None:
        usual = usual_buckets(architecture)
        return usual, CacheLayout(max(usual["slots"]), max(usual["context"]), "float32"), "float32"
    from molmo2_iree.config import read_config

    chosen = read_config(config)
    return chosen.buckets.model_dump(), chosen.cache.layout(), chosen.weights.storage


# --- a bundle ------------------------------------------------------------------------------------------------------


def inspect_bundle(folder: Path, verbose: bool) -> None:
    """What the manifest says, then whether the files are what it says; a refusal comes last, with its exit code."""
    manifest = read_manifest(folder)
    runs, refusal = _check(folder, manifest)
    facts(f"Bundle {folder}", [*_bundle_rows(manifest), ("on this machine", runs)])
    _file_tables(manifest, verbose)
    if refusal is None:
        _model_tables(folder, manifest)
    facts("Gates", _gate_rows(folder, manifest))
    if refusal is not None:
        raise refusal


def _model_tables(folder: Path, manifest: Manifest) -> None:
    from molmo2_iree.config import Buckets, Cache, Weights

    fields = manifest.compatibility
    architecture = read_architecture(read_json_files(folder / "processor"))
    try:
        cache = Cache.model_validate_json(json.dumps(_part(fields, "cache.")))
        buckets = Buckets.model_validate_json(json.dumps(_part(fields, "buckets.")))
        storage = Weights(storage=fields["storage"]).storage
        policy = fields["mask_policy"]
    except (KeyError, ValueError) as error:
        raise BundleError(
            f"{folder}, compatibility",
            got=str(error)[:200],
            expected="every field of a bundle",
            fix="build the bundle again: snakemake all",
        ) from error
    facts("Model", capability_rows(architecture, [], policy))
    memory_table(architecture, cache.layout(), buckets.model_dump(), storage)


def _check(folder: Path, manifest: Manifest) -> tuple[str, BundleError | None]:
    from molmo2_iree.runtime.bundle import check_file, open_bundle

    try:
        open_bundle(folder)
        return "opens: every file is as the manifest says", None
    except BundleError as error:
        if error.where not in HOST_FIELDS:
            return "refused, see the last line", error
        reason = error
    try:
        for files in (manifest.files, manifest.modules, manifest.archives):
            for name, file in files.items():
                check_file(folder, file, name)
    except BundleError as error:
        return "refused, see the last line", error
    return f"does not run ({reason.got}); every file is as the manifest says", None


def _bundle_rows(manifest: Manifest) -> list[Row]:
    def of(field: str) -> str:
        value = manifest.compatibility.get(field, "(absent)")
        return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)

    def under(prefix: str) -> str:
        return "; ".join(f"{name} {of(prefix + name)}" for name in sorted(_part(manifest.compatibility, prefix)))

    everything = [*manifest.modules.values(), *manifest.archives.values(), *manifest.files.values()]
    return [
        ("checkpoint", f"{of('checkpoint.name')} at {of('checkpoint.revision')}"),
        ("weights", f"stored as {of('storage')}"),
        ("mask policy", of("mask_policy")),
        ("target", f"{of('target.name')}: {of('target.triple')}, {of('target.cpu')}"),
        ("flags", of("target.flags") or "none of its own"),
        ("toolchain", under("toolchain.")),
        ("buckets", under("buckets.")),
        ("compatibility", manifest.compatibility_digest),
        ("size", f"{of_size(sum(file.size for file in everything))} in {len(everything)} files"),
    ]


def _file_tables(manifest: Manifest, verbose: bool) -> None:
    modules = [(name, of_size(module.size)) for name, module in manifest.modules.items()]
    table("Modules", ("module", "size"), [*modules, ("total", _total(manifest.modules))])
    if verbose:
        rows = [
            (name, side, a.name, a.dtype, "x".join(map(str, a.shape)) or "one value")
            for name, module in manifest.modules.items()
            for side, part in (("in", module.arguments), ("out", module.results))
            for a in part
        ]
        table("Arguments and results", ("module", "side", "name", "dtype", "shape"), rows)
    archives = [(name, f"{len(a.tensors):,}", of_size(a.size)) for name, a in manifest.archives.items()]
    table("Archives", ("archive", "tensors", "size"), [*archives, ("total", "", _total(manifest.archives))])
    files = [(name, of_size(file.size)) for name, file in manifest.files.items()]
    table("Processor files", ("file", "size"), [*files, ("total", _total(manifest.files))])


def _total(files: Mapping[str, File]) -> str:
    return of_size(sum(file.size for file in files.values()))


def _gate_rows(folder: Path, manifest: Manifest) -> list[Row]:
    if manifest.gates_on == "none":
        return [("not run here", "gates of this target do not run where it is built, so its numbers are unproven")]
    records = folder.absolute().parent / "records"
    verdicts = list(records.glob(f"{manifest.compatibility_digest[:12]}-*/**/*.verdict.json"))
    if not verdicts:
        return [("no verdict", "none found beside the bundle: snakemake gates")]
    latest = {path.name: path for path in sorted(verdicts, key=lambda path: path.stat().st_mtime_ns)}
    return [_verdict_row(latest[name]) for name in sorted(latest)]


def _verdict_row(path: Path) -> Row:
    name = path.name.removesuffix(".verdict.json")
    try:
        content = json.loads(path.read_bytes())
        judged = content["verdicts"]
        if content.get("informational"):
            first = content["first_difference"]
            where = f"first differs at {first['stage']}" if first else "differs nowhere"
            return name, f"decides nothing, {len(judged)} compared, {where}"
        failed = [str(verdict["stage"]) for verdict in judged if not verdict["passed"]]
        margins = [(float(verdict["margin"]), str(verdict["stage"])) for verdict in judged if "margin" in verdict]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return name, f"unreadable verdict ({type(error).__name__}): {path}"
    if failed:
        return name, f"failed, first at {failed[0]}"
    closest = f", closest to its limit {max(margins)[1]} at {max(margins)[0]:.2f} of it" if margins else ""
    return name, f"passed, {len(judged)} compared{closest}"


def _part(fields: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in fields.items() if name.startswith(prefix)}
