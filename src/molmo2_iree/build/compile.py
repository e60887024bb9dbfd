"""Compile a program for a target through a cache keyed by program text, flags and compiler version."""

import hashlib
import os
import subprocess
from importlib.metadata import version
from pathlib import Path

from iree.compiler.tools.binaries import find_tool

from molmo2_iree.build.flags import target_flags
from molmo2_iree.config import Target
from molmo2_iree.errors import BuildError
from molmo2_iree.files import copy_whole, write_whole
from molmo2_iree.identity import digest, file_sha256


def compile_program(program: Path, target: Target, output: Path, cache: Path, pinned: str) -> bool:
    """Write ``output`` from the program's text; True if the cache had it. Readers never see a half-written module.

    BuildError where the installed compiler is not the pinned one or the compiler refuses the program.
    """
    check_pin("iree", "iree-base-compiler", pinned)
    text, flags = program.read_bytes(), target_flags(target)
    key = digest([hashlib.sha256(text).hexdigest(), flags, pinned])
    cached, proof = cache / f"{key}.vmfb", cache / f"{key}.sha256"
    hit = cached.exists() and proof.exists() and proof.read_bytes() == file_sha256(cached).encode()
    if not hit:
        cache.mkdir(parents=True, exist_ok=True)
        temporary = cache / f".{key}.{os.getpid()}.tmp"
        try:
            run_compiler(text, flags, temporary, program.name)
            proof_text = file_sha256(temporary)
            temporary.replace(cached)
        finally:
            temporary.unlink(missing_ok=True)
        write_whole(proof, proof_text)
    copy_whole(cached, output)
    return hit


def run_compiler(text: bytes, flags: list[str], output: Path, name: str) -> None:
    """Feed the text on standard input: a path on the command line would be stored in the module."""
    command = [find_tool("iree-compile"), "-", "-o", str(output), *flags]
    done = subprocess.run(command, input=text, capture_output=True, check=False)
    if done.returncode:
        message = done.stderr.decode(errors="replace").strip()
        first = next((line for line in message.splitlines() if "error:" in line), message[:300])
        raise BuildError(
            f"compiling {name}",
            got=first or f"exit status {done.returncode}",
            expected="a module",
            fix=f"read the whole message with: iree-compile {name} {' '.join(flags)}",
        )


def check_pin(name: str, distribution: str, pinned: str) -> None:
    """Refuse an installed tool that is not the one the configuration pins."""
    installed = version(distribution)
    if installed != pinned:
        raise BuildError(
            f"toolchain.{name}",
            got=f"{distribution} {installed} installed",
            expected=pinned,
            fix=f"pip install {distribution}=={pinned}, or change the pin",
        )
