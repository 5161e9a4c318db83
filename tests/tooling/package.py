"""Builds the sdist, and from the unpacked sdist the wheel, then checks both: their files, and their metadata by twine.

python -m tests.tooling.package [--tag v1.2.3]

They go to dist/. With --tag the version must be that of the tag; a release calls it so.
"""

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from email import message_from_string
from email.message import Message
from importlib.util import find_spec
from pathlib import Path

import django_rmq_retry
from tests.tooling import machine

ROOT = Path(__file__).parents[2]
NAME = "django_rmq_retry"
TOOLS = ("hatchling", "twine")
NOT_SHIPPED = ("__pycache__", ".pyc", ".DS_Store")


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """The two archives of one version."""

    sdist: Path
    wheel: Path

    @property
    def in_sdist(self) -> set[str]:
        """The sdist's files, without the folder that holds them all."""
        with tarfile.open(self.sdist) as archive:
            return {name.partition("/")[2] for name in archive.getnames()}

    @property
    def in_wheel(self) -> set[str]:
        """The wheel's files."""
        with zipfile.ZipFile(self.wheel) as archive:
            return set(archive.namelist())

    @property
    def metadata(self) -> Message:
        """The wheel's core metadata."""
        [name] = [name for name in self.in_wheel if name.endswith(".dist-info/METADATA")]
        with zipfile.ZipFile(self.wheel) as archive:
            return message_from_string(archive.read(name).decode())


def lack() -> str:
    """Return the reason why no package can be built here, or ""."""
    missing = [tool for tool in TOOLS if find_spec(tool) is None]
    return f"{' and '.join(missing)} to build the package. Run `pip install --group package`." if missing else ""


def build(source: Path, target: Path) -> Built:
    """Build the sdist of `source`, and the wheel of that sdist, into `target`."""
    sdist = _hatch(source, target, "sdist")
    with tempfile.TemporaryDirectory() as folder:
        return Built(sdist=sdist, wheel=_hatch(unpack(sdist, Path(folder)), target, "wheel"))


def unpack(sdist: Path, folder: Path) -> Path:
    """Unpack an sdist; return the folder that holds its files."""
    machine.unpack(sdist, folder)
    return folder / sdist.name.removesuffix(".tar.gz")


def _hatch(source: Path, target: Path, kind: str) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(target.resolve())]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    [made] = target.glob("*.tar.gz" if kind == "sdist" else "*.whl")
    return made


def wrong_in_wheel(files: set[str], source: Path) -> list[str]:
    """Return sentences about a wheel that lacks a file of the package, or holds another."""
    package = {str(path.relative_to(source)) for path in (source / NAME).rglob("*") if path.is_file()}
    package = {name for name in package if not name.endswith(NOT_SHIPPED) and "__pycache__" not in name}
    shipped = {name for name in files if ".dist-info/" not in name}
    return [
        *(f"The wheel lacks {name}." for name in sorted(package - shipped)),
        *(f"The wheel holds {name}, which is no file of the package." for name in sorted(shipped - package)),
    ]


def wrong_in_sdist(files: set[str], source: Path) -> list[str]:
    """Return sentences about an sdist that lacks a file of the repository."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=source, capture_output=True, text=True, check=True).stdout
    return [f"The sdist lacks {name}." for name in sorted(set(tracked.split("\0")) - files - {""})]


def rendered(built: Built) -> str:
    """Return what twine objects to in the metadata, or ""."""
    command = [sys.executable, "-m", "twine", "--no-color", "check", "--strict", str(built.sdist), str(built.wheel)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def main(arguments: list[str]) -> int:
    """Build into dist/; return 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.tooling.package")
    parser.add_argument("--tag", help="the version's tag, such as v1.2.3")
    tag = parser.parse_args(arguments).tag
    version = django_rmq_retry.__version__
    if tag and tag != f"v{version}":
        print(f"The tag is {tag}, and the package's version is {version}. Tag v{version}, or change the version.")
        return 1
    target = ROOT / "dist"
    shutil.rmtree(target, ignore_errors=True)
    built = build(ROOT, target)
    wrong = wrong_in_wheel(built.in_wheel, ROOT) + wrong_in_sdist(built.in_sdist, ROOT)
    print("\n".join(filter(None, [*wrong, rendered(built)])) or f"{built.sdist.name} and {built.wheel.name} are right.")
    return 1 if wrong or rendered(built) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
