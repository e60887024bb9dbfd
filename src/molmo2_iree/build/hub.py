"""The hub, through huggingface_hub's own client: its failures in our words, and retries with patience.

A file is downloaded with the client's ``http_get``, the function below its ``hf_hub_download``: that one gives every
try a file of its own and deletes it on failure, so it cannot continue what an earlier try or process left behind, and
it may take a storage protocol (Xet) that has been seen to accept wrong bytes of the right size.
"""

import functools
import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar, cast

import httpx2
from huggingface_hub import HfApi, hf_hub_url
from huggingface_hub.constants import ENDPOINT
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import http_get
from huggingface_hub.hf_api import ModelInfo
from huggingface_hub.utils import build_hf_headers

from molmo2_iree.errors import CheckpointError
from molmo2_iree.lock import HubSource

T = TypeVar("T")

LONGEST_RETRY_AFTER = 600.0
"""Seconds: the most that a ``Retry-After`` of the hub is followed."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Patience:
    """Tries in a row without a new byte, and the pause before the second; each later pause is twice as long."""

    attempts: int = 6
    first: float = 1.0
    longest: float = 60.0

    def pause(self, failures: int) -> float:
        """Seconds to wait after so many failures: 1, 2, 4 ... 60 by default."""
        return min(self.longest, self.first * 2 ** (failures - 1))


@dataclass(frozen=True)
class Place:
    """What is asked of the hub: a repository at a revision (``None``: its default branch), or a file of it."""

    source: HubSource
    revision: str | None
    file: str | None = None

    def __str__(self) -> str:
        at = f"{self.source.repository}@{self.revision or 'default branch'}"
        return f"{at}, {self.file}" if self.file else at

    @property
    def endpoint(self) -> str:
        """Address of the hub, without a trailing slash."""
        return (self.source.endpoint or ENDPOINT).rstrip("/")


def is_transient(error: Exception) -> bool:
    """Whether the same request may well succeed later: 408, 429, 5xx, a cut connection, a body that ended early."""
    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code
        return status in (408, 429) or status >= 500
    if isinstance(error, httpx2.TransportError):
        return not isinstance(error, httpx2.UnsupportedProtocol)
    # The client reports a body of the wrong length as an OSError without a number; a full disk has one.
    return isinstance(error, OSError) and error.errno is None and not isinstance(error, OfflineModeIsEnabled)


def retry_after(error: Exception) -> float | None:
    """Seconds the hub asks to wait, if it does."""
    if not isinstance(error, HfHubHTTPError):
        return None
    value = error.response.headers.get("Retry-After", "").strip()
    return min(float(value), LONGEST_RETRY_AFTER) if re.fullmatch(r"\d+(\.\d+)?", value) else None


def patiently(
    call: Callable[[], T],
    place: Place,
    patience: Patience,
    *,
    reached: Callable[[], int] = lambda: 0,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Call until it succeeds; a failure that new bytes preceded (``reached`` grew) starts the count again."""
    failures, before = 0, reached()
    while True:
        try:
            return call()
        except (httpx2.HTTPError, OSError) as error:
            now = reached()
            failures = failures + 1 if now <= before else 1
            before = now
            if not is_transient(error) or failures >= patience.attempts:
                raise refusal(error, place, failures) from error
            asked = retry_after(error)
            pause = patience.pause(failures) if asked is None else asked
            logger.warning("%s: %s; trying again in %.3g s", place, _first_line(error), pause)
            sleep(pause)


def model_info(place: Place, patience: Patience) -> ModelInfo:
    """The commit behind a revision and its files with their sizes and, for large files, sha256."""
    api = HfApi(endpoint=place.endpoint)

    def ask() -> ModelInfo:
        return api.model_info(place.source.repository, revision=place.revision, files_metadata=True, timeout=30)

    try:
        return patiently(ask, place, patience)
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            str(place),
            got=f"an answer that is no model description ({_first_line(error)})",
            expected=f"a hub at {place.endpoint}",
            fix="check the repository's name and the endpoint",
        ) from error


def download(
    place: Place,
    path: Path,
    size: int,
    patience: Patience,
    *,
    report: Callable[[int], None] = lambda done: None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Append to ``path`` what it lacks of ``size`` bytes; ``report`` receives the bytes there are so far.

    The caller verifies the content. On failure the bytes received so far stay, for a later call to continue.
    """
    file = place.file or ""
    url = hf_hub_url(place.source.repository, file, revision=place.revision, endpoint=place.endpoint)

    def once() -> None:
        headers = {**build_hf_headers(), "Accept-Encoding": "identity"}  # a range of compressed bytes has no meaning
        counter = cast(Any, functools.partial(_Counter, report))
        with path.open("ab") as stream:
            if stream.tell() > size:
                raise _other_size(place, f"more than {size} bytes")
            http_get(
                url,
                stream,
                resume_size=stream.tell(),
                headers=headers,
                expected_size=size,
                displayed_filename=file,
                tqdm_class=counter,
            )

    def reached() -> int:
        return path.stat().st_size if path.exists() else 0

    patiently(once, place, patience, reached=reached, sleep=sleep)


class _Counter:
    """Stands in for the client's progress bar and passes the count on."""

    def __init__(self, report: Callable[[int], None], *, initial: int = 0, **_: object) -> None:
        self._report, self._done = report, initial

    def update(self, amount: int) -> None:
        self._done += amount
        self._report(self._done)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def refusal(error: Exception, place: Place, attempts: int) -> CheckpointError:
    """A failed request in words: what the hub answered and what to do about it."""
    if isinstance(error, HfHubHTTPError):
        return _answered(error, place, attempts)
    if isinstance(error, OfflineModeIsEnabled):
        got, expected = "offline mode of huggingface_hub", "the network"
        fix = "switch offline mode off and run again"
    elif isinstance(error, httpx2.HTTPError):
        got, expected = f"no answer ({_first_line(error)}) in {attempts} tries", f"a hub at {place.endpoint}"
        fix = "check the network and run again: what has arrived is kept"
    elif isinstance(error, OSError) and error.errno is not None:
        got, expected = error.strerror or str(error), "room and permission to write"
        fix = "free the disk or choose another folder, and run again: what has arrived is kept"
    else:
        got, expected = f"a body of the wrong length in {attempts} tries ({_first_line(error)})", "the locked size"
        fix = "check proxies on the way and run again"
    return CheckpointError(str(place), got=got, expected=expected, fix=fix)


def _answered(error: HfHubHTTPError, place: Place, attempts: int) -> CheckpointError:
    status, page = error.response.status_code, f"{place.endpoint}/{place.source.repository}"
    log_in = f"accept the licence at {page} if it has one, then log in: hf auth login"
    answers: Mapping[type[HfHubHTTPError], tuple[str, str, str]] = {
        GatedRepoError: ("the repository is gated", "access to it", log_in),
        RepositoryNotFoundError: (
            "no such repository, or one that needs a login",
            "a repository you may read",
            f"check the name; {log_in}",
        ),
        RevisionNotFoundError: (
            "no such revision",
            "a commit of this repository",
            f"look up the commit at {page}/commits and pin it: molmo2 lock {place.source.repository} --revision COMMIT",
        ),
        RemoteEntryNotFoundError: (
            "no such file",
            "every locked file in the repository at this revision",
            f"write the lock again: molmo2 lock {place.source.repository} --revision {place.revision}",
        ),
    }
    for kind, (got, expected, fix) in answers.items():
        if isinstance(error, kind):
            return CheckpointError(str(place), got=f"{status}, {got}", expected=expected, fix=fix)
    if status in (401, 403):
        got, expected, fix = "access refused", "access to the repository", log_in
    elif status == 416:
        return _other_size(place, "fewer bytes (416)")
    else:
        got, expected = f"an error in {attempts} tries ({_first_line(error)})", "an answer"
        fix = "wait and run again: what has arrived is kept"
    return CheckpointError(str(place), got=f"{status}, {got}", expected=expected, fix=fix)


def _other_size(place: Place, got: str) -> CheckpointError:
    return CheckpointError(
        str(place),
        got=f"{got} from the hub",
        expected="the locked size",
        fix="check proxies on the way; if the lock is wrong, delete it and run "
        f"molmo2 lock {place.source.repository} --revision {place.revision}",
    )


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
