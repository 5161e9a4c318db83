"""The log lines of an attempt."""

import logging
import threading
from collections.abc import Iterator

import pytest
from asgiref.sync import async_to_sync

from django_rmq_retry.attempts import captured_log

bank = logging.getLogger("bank.gateway")


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    with captured_log.captured():
        yield


def said() -> list[str]:
    """Without the time of day, which stands first."""
    return [line.partition(" ")[2] for line in captured_log.text().splitlines()]


def test_log_lines_since_the_start_of_the_attempt_are_kept() -> None:
    bank.warning("before")
    captured_log.begin()
    bank.warning("asked %s", "IBAN")
    bank.error("no %(what)s", {"what": "answer"})

    assert said() == ["WARNING bank.gateway: asked IBAN", "ERROR bank.gateway: no answer"]

    captured_log.begin()

    assert said() == []


def test_log_lines_of_other_threads_are_not_kept() -> None:
    captured_log.begin()
    other = threading.Thread(target=bank.warning, args=("elsewhere",))
    other.start()
    other.join()

    assert said() == []


def test_log_lines_of_an_async_handler_are_kept() -> None:
    async def act() -> None:
        bank.warning("awaited")

    captured_log.begin()
    async_to_sync(act)()

    assert said() == ["WARNING bank.gateway: awaited"]


def test_log_lines_of_the_package_are_left_out() -> None:
    captured_log.begin()
    logging.getLogger("django_rmq_retry").warning("retry")

    assert said() == []


def test_only_the_latest_100_log_lines_are_kept() -> None:
    captured_log.begin()
    for number in range(150):
        bank.warning("line %s", number)

    assert (len(said()), said()[0], said()[-1]) == (
        100,
        "WARNING bank.gateway: line 50",
        "WARNING bank.gateway: line 149",
    )


def test_long_lines_leave_room_for_the_latest() -> None:
    captured_log.begin()
    for number in range(50):
        bank.warning("%s %s", number, "€" * 5000)

    assert len(captured_log.text().encode()) <= 16_000
    assert said()[-1].startswith("WARNING bank.gateway: 49 €")


def test_a_log_line_that_cannot_be_formatted_names_its_error() -> None:
    class Broken:
        def __str__(self) -> str:
            raise OSError("gone")

    keeper = next(one for one in logging.getLogger().handlers if type(one).__name__ == "_LineHandler")
    captured_log.begin()
    for message, values in (("%s", (Broken(),)), ("a\0\udcff", None)):
        keeper.emit(
            logging.makeLogRecord({"name": "odd", "levelno": 20, "levelname": "INFO", "msg": message, "args": values})
        )

    assert said() == ["INFO odd: (this line could not be formatted: OSError) %s", r"INFO odd: a\x00\udcff"]


def test_a_log_line_shows_the_class_of_its_exception() -> None:
    captured_log.begin()
    bank.error("no answer", exc_info=TimeoutError("3 s"))

    assert said() == ["ERROR bank.gateway: no answer (TimeoutError)"]


def test_warnings_still_reach_stderr_if_the_project_has_no_log_handler(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = logging.getLogger()
    with monkeypatch.context() as alone:
        alone.setattr(root, "handlers", [one for one in root.handlers if type(one).__name__ == "_LineHandler"])
        bank.warning("seen")
        bank.info("not seen")
        alone.setattr(bank, "handlers", [logging.NullHandler()])
        bank.warning("the handler's")

    assert capsys.readouterr().err == "seen\n"


def test_log_capture_removes_its_handler_at_the_end() -> None:
    root = logging.getLogger()
    before = list(root.handlers)

    with captured_log.captured():
        assert len(root.handlers) == len(before) + 1

    assert root.handlers == before
