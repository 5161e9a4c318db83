"""The README: a reader does what it says in a new project."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.tooling.pages import ROOT, blocks
from tests.tooling.waiting import wait_until

pytestmark = pytest.mark.slow

BLOCKS = blocks(ROOT / "README.md")
PATIENCE = 90


class Reader:
    """A new project in a folder, and the commands that are typed there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("RMQ_", "DJANGO_"))}
        # Not unbuffered: `print` would write its parts one by one, and log lines of other threads between them.
        self.environment = ours | {"PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}

    def types(self, *words: str) -> str:
        command = [sys.executable, *words]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=PATIENCE, check=True
        )
        return done.stdout

    def writes(self, text: str) -> None:
        """Write a block into the file that its first line names."""
        name = text.partition("\n")[0].removeprefix("# ")
        path = self.folder / ("shop/settings.py" if name == "settings.py" else name)
        with path.open("a") as file:
            file.write("\n" + text)

    @contextmanager
    def leaves_running(self, *words: str) -> Iterator[Path]:
        log = self.folder / "output.log"
        with log.open("w") as output:
            command = [sys.executable, *words]
            process = subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=output, stderr=output)
            try:
                yield log
            finally:
                process.send_signal(signal.SIGTERM)
                assert process.wait(PATIENCE) == 0


def commands() -> list[list[str]]:
    """Return the commands of the README that are typed in the project, in order."""
    lines = [line for block in BLOCKS if not block.kind for line in block.text.splitlines()]
    quoted = [line.removeprefix("python ").split('"') for line in lines if line.startswith("python manage.py")]
    return [[*first.split(), *rest[:1]] for first, *rest in quoted]


def test_the_quick_start_of_the_readme_works(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    reader.types("-m", "django", "startproject", "shop", ".")
    reader.types("manage.py", "startapp", "payments")
    for block in BLOCKS:
        if block.kind == "python":
            reader.writes(block.text)
    migrate, consume, publish, look = commands()

    reader.types(*migrate)
    with reader.leaves_running(*consume) as log:
        wait_until(lambda: "event=connected" in log.read_text(), PATIENCE, what="the consumer is connected")
        reader.types(*publish)
        wait_until(lambda: log.read_text().count("event=park ") == 2, PATIENCE, what="two messages are parked")
        wait_until(lambda: reader.types(*look).count("payments.charge") == 2, PATIENCE, what="two parked are listed")

    assert "charged 5" in log.read_text()
    assert log.read_text().count("event=retry ") == 3
