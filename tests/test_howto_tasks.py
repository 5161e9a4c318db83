"""The page "Your first task on RabbitMQ", followed from ``startproject`` to the requeued task."""

from pathlib import Path

import pytest

from tests.tooling.pages import page
from tests.tooling.tutorial import walk

FOLLOWED = page("first-task.md").read_text()


@pytest.mark.slow
@pytest.mark.nightly
def test_the_page_works_from_start_to_end(tmp_path: Path) -> None:
    with walk(tmp_path) as walker:
        walker.follow(FOLLOWED)

    assert walker.done.count("item") == 3
    assert walker.done.count("console") == 9
