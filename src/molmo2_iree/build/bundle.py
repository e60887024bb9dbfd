"""Collect what was built for a target into one folder that can be copied away; the manifest is written last."""

import json
from pathlib import Path

from molmo2_iree.build.convert import INDEX_FILE
from molmo2_iree.build.plan import ARCHIVES, Plan
from molmo2_iree.errors import BuildError
from molmo2_iree.files import copy_whole, link_whole, write_whole
from molmo2_iree.identity import digest, file_sha256
from molmo2_iree.manifest import MANIFEST, Archive, Argument, File, Manifest, Module, manifest_text
from molmo2_iree.stages import Program, signature


def bundle(plan: Plan, target: str) -> Path:
    """Write the bundle of one target; returns the manifest's path.

    Archives get a second name and no second copy. Their digests come from the conversion, so a later change of an
    archive is noticed when the bundle is opened.
    """
    folder = plan.bundle_folder(target)
    (folder / MANIFEST).unlink(missing_ok=True)
    compatibility = plan.compatibility(target)
    manifest = Manifest(
        compatibility_digest=digest(compatibility),
        compatibility=compatibility,
        gates_on=plan.target(target).gates_on,
        modules={program.name: _module(plan, target, program, folder) for program in plan.programs},
        archives=_archives(plan, folder),
        files={
            name: _file(plan.checkpoint_folder / name, folder, f"processor/{name}") for name in plan.processor_files
        },
    )
    _check_files(plan, manifest)
    write_whole(folder / MANIFEST, manifest_text(manifest.model_dump(mode="json")))
    return folder / MANIFEST


def _file(source: Path, folder: Path, name: str) -> File:
    copy_whole(source, folder / name)
    return File(file=name, size=source.stat().st_size, sha256=file_sha256(folder / name))


def _module(plan: Plan, target: str, program: Program, folder: Path) -> Module:
    file = _file(plan.module_path(target, program), folder, f"modules/{program.name}.vmfb")
    sides = signature(program, plan.lock.architecture, plan.config.cache.layout())
    arguments, results = (tuple(Argument(name=n, shape=s, dtype=d) for n, s, d in side) for side in sides)
    return Module(**file.model_dump(), arguments=arguments, results=results)


def _archives(plan: Plan, folder: Path) -> dict[str, Archive]:
    index = json.loads((plan.weights_folder / INDEX_FILE).read_text(encoding="utf-8"))
    archives = {}
    for name in ARCHIVES:
        entry = index["archives"][name]
        link_whole(plan.weights_folder / entry["file"], folder / "weights" / entry["file"])
        archives[name] = Archive.model_validate_json(json.dumps(entry | {"file": f"weights/{entry['file']}"}))
    return archives


def _check_files(plan: Plan, manifest: Manifest) -> None:
    for name, file in manifest.files.items():
        locked = plan.lock.files[name]
        if file.sha256 != locked.sha256:
            raise BuildError(
                str(plan.checkpoint_folder / name),
                got=f"sha256 {file.sha256}",
                expected=locked.sha256,
                fix="molmo2 fetch",
            )
