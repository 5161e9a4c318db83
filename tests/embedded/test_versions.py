"""The version that the engine follows for each behaviour, and times that only its clock measures exactly."""

import pytest

from django_rmq_retry.embedded.engine.behaviour import V4_0, V4_3, behaviour


@pytest.mark.parametrize(
    ("asked", "found"),
    [("4.0", V4_0), ("4.2", V4_0), ("4.3", V4_3), ("4.10", V4_3), ("5.0", V4_3)],
)
def test_a_version_behaves_as_the_newest_known_one_before_it(asked: str, found: object) -> None:
    assert behaviour(asked) is found


def test_a_version_older_than_any_known_is_refused() -> None:
    with pytest.raises(ValueError, match=r"behaves as RabbitMQ 4\.0 or 4\.3, not as '3\.13'\."):
        behaviour("3.13")
