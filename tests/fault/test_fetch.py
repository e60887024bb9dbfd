import io
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from standin_hub import COMMIT, Fault, StandinHub
from tiny_checkpoint import SHARDS, write_tiny

from molmo2_iree.build.checkpoint import INCOMING, ROUNDS, fetch
from molmo2_iree.build.embedded import embedded_lock
from molmo2_iree.build.hub import Patience
from molmo2_iree.build.lock import lock_directory, locked_file
from molmo2_iree.errors import CheckpointError
from molmo2_iree.lock import HubSource, Lock, LockedFile, write_lock

QUICK = Patience(attempts=3, first=0.01)
CHUNK = 10 * 1024 * 1024
"""Bytes the client gathers before it writes; what arrives after a cut or a kill is lost only up to here."""

BIG, MIDWAY = 36 * 1024 * 1024, 32 * 1024 * 1024
"""A body and where it breaks off: a reset discards what is in socket buffers, which hold well under 20 MiB."""

FETCH = """
import sys
from pathlib import Path
from molmo2_iree.build.checkpoint import fetch
from molmo2_iree.lock import read_lock
fetch(read_lock(Path(sys.argv[1])), Path(sys.argv[2]), names=sys.argv[3:] or None, progress=True)
"""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[StandinHub]:
    with StandinHub(write_tiny(tmp_path / "served")) as hub:
        yield hub


@pytest.fixture
def big_hub(tmp_path: Path) -> Iterator[StandinHub]:
    with StandinHub(write_tiny(tmp_path / "served", first_shard_bytes=BIG)) as hub:
        yield hub


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "artifacts" / "checkpoints" / f"tiny@{COMMIT}"


def lock_of(hub: StandinHub) -> Lock:
    """The lock of what the hub serves, made without asking it."""
    made = lock_directory(hub.directory, name="tiny", mask_policy="bidirectional")
    source = HubSource(repository=hub.repository, endpoint=hub.endpoint)
    return made.model_copy(update={"source": source, "revision": COMMIT})


def with_file(lock: Lock, file: str, size: int | None, sha256: str | None) -> Lock:
    return lock.model_copy(update={"files": {**lock.files, file: LockedFile(size=size, sha256=sha256)}})


def assert_complete(lock: Lock, folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == {*lock.files, INCOMING}
    assert all(locked_file(folder / file) == locked for file, locked in lock.files.items())
    assert [path for path in (folder / INCOMING).iterdir() if path.suffix != ".lock"] == []


def fetch_process(lock_path: Path, folder: Path, *names: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", FETCH, str(lock_path), str(folder), *names]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def test_only_the_locked_files_are_fetched_and_the_second_run_asks_nothing(hub: StandinHub, folder: Path) -> None:
    lock = lock_of(hub)
    assert fetch(lock, folder, progress=False) == [folder / file for file in lock.files]
    assert_complete(lock, folder)
    assert {r.file for r in hub.requests} == set(lock.files)
    assert all(len(hub.bodies(file)) == 1 for file in lock.files)
    hub.requests.clear()
    fetch(lock, folder, progress=False)
    assert hub.requests == []


def test_named_files_alone(hub: StandinHub, folder: Path) -> None:
    lock = lock_of(hub)
    assert fetch(lock, folder, names=["config.json", SHARDS[1]], progress=False) == [
        folder / "config.json",
        folder / SHARDS[1],
    ]
    assert {r.file for r in hub.requests} == {"config.json", SHARDS[1]}
    with pytest.raises(CheckpointError, match=r"got README\.md, expected one of config\.json"):
        fetch(lock, folder, names=["README.md"], progress=False)


@pytest.mark.parametrize("kind", ["one wrong byte", "shorter", "longer"])
def test_corrupt_file_is_named_and_fetched_again_alone(
    hub: StandinHub, folder: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    lock = lock_of(hub)
    fetch(lock, folder, progress=False)
    content = bytearray((folder / SHARDS[0]).read_bytes())
    content[100] ^= 1
    changed = {"one wrong byte": content, "shorter": content[:-1], "longer": content + b"0"}[kind]
    (folder / SHARDS[0]).write_bytes(changed)
    hub.requests.clear()
    with caplog.at_level(logging.WARNING):
        fetch(lock, folder, progress=False)
    assert f"{SHARDS[0]}: got" in caplog.text
    assert {r.file for r in hub.requests} == {SHARDS[0]}
    assert_complete(lock, folder)


def test_truncated_body_is_continued_by_range(hub: StandinHub, folder: Path) -> None:
    lock = lock_of(hub)
    hub.faults = [
        Fault("body", SHARDS[0], body="truncate", at=1000),
        Fault("resolve", "config.json", body="truncate", at=7),
    ]
    fetch(lock, folder, progress=False, patience=QUICK)
    assert [r.range for r in hub.bodies(SHARDS[0])] == ["", "bytes=1000-"]
    assert [r.range for r in hub.bodies("config.json")] == ["", "bytes=7-"]
    assert_complete(lock, folder)


@pytest.mark.parametrize("how", ["cut", "reset"])
def test_connection_lost_midway_is_continued_by_range(big_hub: StandinHub, folder: Path, how: str) -> None:
    lock = lock_of(big_hub)
    big_hub.faults = [Fault("body", SHARDS[0], body="cut" if how == "cut" else "reset", at=MIDWAY)]
    fetch(lock, folder, names=[SHARDS[0]], progress=False, patience=QUICK)
    first, second = (r.range for r in big_hub.bodies(SHARDS[0]))
    assert first == ""
    assert second in [f"bytes={chunks * CHUNK}-" for chunks in ((3,) if how == "cut" else (1, 2, 3))]
    assert locked_file(folder / SHARDS[0]) == lock.files[SHARDS[0]]


def test_killed_process_leaves_no_unverified_file_and_the_next_continues(
    big_hub: StandinHub, folder: Path, tmp_path: Path
) -> None:
    lock, lock_path = lock_of(big_hub), tmp_path / "tiny.yaml"
    write_lock(lock, lock_path)
    big_hub.faults = [Fault("body", SHARDS[0], body="stall", at=MIDWAY)]
    process = fetch_process(lock_path, folder, SHARDS[0])
    staged, deadline = folder / INCOMING / SHARDS[0], time.monotonic() + 20
    while not (staged.is_file() and staged.stat().st_size >= CHUNK) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    kept = staged.stat().st_size
    assert kept >= CHUNK
    assert not (folder / SHARDS[0]).exists()
    fetch(lock, folder, names=[SHARDS[0]], progress=False)
    assert [r.range for r in big_hub.bodies(SHARDS[0])] == ["", f"bytes={kept}-"]
    assert locked_file(folder / SHARDS[0]) == lock.files[SHARDS[0]]


@pytest.mark.parametrize("size", [500, -1, +1])
def test_stale_staging_file_is_continued_but_not_trusted(
    hub: StandinHub, folder: Path, caplog: pytest.LogCaptureFixture, size: int
) -> None:
    lock = lock_of(hub)
    full = lock.files[SHARDS[0]].size or 0
    (folder / INCOMING).mkdir(parents=True)
    (folder / INCOMING / SHARDS[0]).write_bytes(b"x" * (size if size > 1 else full + size))
    with caplog.at_level(logging.WARNING):
        fetch(lock, folder, progress=False)
    assert_complete(lock, folder)
    assert hub.bodies(SHARDS[0])[-1].range == ""
    assert size == 1 or f"{SHARDS[0]}: got sha256" in caplog.text


def test_right_size_with_one_wrong_byte_is_never_used(hub: StandinHub, folder: Path) -> None:
    lock = lock_of(hub)
    hub.faults = [Fault("body", SHARDS[0], body="flip", at=200)]
    fetch(lock, folder, progress=False)
    assert len(hub.bodies(SHARDS[0])) == 2
    assert_complete(lock, folder)

    (folder / SHARDS[0]).unlink()
    hub.faults = [Fault("body", SHARDS[0], times=ROUNDS, body="flip", at=200)]
    with pytest.raises(CheckpointError, match=rf"{SHARDS[0]}: got sha256 .*{lock.files[SHARDS[0]].sha256} by the lock"):
        fetch(lock, folder, progress=False)
    assert not (folder / SHARDS[0]).exists()


def test_hub_file_shorter_or_longer_than_locked_is_refused(hub: StandinHub, folder: Path) -> None:
    lock = lock_of(hub)
    size, sha256 = lock.files["config.json"].size or 0, lock.files["config.json"].sha256
    for wrong, words in ((size + 1, r"fewer bytes \(416\)"), (size - 1, f"more than {size - 1} bytes")):
        with pytest.raises(CheckpointError, match=words):
            fetch(with_file(lock, "config.json", wrong, sha256), folder, progress=False, patience=QUICK)
        assert not (folder / "config.json").exists()


def test_unknown_revision(hub: StandinHub, folder: Path) -> None:
    lock = lock_of(hub).model_copy(update={"revision": "f" * 40})
    with pytest.raises(CheckpointError, match=f"someone/tiny@{'f' * 40}.*404, no such revision"):
        fetch(lock, folder, progress=False)


def test_file_missing_from_the_repository_is_named(hub: StandinHub, folder: Path) -> None:
    lock = lock_of(hub)
    hub.hidden = {SHARDS[1]}
    with pytest.raises(CheckpointError, match=rf"{SHARDS[1]}: got 404, no such file.*molmo2 lock someone/tiny"):
        fetch(lock, folder, progress=False)


@pytest.mark.parametrize(("status", "code"), [(401, "GatedRepo"), (403, "GatedRepo"), (401, ""), (403, "")])
def test_gated_repository(hub: StandinHub, folder: Path, status: int, code: str) -> None:
    hub.faults = [Fault("resolve", times=99, status=status, code=code)]
    with pytest.raises(CheckpointError) as refused:
        fetch(lock_of(hub), folder, progress=False)
    assert f"got {status}" in str(refused.value)
    assert f"accept the licence at {hub.endpoint}/someone/tiny" in refused.value.fix
    assert "hf auth login" in refused.value.fix


def test_too_many_requests_then_success(hub: StandinHub, folder: Path) -> None:
    hub.faults = [Fault("body", SHARDS[0], status=429, retry_after="1")]
    before = time.monotonic()
    fetch(lock_of(hub), folder, progress=False)
    assert time.monotonic() - before >= 1
    assert_complete(lock_of(hub), folder)


def test_server_errors_then_success(hub: StandinHub, folder: Path) -> None:
    hub.faults = [
        Fault("body", SHARDS[0], status=500, times=2),
        Fault("resolve", "config.json", status=503, retry_after="0"),
    ]
    fetch(lock_of(hub), folder, progress=False, patience=QUICK)
    assert len(hub.bodies(SHARDS[0])) == 3
    assert_complete(lock_of(hub), folder)


def test_server_errors_that_stay_are_reported_and_what_arrived_is_kept(hub: StandinHub, folder: Path) -> None:
    lock = lock_of(hub)
    hub.faults = [
        Fault("body", SHARDS[0], status=502, times=2),
        Fault("body", SHARDS[0], body="truncate", at=1000),
        Fault("body", SHARDS[0], status=500, times=99),
    ]
    with pytest.raises(CheckpointError, match=rf"{SHARDS[0]}: got 502, an error in 2 tries"):
        fetch(lock, folder, names=[SHARDS[0]], progress=False, patience=Patience(attempts=2, first=0.01))
    hub.faults = hub.faults[1:]
    hub.faults[-1].times = 0
    hub.faults.append(Fault("body", SHARDS[0], body="truncate", at=2000))
    fetch(lock, folder, names=[SHARDS[0]], progress=False, patience=QUICK)
    assert [r.range for r in hub.bodies(SHARDS[0])][2:] == ["", "bytes=1000-", "bytes=2000-"]


def test_hub_that_cannot_be_reached(hub: StandinHub, folder: Path) -> None:
    lock = lock_of(hub)
    nowhere = lock.model_copy(update={"source": HubSource(repository=hub.repository, endpoint="ftp://127.0.0.1:9")})
    with pytest.raises(CheckpointError, match=r"got no answer.*expected a hub at ftp://"):
        fetch(nowhere, folder, progress=False)


def test_offline_with_everything_there_asks_nothing(hub: StandinHub, folder: Path) -> None:
    lock = lock_of(hub)
    fetch(lock, folder, progress=False)
    hub.requests.clear()
    assert len(fetch(lock, folder, offline=True, progress=False)) == len(lock.files)
    assert hub.requests == []


def test_offline_with_files_missing_or_corrupt_names_them_all(hub: StandinHub, folder: Path) -> None:
    lock = lock_of(hub)
    fetch(lock, folder, progress=False)
    hub.requests.clear()
    (folder / "config.json").unlink()
    (folder / SHARDS[1]).write_bytes(b"corrupt")
    with pytest.raises(CheckpointError, match=f"offline, and no file config.json, {SHARDS[1]},"):
        fetch(lock, folder, offline=True, progress=False)
    assert hub.requests == []
    assert not (folder / SHARDS[1]).exists()
    assert fetch(lock, folder, names=[SHARDS[0]], offline=True, progress=False) == [folder / SHARDS[0]]


def test_unconfirmed_figures_are_refused_by_name(hub: StandinHub, folder: Path) -> None:
    lock = with_file(with_file(lock_of(hub), "config.json", None, None), SHARDS[0], 10, None)
    with pytest.raises(CheckpointError, match=rf"of config\.json, {SHARDS[0]}.*molmo2 lock someone/tiny --revision"):
        fetch(lock, folder, progress=False)
    assert hub.requests == []
    fetch(lock, folder, names=[SHARDS[1]], progress=False)


def test_full_disk_is_noticed_before_the_first_request(hub: StandinHub, folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"bytes of free disk, expected 1,000,000,000,0"):
        fetch(with_file(lock_of(hub), SHARDS[0], 10**18, "0" * 64), folder, progress=False)
    assert hub.requests == []


def test_folder_that_cannot_be_made(hub: StandinHub, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match="expected a folder with room"):
        fetch(lock_of(hub), tmp_path / "file" / "folder", progress=False)


def test_processes_in_one_folder_do_not_hurt_each_other(hub: StandinHub, folder: Path, tmp_path: Path) -> None:
    lock, lock_path = lock_of(hub), tmp_path / "tiny.yaml"
    write_lock(lock, lock_path)
    half = len(lock.files) // 2
    shares = [list(lock.files)[:half], list(lock.files)[half:], [SHARDS[0]]]
    processes = [fetch_process(lock_path, folder, *share) for share in shares]
    errors = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], errors
    assert_complete(lock, folder)
    assert all(len(hub.bodies(file)) == 1 for file in lock.files)


def test_same_file_asked_twice_at_once_is_downloaded_once(big_hub: StandinHub, folder: Path) -> None:
    lock = lock_of(big_hub)
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(fetch, lock, folder, names=[SHARDS[0]], progress=False) for _ in range(2)]
        assert [future.result() for future in both] == [[folder / SHARDS[0]]] * 2
    assert len(big_hub.bodies(SHARDS[0])) == 1


def test_first_failure_stops_the_other_downloads(big_hub: StandinHub, folder: Path) -> None:
    lock = lock_of(big_hub)
    big_hub.faults = [
        Fault("body", SHARDS[0], status=500, times=99),
        Fault("resolve", "config.json", status=403),
    ]
    before = time.monotonic()
    with pytest.raises(CheckpointError, match=r"config\.json: got 403"):
        fetch(lock, folder, names=[SHARDS[0], "config.json"], progress=False, patience=Patience(first=60.0))
    assert time.monotonic() - before < 10


def test_directory_is_linked_and_verified(hub: StandinHub, folder: Path) -> None:
    lock = lock_directory(hub.directory, name="mine", mask_policy="causal")
    fetch(lock, folder, offline=True, progress=False)
    assert_complete(lock, folder)
    assert (folder / SHARDS[0]).samefile(hub.directory / SHARDS[0])
    (folder / SHARDS[0]).unlink()
    (hub.directory / SHARDS[0]).write_bytes(b"trained on")
    with pytest.raises(CheckpointError, match=rf"{SHARDS[0]}: got 10 bytes.*molmo2 lock --from"):
        fetch(lock, folder, progress=False)
    (hub.directory / SHARDS[0]).unlink()
    with pytest.raises(CheckpointError, match=rf"{SHARDS[0]}: got no such file"):
        fetch(lock, folder, progress=False)
    assert (hub.requests, (folder / SHARDS[0]).exists()) == ([], False)


def test_progress_is_a_line_a_file_without_a_terminal(
    hub: StandinHub, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = lock_of(hub)
    fetch(lock, folder, names=["config.json"], progress=True)
    fetch(lock, folder, names=["config.json", SHARDS[0]], progress=True)
    size, shard = f"{lock.files['config.json'].size:,}", f"{lock.files[SHARDS[0]].size:,}"
    assert capsys.readouterr().err.splitlines() == [
        f"config.json: {size} bytes, downloaded and verified",
        f"config.json: {size} bytes, there and verified",
        f"{SHARDS[0]}: {shard} bytes, downloaded and verified",
    ]
    fetch(lock, folder, progress=False)
    assert capsys.readouterr().err == ""


def test_progress_is_one_bar_on_a_terminal(hub: StandinHub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    fetch(lock_of(hub), folder, progress=True)
    assert "checkpoint" in terminal.getvalue()
    assert "downloaded and verified" not in terminal.getvalue()


def test_embedded_checkpoint_is_generated_and_verified(folder: Path) -> None:
    lock = embedded_lock(0)
    fetch(lock, folder, names=["config.json", "tokenizer.json"], offline=True, progress=False)
    fetch(lock, folder, offline=True, progress=False)
    assert_complete(lock, folder)
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config\.json: got .* from the generator"):
        fetch(with_file(lock, "config.json", 5, "0" * 64), folder, names=["config.json"], progress=False)
    assert not (folder / "config.json").exists()
