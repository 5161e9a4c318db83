"""What a publish says besides its data is checked before anything is sent."""

from typing import Any

import pytest

from django_rmq_retry.core.errors import ConfigurationError, HeadersTooLarge
from django_rmq_retry.options import Options
from django_rmq_retry.publishing import message_of


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"message_id": 5}, "message_id=… takes a text of at most 255 bytes, not 5"),
        ({"type": "x" * 256}, "type=… takes a text of at most 255 bytes"),
        ({"headers": {1: 2}}, "A header's name is a text, not 1"),
        ({"headers": {"x": "\ud800"}}, "The headers cannot be written"),
        ({"headers": {"x": object()}}, "The headers cannot be written"),
        ({"expiration": 0}, "expiration=…"),
    ],
)
def test_what_cannot_be_said_is_a_sentence(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        message_of({}, options=Options(**options))


def test_headers_that_no_frame_holds_are_refused_before_anything_is_sent() -> None:
    with pytest.raises(HeadersTooLarge):
        message_of({}, options=Options(headers={"x": "x" * 200_000}))
