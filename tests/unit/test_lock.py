import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from standin_hub import COMMIT, Fault, StandinHub
from tiny_checkpoint import SHARDS, SMALL_FILES, write_index, write_tiny

from molmo2_iree.build.hub import Patience
from molmo2_iree.build.lock import INDEX, MASK_POLICIES, SINGLE, lock_directory, lock_hub, locked_file, reconcile
from molmo2_iree.errors import CheckpointError, MolmoError, UnsupportedError
from molmo2_iree.lock import DirectorySource, HubSource, Lock, MaskPolicy, content_revision, read_lock, write_lock

QUICK = Patience(attempts=3, first=0.01)
NEEDED = {*SMALL_FILES, "chat_template.jinja", INDEX, *SHARDS}
SHIPPED = Path(__file__).parents[2] / "config" / "locks" / "molmo2-4b.yaml"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[StandinHub]:
    with StandinHub(write_tiny(tmp_path / "served")) as hub:
        yield hub


def lock(hub: StandinHub, revision: str | None = COMMIT, policy: MaskPolicy | None = "causal") -> Lock:
    return lock_hub(
        hub.repository,
        revision,
        name="tiny",
        mask_policy=policy,
        endpoint=hub.endpoint,
        progress=False,
        patience=QUICK,
    )


def figures(lock: Lock, file: str, **changed: object) -> Lock:
    return lock.model_copy(update={"files": {**lock.files, file: lock.files[file].model_copy(update=changed)}})


def test_lock_has_every_needed_file_with_size_and_sha256_and_no_other(hub: StandinHub) -> None:
    made = lock(hub)
    assert set(made.files) == NEEDED
    assert all(made.files[file] == locked_file(hub.directory / file) for file in NEEDED)
    assert made.source == HubSource(repository=hub.repository, endpoint=hub.endpoint)
    assert (made.revision, made.mask_policy, made.folder) == (COMMIT, "causal", f"tiny@{COMMIT}")
    assert (made.architecture.text.layers, made.architecture.vision.layers, made.architecture.video) == (
        2,
        (2, 1),
        True,
    )


def test_locking_downloads_no_shard_and_no_file_it_does_not_need(hub: StandinHub) -> None:
    lock(hub)
    asked = {request.file for request in hub.requests if request.route != "info"}
    assert asked == NEEDED - {*SHARDS, "tokenizer.json"}


def test_lock_survives_yaml_and_is_the_same_each_time(hub: StandinHub, tmp_path: Path) -> None:
    made, path = lock(hub), tmp_path / "locks" / "tiny.yaml"
    write_lock(made, path)
    assert read_lock(path) == made == lock(hub)


def test_video_file_is_optional(hub: StandinHub) -> None:
    hub.hidden = {"video_preprocessor_config.json"}
    made = lock(hub)
    assert set(made.files) == NEEDED - hub.hidden
    assert made.architecture.video is False


def test_single_weights_file_without_an_index(hub: StandinHub) -> None:
    (hub.directory / SHARDS[0]).rename(hub.directory / SINGLE)
    hub.hidden = {INDEX, SHARDS[1]}
    assert set(lock(hub).files) == NEEDED - {INDEX, *SHARDS} | {SINGLE}


@pytest.mark.parametrize("revision", ["main", None])
def test_branch_is_no_pin_and_the_refusal_names_its_commit_and_the_command(
    hub: StandinHub, revision: str | None
) -> None:
    with pytest.raises(CheckpointError) as refused:
        lock(hub, revision)
    command = f"molmo2 lock someone/tiny --revision {COMMIT} --mask-policy causal --endpoint {hub.endpoint}"
    assert f"points to {COMMIT} now" in str(refused.value)
    assert refused.value.fix == command
    assert {request.route for request in hub.requests} == {"info"}


def test_unknown_revision_is_refused(hub: StandinHub) -> None:
    with pytest.raises(CheckpointError, match="404, no such revision"):
        lock(hub, "f" * 40)


def test_repository_name_without_owner_is_refused(hub: StandinHub) -> None:
    hub.repository = "tiny"
    with pytest.raises(CheckpointError, match="OWNER/NAME"):
        lock(hub)


def test_mask_policy_must_be_stated_before_anything_is_asked(hub: StandinHub) -> None:
    with pytest.raises(UnsupportedError, match=r"no file says it.*MolmoWeb.*--mask-policy"):
        lock(hub, policy=None)
    assert hub.requests == []


def test_mask_policy_of_the_releases_is_known(hub: StandinHub) -> None:
    hub.repository = "allenai/Molmo2-8B"
    assert lock(hub, policy=None).mask_policy == MASK_POLICIES[hub.repository] == "bidirectional"
    with pytest.raises(UnsupportedError, match="got causal, expected bidirectional"):
        lock(hub, policy="causal")


@pytest.mark.parametrize("file", ["processor_config.json", INDEX, SHARDS[1]])
def test_file_missing_from_the_listing_is_named(hub: StandinHub, file: str) -> None:
    hub.hidden = {file}
    missing = SINGLE if file == INDEX else file
    with pytest.raises(
        CheckpointError, match=f"no file {missing}" + (r" \(named by its index\)" * (file == SHARDS[1]))
    ):
        lock(hub)


@pytest.mark.parametrize("shard", ["../secret.safetensors", "folder/a.safetensors", "weights.bin"])
def test_odd_shard_name_in_the_index_is_refused(hub: StandinHub, shard: str) -> None:
    write_index(hub.directory, {"model.transformer.ln_f.weight": shard})
    with pytest.raises(CheckpointError, match="weight_map"):
        lock(hub)


def test_index_without_shards_is_refused(hub: StandinHub) -> None:
    (hub.directory / INDEX).write_text('{"weight_map": []}')
    with pytest.raises(CheckpointError, match="no shards"):
        lock(hub)


def test_file_that_is_no_json_object_is_refused(hub: StandinHub) -> None:
    (hub.directory / "generation_config.json").write_text("[1, 2")
    with pytest.raises(CheckpointError, match=r"generation_config\.json: got no JSON object"):
        lock(hub)


def test_unsupported_model_is_refused_by_name(hub: StandinHub) -> None:
    config = json.loads((hub.directory / "config.json").read_text()) | {"model_type": "molmo_point"}
    (hub.directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedError, match="molmo_point"):
        lock(hub)


def test_shard_without_a_sha256_in_the_metadata_is_refused_not_downloaded(hub: StandinHub) -> None:
    hub.is_lfs = lambda name: name == SHARDS[0]
    with pytest.raises(CheckpointError, match=rf"{SHARDS[1]}: got no sha256.*--from"):
        lock(hub)
    assert not hub.bodies(SHARDS[1])


def test_wrong_byte_in_a_small_file_is_noticed(hub: StandinHub) -> None:
    hub.faults = [Fault("resolve", "chat_template.jinja", body="flip", at=3)]
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja: got content"):
        lock(hub)


def test_server_errors_are_waited_out_and_then_reported(hub: StandinHub) -> None:
    hub.faults = [Fault("info", status=500, times=2), Fault("resolve", "config.json", status=503, times=2)]
    assert set(lock(hub).files) == NEEDED
    hub.faults = [Fault("info", status=500, times=3)]
    with pytest.raises(CheckpointError, match="500, an error in 3 tries"):
        lock(hub)


def test_hub_that_is_none_is_refused(hub: StandinHub) -> None:
    hub.faults = [Fault("info", status=200)]  # an empty page instead of a description
    with pytest.raises(CheckpointError, match="no model description"):
        lock(hub)


def test_hub_that_does_not_answer(hub: StandinHub) -> None:
    with pytest.raises(
        CheckpointError, match=r"got no answer .* in 3 tries, expected a hub at http://127\.0\.0\.1:9\."
    ):
        lock_hub(
            "a/b", COMMIT, name="b", mask_policy="causal", endpoint="http://127.0.0.1:9", progress=False, patience=QUICK
        )


@pytest.mark.parametrize("status", [401, 403])
def test_gated_repository(hub: StandinHub, status: int) -> None:
    hub.faults = [Fault("resolve", status=status, code="GatedRepo")]
    with pytest.raises(CheckpointError, match=rf"got {status}, the repository is gated.*hf auth login"):
        lock(hub)


def test_too_many_requests_then_success_after_the_asked_pause(hub: StandinHub) -> None:
    hub.faults = [Fault("info", status=429, retry_after="0.5")]
    before = time.monotonic()
    assert set(lock(hub).files) == NEEDED
    assert time.monotonic() - before >= 0.5


def test_progress_names_each_file_read(hub: StandinHub, capsys: pytest.CaptureFixture[str]) -> None:
    made = lock_directory(hub.directory, name="mine", mask_policy="causal", progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in lines] == list(made.files)


def test_a_directory_of_the_project_is_named_from_its_root(hub: StandinHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(hub.directory.parent)
    for given in (hub.directory, Path(hub.directory.name)):
        made = lock_directory(given, name="mine", mask_policy="bidirectional")
        assert made.source == DirectorySource(path=hub.directory.name)


def test_directory_is_a_source(hub: StandinHub) -> None:
    made = lock_directory(hub.directory, name="mine", mask_policy="bidirectional")
    assert made.source == DirectorySource(path=str(hub.directory.resolve()))
    assert made.files == lock(hub).files
    assert made.revision == content_revision(made.files)
    (hub.directory / SHARDS[1]).write_bytes(b"other")
    assert lock_directory(hub.directory, name="mine", mask_policy="bidirectional").revision != made.revision


def test_directory_refusals(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="--mask-policy"):
        lock_directory(tmp_path, name="mine", mask_policy=None)
    with pytest.raises(CheckpointError, match="no such directory"):
        lock_directory(tmp_path / "none", name="mine", mask_policy="causal")
    with pytest.raises(CheckpointError, match=r"no file config\.json, "):
        lock_directory(tmp_path, name="mine", mask_policy="causal")
    with pytest.raises(CheckpointError, match="lock, name"):
        lock_directory(write_tiny(tmp_path), name="No Name", mask_policy="causal")


@pytest.mark.parametrize(("figure", "was"), [("size", 1), ("sha256", "0" * 64)])
def test_contradiction_of_a_known_figure_is_refused(hub: StandinHub, figure: str, was: object) -> None:
    new = lock(hub)
    old = figures(new, SHARDS[0], **{figure: was})
    with pytest.raises(CheckpointError) as refused:
        reconcile(old, new)
    text = str(refused.value)
    assert all(part in text for part in (SHARDS[0], f"{was} in the lock", str(getattr(new.files[SHARDS[0]], figure))))


def test_unknown_figures_are_completed_and_another_revision_replaces(hub: StandinHub) -> None:
    new = lock(hub)
    old = figures(new, SHARDS[0], size=None, sha256=None)
    assert reconcile(old, new) == new
    assert reconcile(figures(new, SHARDS[0], size=1).model_copy(update={"revision": "f" * 40}), new) == new


def test_shipped_lock_pins_the_release_and_leaves_unconfirmed_figures_open() -> None:
    shipped = read_lock(SHIPPED)
    assert shipped.source == HubSource(repository="allenai/Molmo2-4B")
    assert shipped.folder == "molmo2-4b@042abfa7a38879a376cec03d949eff0aefaa0600"
    assert shipped.mask_policy == "bidirectional"
    known = {file for file, locked in shipped.files.items() if locked.sha256}
    assert known == {"config.json", "tokenizer.json", *(f"model-0000{n}-of-00004.safetensors" for n in range(1, 5))}
    shards = [locked.size or 0 for file, locked in shipped.files.items() if file.startswith("model-")]
    assert 0 < sum(shards) - 19_403_476_800 < 400_000  # four headers over the index's tensor bytes
    text, vision = shipped.architecture.text, shipped.architecture.vision
    assert (text.width, text.layers, text.kv_heads, vision.layers, vision.blocks) == (2560, 36, 8, (24, 18), 25)
    assert shipped.architecture.tokens.stop == (151645,)


def test_refusals_are_of_one_family() -> None:
    assert issubclass(CheckpointError, MolmoError)
    assert issubclass(UnsupportedError, MolmoError)
