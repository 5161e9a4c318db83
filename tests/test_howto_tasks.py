"""The page "Django's tasks on RabbitMQ": its project, followed from ``startproject`` to the requeued task."""

from pathlib import Path

import pytest

from tests.tooling.pages import page
from tests.tooling.tutorial import walk

FOLLOWED = page("tasks.md").read_text().partition("## Try it")[2].partition("\n## ")[0]


@pytest.mark.slow
@pytest.mark.nightly
def test_the_page_works_from_start_to_end(tmp_path: Path) -> None:
    with walk(tmp_path) as walker:
        walker.follow(FOLLOWED)

    assert walker.done.count("item") == 3
    assert walker.done.count("console") == 9
