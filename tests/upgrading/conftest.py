"""The last released version out of git's history, and a stage for two versions."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.scene import ROOT, Scene
from tests.tooling.machine import unpack
from tests.tooling.vhosts import Vhost


@pytest.fixture
def scene(vhost: Vhost, tmp_path: Path) -> Iterator[Scene]:
    made = Scene(vhost=vhost, folder=tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="session")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the newest tagged version; until a version is tagged, with the last commit."""
    tags = git("tag", "--list", "v*", "--sort=-v:refname").decode().split()
    archive = git("archive", tags[0] if tags else "HEAD")
    if not archive:
        pytest.skip("NOT TRIED: old and new side by side needs a git checkout (git fetch --tags --unshallow).")
    folder = tmp_path_factory.mktemp("released")
    packed = folder.with_suffix(".tar")
    packed.write_bytes(archive)
    unpack(packed, folder)
    return folder


def git(*words: str) -> bytes:
    """Return git's output; nothing if git, or the requested object, is missing."""
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=False)
    except FileNotFoundError:
        return b""
    return b"" if done.returncode else done.stdout
