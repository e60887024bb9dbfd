"""Fetch the locked files of a checkpoint: what is there and right is used as it is, the rest is fetched and verified.

A file appears under its final name only after its size and sha256 were found right; until then it is in ``.incoming``
beside it, where a later run continues it. One process a file may work in the same folder at the same time.
"""

import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

from huggingface_hub.utils import WeakFileLock

from molmo2_iree.build.hub import Patience, Place, download
from molmo2_iree.build.lock import locked_file
from molmo2_iree.build.meter import Meter
from molmo2_iree.errors import CheckpointError
from molmo2_iree.lock import DirectorySource, EmbeddedSource, HubSource, Lock, LockedFile

INCOMING = ".incoming"
ROUNDS = 3
"""Downloads of one file before its content counts as wrong at the source; the first may continue a stale one."""

logger = logging.getLogger(__name__)


class Stopped(Exception):  # noqa: N818 - a signal between the workers, not an error
    """Another file failed or the user interrupted: leave what has arrived and return."""


@dataclass(frozen=True)
class Job:
    """What the workers share."""

    lock: Lock
    folder: Path
    patience: Patience
    meter: Meter
    stop: Event = field(default_factory=Event)

    def sleep(self, seconds: float) -> None:
        """Wait, unless told to stop."""
        if self.stop.wait(seconds):
            raise Stopped

    def report(self, name: str, done: int) -> None:
        """Count the bytes of a file, unless told to stop."""
        if self.stop.is_set():
            raise Stopped
        self.meter.report(name, done)


def fetch(
    lock: Lock,
    folder: Path,
    *,
    names: Sequence[str] | None = None,
    workers: int = 4,
    offline: bool = False,
    progress: bool,
    patience: Patience = Patience(),
) -> list[Path]:
    """Bring the locked files (or those ``names``) into ``folder`` and return their paths; all are verified.

    Raises CheckpointError naming the file, what was found and what the lock says.
    """
    wanted = _wanted(lock, names)
    try:
        with Meter({name: locked.size or 0 for name, locked in wanted.items()}, progress) as meter:
            job = Job(lock, folder, patience, meter)
            missing = _missing(job, wanted, workers)
            if missing:
                _bring(job, missing, workers, offline)
    except OSError as error:
        raise CheckpointError(
            str(error.filename or folder),
            got=error.strerror or str(error),
            expected="a folder with room and permission to write",
            fix="free the disk or choose another folder, and run again: what has arrived is kept",
        ) from error
    return [folder / name for name in wanted]


def difference(path: Path, locked: LockedFile) -> tuple[str, str] | None:
    """What was found and what the lock says, where they differ; the content is read only if the size is right."""
    size = path.stat().st_size
    if size != locked.size:
        return f"{size} bytes", f"{locked.size} bytes"
    found = locked_file(path).sha256
    return None if found == locked.sha256 else (f"sha256 {found}", f"sha256 {locked.sha256}")


def _wanted(lock: Lock, names: Sequence[str] | None) -> dict[str, LockedFile]:
    unknown = [name for name in names or () if name not in lock.files]
    if unknown:
        raise CheckpointError(
            f"lock {lock.name}",
            got=", ".join(unknown),
            expected=f"one of {', '.join(lock.files)}",
            fix="correct the name",
        )
    wanted = {name: lock.files[name] for name in dict.fromkeys(lock.files if names is None else names)}
    unconfirmed = [name for name, locked in wanted.items() if locked.size is None or locked.sha256 is None]
    if unconfirmed:
        raise CheckpointError(
            f"lock {lock.name}",
            got=f"no confirmed size or sha256 of {', '.join(unconfirmed)}",
            expected="both figures of every file",
            fix=f"complete the lock: {_lock_again(lock)}",
        )
    return wanted


def _lock_again(lock: Lock) -> str:
    if isinstance(lock.source, HubSource):
        return f"molmo2 lock {lock.source.repository} --revision {lock.revision}"
    return f"molmo2 lock --from {lock.source.path}" if isinstance(lock.source, DirectorySource) else "molmo2 lock"


def _missing(job: Job, wanted: dict[str, LockedFile], workers: int) -> dict[str, LockedFile]:
    """The files that are not there; a wrong one is named and removed, so that nothing can use it."""

    def is_right(name: str) -> bool:
        path = job.folder / name
        if not path.is_file():
            return False
        found = difference(path, wanted[name])
        if found is None:
            job.meter.done(name, "there and verified")
            return True
        logger.warning("%s: got %s, expected %s; removed, to be fetched again", path, *found)
        path.unlink(missing_ok=True)
        return False

    with ThreadPoolExecutor(workers) as pool:
        right = dict(zip(wanted, pool.map(is_right, wanted), strict=True))
    return {name: locked for name, locked in wanted.items() if not right[name]}


def _bring(job: Job, missing: dict[str, LockedFile], workers: int, offline: bool) -> None:
    source = job.lock.source
    if offline and isinstance(source, HubSource):
        raise CheckpointError(
            str(job.folder),
            got=f"offline, and no file {', '.join(missing)}",
            expected="every locked file, when offline",
            fix="run molmo2 fetch once with the network",
        )
    incoming = job.folder / INCOMING
    incoming.mkdir(parents=True, exist_ok=True)
    if isinstance(source, EmbeddedSource):
        _generate(job, missing, source)
        return
    if isinstance(source, HubSource):
        _check_space(incoming, missing)

    def one(name: str) -> None:
        with WeakFileLock(incoming / f"{name}.lock"):
            final, locked = job.folder / name, missing[name]
            if final.is_file() and difference(final, locked) is None:
                job.meter.done(name, "fetched by another process, verified")
            elif isinstance(source, HubSource):
                _download(job, source, name, locked)
            else:
                _link(job, Path(source.path) / name, name, locked)

    _each(one, list(missing), workers, job.stop)


def _each(work: Callable[[str], None], names: list[str], workers: int, stop: Event) -> None:
    """Run the work in parallel; the first failure (or an interrupt) stops the others, which leave what has arrived."""
    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(work, name) for name in names]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _check_space(incoming: Path, missing: dict[str, LockedFile]) -> None:
    staged = [path.stat().st_size for name in missing if (path := incoming / name).is_file()]
    needed, free = sum(locked.size or 0 for locked in missing.values()) - sum(staged), shutil.disk_usage(incoming).free
    if needed > free:
        raise CheckpointError(
            str(incoming.parent),
            got=f"{free:,} bytes of free disk",
            expected=f"{needed:,} bytes for {', '.join(missing)}",
            fix="free the disk or choose another folder",
        )


def _download(job: Job, source: HubSource, name: str, locked: LockedFile) -> None:
    staged, place, size = job.folder / INCOMING / name, Place(source, job.lock.revision, name), locked.size or 0
    found: tuple[str, str] | None = None
    for _ in range(ROUNDS):
        if staged.is_file() and staged.stat().st_size > size:
            staged.unlink()
        if not staged.is_file() or staged.stat().st_size < size:
            download(place, staged, size, job.patience, report=lambda done: job.report(name, done), sleep=job.sleep)
        found = _publish(job, staged, name, locked)
        if found is None:
            job.meter.done(name, "downloaded and verified")
            return
        logger.warning("%s: got %s, expected %s; removed, to be fetched again", place, *found)
    got, expected = found or ("", "")
    raise CheckpointError(
        str(place),
        got=f"{got} from the hub, {ROUNDS} times",
        expected=f"{expected} by the lock",
        fix=f"check proxies on the way; if the lock is wrong, delete it and run {_lock_again(job.lock)}",
    )


def _link(job: Job, original: Path, name: str, locked: LockedFile) -> None:
    staged = job.folder / INCOMING / f"{name}.linked"
    staged.unlink(missing_ok=True)
    if not original.is_file():
        raise CheckpointError(
            str(original), got="no such file", expected="the locked file", fix="restore it, or lock the directory again"
        )
    try:
        os.link(original.resolve(), staged)
    except OSError:  # another file system, or one without links
        shutil.copyfile(original, staged)
    found = _publish(job, staged, name, locked)
    if found is not None:
        raise CheckpointError(
            str(original),
            got=found[0],
            expected=f"{found[1]} by the lock",
            fix=f"restore the file, or lock what is there now: {_lock_again(job.lock)}",
        )
    job.meter.done(name, "linked and verified")


def _generate(job: Job, missing: dict[str, LockedFile], source: EmbeddedSource) -> None:
    from molmo2_iree.build.embedded import VARIANTS, write_checkpoint

    with tempfile.TemporaryDirectory(dir=job.folder / INCOMING) as temporary:
        write_checkpoint(Path(temporary), source.seed, VARIANTS[source.variant])
        for name, locked in missing.items():
            staged = Path(temporary) / name
            found = _publish(job, staged, name, locked) if staged.is_file() else ("no such file", name)
            if found is not None:
                raise CheckpointError(
                    f"{job.lock.name}, {name}",
                    got=f"{found[0]} from the generator",
                    expected=f"{found[1]} by the lock",
                    fix="the lock was written by another version of the generator: write it again",
                )
            job.meter.done(name, "generated and verified")


def _publish(job: Job, staged: Path, name: str, locked: LockedFile) -> tuple[str, str] | None:
    """Give a staged file its final name if it is what the lock says; otherwise remove it and return the difference."""
    found = difference(staged, locked)
    if found is None:
        staged.replace(job.folder / name)
    else:
        staged.unlink()
    return found
