"""Notes of handlers for the test that runs them as processes."""

import os
from pathlib import Path


def note(text: str) -> None:
    with Path(os.environ["SHOP_NOTES"]).open("a") as notes:
        notes.write(f"{os.getpid()} {text}\n")
