"""Write a lock: from a hub, reading metadata and small files only, or from a directory, reading everything."""

import hashlib
import json
import re
import sys
import tempfile
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub.hf_api import RepoSibling
from pydantic import ValidationError

from molmo2_iree.build.hub import Patience, Place, download, model_info
from molmo2_iree.detect import JSON_FILES, VIDEO_FILE, read_architecture
from molmo2_iree.errors import CheckpointError, UnsupportedError
from molmo2_iree.family import MASK_POLICIES, is_molmoweb
from molmo2_iree.lock import DirectorySource, EmbeddedSource, HubSource, Lock, LockedFile, MaskPolicy, content_revision

REQUIRED = (*JSON_FILES, "tokenizer.json", "chat_template.jinja")
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


def lock_hub(
    repository: str,
    revision: str | None,
    *,
    name: str,
    mask_policy: MaskPolicy | None,
    endpoint: str | None = None,
    progress: bool,
    patience: Patience = Patience(),
) -> Lock:
    """Lock a repository of a hub at a commit. Large files are locked from the hub's metadata, not downloaded."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        raise CheckpointError(
            "repository",
            got=repr(repository),
            expected="OWNER/NAME",
            fix="molmo2 lock allenai/Molmo2-4B --revision COMMIT",
        )
    policy = _mask_policy(repository, MASK_POLICIES.get(repository), mask_policy)
    place = Place(HubSource(repository=repository, endpoint=endpoint), revision)
    info = model_info(place, patience)
    if revision is None or not re.fullmatch(r"[0-9a-f]{40}", revision) or info.sha != revision:
        raise _not_a_pin(place, info.sha, mask_policy)
    siblings = {sibling.rfilename: sibling for sibling in info.siblings or ()}
    with tempfile.TemporaryDirectory(prefix="molmo2-lock-") as folder:
        read = _read_small(place, siblings, Path(folder), patience, progress)
        names = _needed(siblings, _json(Path(folder) / INDEX) if INDEX in read else None, str(place))
        files = {file: read[file] if file in read else _from_metadata(place, siblings[file]) for file in names}
        architecture = read_architecture(_parsed(Path(folder), names))
    return _build(
        name=name, source=place.source, revision=revision, mask_policy=policy, files=files, architecture=architecture
    )


def lock_directory(directory: Path, *, name: str, mask_policy: MaskPolicy | None, progress: bool = False) -> Lock:
    """Lock a directory with a checkpoint in the original format; its content gives the revision.

    One inside the working directory, the project's root, is named from there: such a lock holds in every checkout.
    """
    policy = _mask_policy(str(directory), None, mask_policy, claimed=_claimed_name(directory))
    found, here = directory.resolve(), Path.cwd().resolve()
    source = DirectorySource(path=(found.relative_to(here) if found.is_relative_to(here) else found).as_posix())
    return lock_folder(directory, source, name=name, mask_policy=policy, progress=progress)


def lock_folder(
    directory: Path,
    source: DirectorySource | EmbeddedSource,
    *,
    name: str,
    mask_policy: MaskPolicy,
    progress: bool = False,
) -> Lock:
    """Lock the files of a directory as those of ``source``, which can bring them forth again."""
    if not directory.is_dir():
        raise CheckpointError(
            str(directory), got="no such directory", expected="a checkpoint", fix="molmo2 lock --from DIRECTORY"
        )
    present = {path.name for path in directory.iterdir() if path.is_file()}
    names = _needed(present, _json(directory / INDEX) if INDEX in present else None, str(directory))
    architecture = read_architecture(_parsed(directory, names))
    files = {file: _told(file, locked_file(directory / file), progress) for file in names}
    return _build(
        name=name,
        source=source,
        revision=content_revision(files),
        mask_policy=mask_policy,
        files=files,
        architecture=architecture,
    )


def locked_file(path: Path) -> LockedFile:
    """Size and sha256 of a file, read as a stream."""
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return LockedFile(size=path.stat().st_size, sha256=digest)


def reconcile(old: Lock, new: Lock) -> Lock:
    """The new lock, unless it contradicts a figure of the old one at the same revision: a commit cannot change."""
    if old.revision != new.revision:
        return new
    for file, known in old.files.items():
        now = new.files.get(file)
        for figure in ("size", "sha256"):
            was, found = getattr(known, figure), getattr(now, figure, None)
            if now is not None and None not in (was, found) and was != found:
                raise CheckpointError(
                    f"{new.name}@{new.revision}, {figure} of {file}",
                    got=f"{found} from the source",
                    expected=f"{was} in the lock that exists",
                    fix="find out which is wrong: a source must not change under a commit. To trust the source, delete "
                    "the existing lock file and run molmo2 lock again",
                )
    return new


def _mask_policy(source: str, known: MaskPolicy | None, stated: MaskPolicy | None, claimed: str = "") -> MaskPolicy:
    policy = known or stated
    if policy is None and is_molmoweb(source, claimed):
        raise UnsupportedError(
            f"{source}, mask policy",
            got="a MolmoWeb checkpoint whose pin states no mask policy: it was trained causal, and no file says it",
            expected="a pin that states it, or the nearest model whose policy is known, allenai/Molmo2-4B",
            fix="state it: --mask-policy causal",
        )
    if policy is None:
        raise UnsupportedError(
            f"{source}, mask policy",
            got="nothing: no file says it, and MolmoWeb checkpoints, trained causal, share Molmo2's architecture name",
            expected="whether the image part was trained to see itself in both directions",
            fix="state it: --mask-policy bidirectional (Molmo2 and its fine-tunes) or --mask-policy causal (MolmoWeb)",
        )
    if known is not None and stated not in (None, known):
        raise UnsupportedError(
            f"{source}, mask policy", got=stated, expected=f"{known}, as it was trained", fix="leave --mask-policy out"
        )
    return policy


def _claimed_name(directory: Path) -> str:
    """The repository a directory's config.json says it was loaded from; a bad file is refused when it is read."""
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    return str(config.get("_name_or_path", "")) if isinstance(config, dict) else ""


def _not_a_pin(place: Place, commit: str | None, mask_policy: MaskPolicy | None) -> CheckpointError:
    options = f" --mask-policy {mask_policy}" if mask_policy else ""
    options += f" --endpoint {place.endpoint}" if place.source.endpoint else ""
    got = f"{place.revision!r}, which is no commit" if place.revision else "none, which means the default branch"
    return CheckpointError(
        f"revision of {place.source.repository}",
        got=f"{got} (it points to {commit} now)",
        expected="a commit of 40 hexadecimal digits: a branch or tag can move",
        fix=f"molmo2 lock {place.source.repository} --revision {commit}{options}",
    )


def _needed(present: Collection[str], index: dict[str, Any] | None, where: str) -> list[str]:
    """Names of the files to lock, in a fixed order; a missing one is refused by name."""
    weights = [SINGLE] if index is None else [INDEX, *_shards(index, where)]
    required = [*REQUIRED, *weights]
    missing = [file for file in required if file not in present]
    if missing:
        named = " (named by its index)" if index is not None and set(missing) & set(weights) else ""
        raise CheckpointError(
            where,
            got=f"no file {', '.join(missing)}{named}",
            expected="every file of a Molmo2 checkpoint in the original format",
            fix="add the file, or lock a complete checkpoint such as allenai/Molmo2-4B",
        )
    return [*required, *([VIDEO_FILE] if VIDEO_FILE in present else [])]


def _shards(index: dict[str, Any], where: str) -> list[str]:
    shards = index.get("weight_map")
    names = sorted({str(shard) for shard in shards.values()}) if isinstance(shards, dict) else []
    odd = [shard for shard in names if not re.fullmatch(r"[\w][\w.-]*\.safetensors", shard)]
    if odd or not names:
        raise CheckpointError(
            f"{where}, weight_map of {INDEX}",
            got=repr(odd[0]) if odd else "no shards",
            expected="plain names of .safetensors files",
            fix="save the checkpoint again with its library",
        )
    return names


def _read_small(
    place: Place, siblings: Mapping[str, RepoSibling], folder: Path, patience: Patience, progress: bool
) -> dict[str, LockedFile]:
    """Download what must be read (JSON) or hashed (files outside LFS); the hub's own figures verify each."""
    read: dict[str, LockedFile] = {}
    for file in (*REQUIRED, INDEX, VIDEO_FILE):
        sibling = siblings.get(file)
        if sibling is None or (sibling.lfs is not None and file in ("tokenizer.json", "chat_template.jinja")):
            continue
        at = Place(place.source, place.revision, file)
        if sibling.size is None:
            raise _no_figure(at, "size")
        download(at, folder / file, sibling.size, patience)
        read[file] = _told(file, locked_file(folder / file), progress)
        if sibling.lfs is not None:
            got, expected = read[file].sha256, sibling.lfs.sha256
        else:
            got, expected = _git_oid(folder / file), sibling.blob_id
        if got != expected:
            raise CheckpointError(
                str(at), got=f"content {got}", expected=f"{expected}, as the hub lists it", fix="run molmo2 lock again"
            )
    return read


def _from_metadata(place: Place, sibling: RepoSibling) -> LockedFile:
    if sibling.lfs is None:
        raise _no_figure(Place(place.source, place.revision, sibling.rfilename), "sha256")
    return LockedFile(size=sibling.lfs.size, sha256=sibling.lfs.sha256)


def _no_figure(at: Place, figure: str) -> CheckpointError:
    return CheckpointError(
        str(at),
        got=f"no {figure} in the hub's metadata",
        expected=f"the file's {figure}",
        fix="download the repository and lock the directory: molmo2 lock --from DIRECTORY",
    )


def _git_oid(path: Path) -> str:
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _parsed(folder: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    return {file: _json(folder / file) for file in names if file in (*JSON_FILES, VIDEO_FILE)}


def _json(path: Path) -> dict[str, Any]:
    try:
        parsed = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        parsed = str(error)
    if not isinstance(parsed, dict):
        raise CheckpointError(
            path.name, got=f"no JSON object ({str(parsed)[:80]})", expected="a JSON object", fix="replace the file"
        )
    return parsed


def _told(file: str, locked: LockedFile, progress: bool) -> LockedFile:
    if progress:
        print(f"{file}: {locked.size:,} bytes, sha256 {locked.sha256}", file=sys.stderr)
    return locked


def _build(**fields: Any) -> Lock:
    try:
        return Lock(**fields)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise CheckpointError(
            f"lock, {field}", got=repr(first["input"])[:120], expected=first["msg"], fix="correct the option"
        ) from error
