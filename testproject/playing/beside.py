"""Commands that run beside the story, and end with it."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from django.conf import settings

GRACE = 15


@contextmanager
def beside(*words: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a command of manage.py meanwhile; it is asked to end, and made to where it does not."""
    # A session of its own: a Ctrl-C of the terminal is ours to pass on.
    command = [sys.executable, str(settings.BASE_DIR / "manage.py"), *words]
    child = subprocess.Popen(command, start_new_session=True)  # noqa: S603 - our own manage.py
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(GRACE)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
