"""The tutorial does what it says: its files, commands, outputs and steps, followed from start to end."""

from pathlib import Path

import pytest

from tests.tooling.pages import page
from tests.tooling.tutorial import walk

TEXT = page("tutorial.md").read_text()


@pytest.mark.slow
@pytest.mark.nightly
def test_the_tutorial_works_from_start_to_end(tmp_path: Path) -> None:
    with walk(tmp_path) as walker:
        walker.follow(TEXT)

    assert walker.done.count("item") == 5
    assert walker.done.count("console") > 12
