"""MariaDB errors are classified alike for all versions of the driver."""

from typing import Any

import pytest
from django.db import OperationalError

from django_rmq_retry.database_errors import clashed, uncertain


class FromServer(Exception):
    """Return an error like that of PyMySQL 1.2: the number is first, followed by the state."""

    def __init__(self, number: int, sqlstate: Any) -> None:
        super().__init__(number, "said by the server")
        self.sqlstate = sqlstate


@pytest.mark.parametrize(
    ("number", "state", "outcome"),
    [
        (1205, "HY000", (True, False)),
        (1020, "HY000", (True, False)),
        (1213, "40001", (True, False)),
        (1927, "70100", (False, True)),
        (1053, "08S01", (False, True)),
        (1146, "42S02", (False, False)),
    ],
)
@pytest.mark.parametrize("with_state", [True, False])
def test_an_sqlstate_beside_the_error_number_changes_nothing(
    number: int, state: str, outcome: tuple[bool, bool], *, with_state: bool
) -> None:
    error = OperationalError(number)
    error.__cause__ = FromServer(number, state if with_state else None)

    assert (clashed(error), uncertain(error)) == outcome
