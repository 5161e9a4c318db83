"""The drawings of the documentation are what the product draws today."""

import pytest

from tests.tooling.drawings import FOLDER, HANDLERS, drawn


@pytest.mark.parametrize("name", HANDLERS)
def test_a_drawing_is_up_to_date(name: str) -> None:
    current = (FOLDER / f"{name}.svg").read_text()

    assert current == drawn(name), "Draw it anew with `python -m tests.tooling.drawings`"
