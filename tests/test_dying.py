"""Scripts that die at a step name functions of the product in strings; most of their tests run in no push."""

from typing import Any

import pytest

from tests.operators import dying as operators
from tests.operators import dying_early as early
from tests.ordering import dying as ordering
from tests.parked import dying as parked

PLACES = [
    *(pytest.param(*place, id=f"ordering: {step}") for step, place in ordering.steps().items()),
    *(pytest.param(*place, id=f"parked: {step}") for step, place in parked.steps().items()),
    *(pytest.param(*early.place(step), id=f"early: {step}") for step in early.STEPS),
    *(
        pytest.param(*operators.place(kind, step), id=f"{kind}: {step}")
        for kind, steps in operators.KINDS.items()
        for step in steps
    ),
]


@pytest.mark.parametrize(("owner", "name", "when"), PLACES)
def test_the_function_at_which_a_process_dies_exists(owner: Any, name: str, when: str) -> None:
    assert callable(getattr(owner, name, None))
    assert when in {"before", "first", "after", "confirmed"}
