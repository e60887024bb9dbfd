"""Progress of files on stderr: one bar of bytes over all files on a terminal, one plain line a file elsewhere."""

import sys
from collections.abc import Mapping
from threading import Lock
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn


class Meter:
    """Counts the bytes of files whose sizes are known beforehand; silent if not ``shown``. Safe among threads."""

    def __init__(self, sizes: Mapping[str, int], shown: bool) -> None:
        self._sizes, self._shown = sizes, shown
        self._reached: dict[str, int] = dict.fromkeys(sizes, 0)
        self._guard = Lock()
        self._bar = _bar() if shown and sys.stderr.isatty() else None
        self._task = self._bar.add_task("checkpoint", total=sum(sizes.values())) if self._bar else None

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def report(self, name: str, reached: int) -> None:
        """So many bytes of the file are there now."""
        with self._guard:
            self._reached[name] = reached
            if self._bar and self._task is not None:
                self._bar.update(self._task, completed=sum(self._reached.values()))

    def done(self, name: str, how: str) -> None:
        """The file is complete; without a terminal this prints its line."""
        self.report(name, self._sizes[name])
        if self._shown and not self._bar:
            print(f"{name}: {self._sizes[name]:,} bytes, {how}", file=sys.stderr, flush=True)


def _bar() -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Console(stderr=True))
