"""Verbs of the build: thin fronts of ``molmo2_iree.build``; snakemake calls them with a resolved configuration."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from molmo2_iree.commands.options import DEFAULT_CONFIG, ConfigFile, Output, TargetName

if TYPE_CHECKING:
    from molmo2_iree.build.plan import Plan
    from molmo2_iree.lock import MaskPolicy


def read_plan(config: Path) -> "Plan":
    """The plan of a configuration file."""
    from molmo2_iree.build.plan import make_plan
    from molmo2_iree.config import read_config

    return make_plan(read_config(config))


def say(text: str) -> None:
    """One line of progress on standard error."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def lock(
    repository: Annotated[str | None, typer.Argument(help="Hub repository, such as allenai/Molmo2-4B.")] = None,
    revision: Annotated[str | None, typer.Option(help="40-digit commit; a branch or tag is refused.")] = None,
    directory: Annotated[Path | None, typer.Option("--from", help="A directory with a checkpoint instead.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the lock.")] = None,
    mask_policy: Annotated[
        str | None, typer.Option(help="bidirectional or causal; needed where it is not known.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Lock file to write.", show_default="config/locks/NAME.yaml")
    ] = None,
    endpoint: Annotated[str | None, typer.Option(help="Hub to ask.", show_default="the hub client's own")] = None,
) -> None:
    """Pin a checkpoint: every needed file's size and sha256, and the architecture, into one lock file.

    Example: molmo2 lock allenai/Molmo2-4B --revision 042abfa7a38879a376cec03d949eff0aefaa0600
    """
    from molmo2_iree.build.lock import lock_directory, lock_hub, reconcile
    from molmo2_iree.lock import read_lock, write_lock

    policy = mask_policy_of(mask_policy)
    if (repository is None) == (directory is None):
        raise typer.BadParameter("give either a REPOSITORY or --from DIRECTORY")
    chosen = name or (repository or str(directory)).rstrip("/").rpartition("/")[2].lower().replace("_", "-")
    if directory is not None:
        made = lock_directory(directory, name=chosen, mask_policy=policy, progress=True)
    else:
        made = lock_hub(str(repository), revision, name=chosen, mask_policy=policy, endpoint=endpoint, progress=True)
    path = output or Path("config/locks") / f"{chosen}.yaml"
    if path.exists():
        made = reconcile(read_lock(path), made)
    write_lock(made, path)
    say(f"wrote {path}: {len(made.files)} files of {made.name} at {made.revision}")


def mask_policy_of(text: str | None) -> "MaskPolicy | None":
    """The option's value, checked."""
    if text not in (None, "bidirectional", "causal"):
        raise typer.BadParameter(f"--mask-policy is bidirectional or causal, got {text!r}")
    return text


def fetch(
    config: ConfigFile = DEFAULT_CONFIG,
    file: Annotated[list[str] | None, typer.Option("--file", help="Only this file; may be repeated.")] = None,
    workers: Annotated[int, typer.Option(min=1, max=16, help="Files at a time.")] = 4,
    offline: Annotated[bool, typer.Option("--offline", help="Use only what is here.")] = False,
) -> None:
    """Bring the locked files here, each verified by size and sha256 before it appears under its name."""
    from molmo2_iree.build.checkpoint import fetch as fetch_files

    plan = read_plan(config)
    paths = fetch_files(plan.lock, plan.checkpoint_folder, names=file, workers=workers, offline=offline, progress=True)
    say(f"{len(paths)} files of {plan.lock.name} in {plan.checkpoint_folder}")


def convert(config: ConfigFile = DEFAULT_CONFIG) -> None:
    """Filter and convert a fetched checkpoint into the archives the stages read."""
    from molmo2_iree.build.convert import convert as convert_weights

    plan = read_plan(config)
    started, done = time.monotonic(), 0

    def progress(size: int) -> None:
        nonlocal done
        before, done = done, done + size
        if done >> 30 != before >> 30:
            say(f"{done / 2**30:.0f} GiB written, {done / 2**20 / (time.monotonic() - started):.0f} MiB/s")

    convert_weights(
        plan.checkpoint_folder, plan.lock.architecture, plan.config.weights.storage, plan.weights_folder, progress
    )
    say(f"{done / 2**20:.1f} MiB of {plan.config.weights.storage} weights in {plan.weights_folder}")


def trace(
    program: Annotated[str, typer.Argument(help="Such as prefill-s256.")],
    output: Output,
    config: ConfigFile = DEFAULT_CONFIG,
) -> None:
    """Trace one stage at one bucket to a StableHLO program."""
    from molmo2_iree.build.compile import check_pin
    from molmo2_iree.build.plan import expect_planned
    from molmo2_iree.build.trace import trace as trace_program
    from molmo2_iree.files import write_whole

    plan = read_plan(config)
    expect_planned(output, plan.program_path(plan.program(program)))
    check_pin("jax", "jax", plan.config.toolchain.jax)
    text = trace_program(plan.model(), plan.program(program))
    write_whole(output, text)
    say(f"traced {program}: {len(text) // 1024} KiB")


def compile_(
    program: Annotated[Path, typer.Argument(help="A traced program.")],
    target: TargetName,
    output: Output,
    config: ConfigFile = DEFAULT_CONFIG,
) -> None:
    """Compile one program for one target, through the content-addressed cache."""
    from molmo2_iree.build.compile import compile_program
    from molmo2_iree.build.plan import expect_planned

    plan = read_plan(config)
    expect_planned(output, plan.module_path(target, plan.program(program.stem)))
    hit = compile_program(program, plan.target(target), output, plan.module_cache, plan.config.toolchain.iree)
    say(f"{'found' if hit else 'compiled'} {program.stem} for {target}: {output.stat().st_size // 1024} KiB")


def bundle(target: TargetName, config: ConfigFile = DEFAULT_CONFIG) -> None:
    """Collect modules, archives and processor files of one target; the manifest is written last."""
    from molmo2_iree.build.bundle import bundle as bundle_target

    say(f"wrote {bundle_target(read_plan(config), target)}")
