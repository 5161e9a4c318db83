"""A verdict describes the decision in short texts, even if the exception is broken."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_rmq_retry.messages import ErrorNote, Reason
from django_rmq_retry.messages.texts import short
from django_rmq_retry.policies import discard, halt, park
from django_rmq_retry.policies.verdict import DETAIL_BYTES
from tests.messages.exceptions import BankDown


class Broken(Exception):
    def __init__(self, *, raising: BaseException) -> None:
        self.raising = raising

    def __str__(self) -> str:
        raise self.raising


def test_a_note_names_the_class_and_the_text() -> None:
    note = ErrorNote.of(BankDown("timeout"))

    assert (note.kind, note.text) == ("BankDown", "timeout")
    assert str(note) == "BankDown: timeout"
    assert str(ErrorNote.of(BankDown())) == "BankDown"


@pytest.mark.parametrize(
    "raising", [RuntimeError(), RecursionError(), SystemExit(), KeyboardInterrupt(), MemoryError()]
)
def test_a_note_survives_an_exception_with_a_failing_str(raising: BaseException) -> None:
    note = ErrorNote.of(Broken(raising=raising))

    assert note.text == f"(its text cannot be read: {type(raising).__name__})"


def test_a_note_survives_a_str_that_returns_no_string() -> None:
    class Number(Exception):
        def __str__(self) -> str:
            return 7  # type: ignore[return-value]  # noqa: PLE0307  what a careless project does

    assert ErrorNote.of(Number()).text == "(its text cannot be read: TypeError)"


def test_a_text_of_a_megabyte_is_cut() -> None:
    note = ErrorNote.of(BankDown("x" * 1_000_000))

    assert note.text == "x" * 397 + "…"


def test_a_class_with_a_name_of_a_megabyte_is_cut() -> None:
    note = ErrorNote.of(type("B" * 1_000_000, (Exception,), {})())

    assert note.kind == "B" * 97 + "…"


def test_a_note_escapes_nul_and_lone_surrogates() -> None:
    assert ErrorNote.of(BankDown("a\0b\ud800c\udcff")).text == "a\\x00b\\ud800c\\udcff"


@given(st.text(st.characters()) | st.integers() | st.binary(), st.integers(min_value=4, max_value=500))
def test_a_short_text_fits_headers_logs_and_databases(value: object, limit: int) -> None:
    text = short(value, limit)

    assert len(text.encode("utf-8")) <= limit
    assert "\0" not in text


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=100))
def test_a_short_valid_text_is_kept(text: str) -> None:
    assert short(text) == text


def test_details_are_cut_too() -> None:
    for verdict in (park(Reason.REQUESTED, "d" * 10**6), discard("d" * 10**6), halt(1, detail="d" * 10**6)):
        assert verdict.detail == "d" * (DETAIL_BYTES - 3) + "…"
