"""The files of version 1, out of git's history, and a stage for two versions."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.scene import ROOT, Scene
from tests.tooling.machine import unpack
from tests.tooling.vhosts import Vhost

FIRST_OF_THE_NEXT = "django_rmq_retry/migrations/0002_outbox.py"
"""Version 1 is the state before this file was added."""


@pytest.fixture
def scene(vhost: Vhost, tmp_path: Path) -> Iterator[Scene]:
    made = Scene(vhost=vhost, folder=tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="session")
def version_1(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all of it; where the history does not reach so far back the test is skipped."""
    added = git("log", "--diff-filter=A", "--format=%H", "--", FIRST_OF_THE_NEXT).decode().split()
    archive = git("archive", f"{added[-1]}^") if added else b""
    if not archive:
        pytest.skip("NOT TRIED: old and new side by side needs git's whole history (git fetch --unshallow).")
    folder = tmp_path_factory.mktemp("version-1")
    packed = folder.with_suffix(".tar")
    packed.write_bytes(archive)
    unpack(packed, folder)
    return folder


def git(*words: str) -> bytes:
    """What it says; nothing where it, or what is asked for, is not there."""
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=False)
    except FileNotFoundError:
        return b""
    return b"" if done.returncode else done.stdout
