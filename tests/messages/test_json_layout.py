"""JSON set out in lines."""

import json

from hypothesis import given
from hypothesis import strategies as st

from django_rmq_retry.messages.masking import indented

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def test_every_entry_gets_a_line_and_numbers_stay_exact() -> None:
    text = '{"amount":1.10,"ids":[12345678901234567890,1E400],"none":{},"list":[]}'

    assert indented(text, most=1000) == (
        '{\n  "amount": 1.10,\n  "ids": [\n    12345678901234567890,\n    1E400\n  ],\n  "none": {},\n  "list": []\n}'
    )


def test_too_deep_json_is_not_indented() -> None:
    assert indented("[" * 100 + "]" * 100, most=30_000) is not None
    assert indented("[" * 101 + "]" * 101, most=30_000) is None


def test_json_that_would_grow_too_long_is_not_indented() -> None:
    text = "[" * 50 + ",".join("1" * 100) + "]" * 50

    assert len(indented(text, most=50_000) or "") == 15_398
    assert indented(text, most=15_000) is None


@given(VALUES)
def test_indented_json_equals_json_dumps(value: object) -> None:
    for ascii_only in (True, False):
        text = json.dumps(value, ensure_ascii=ascii_only)

        assert indented(text, most=1_000_000) == json.dumps(value, ensure_ascii=ascii_only, indent=2)
