import io
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from django.core.management.color import no_style

from django_rmq_retry import Delivery
from django_rmq_retry.hooks import AroundAttempt
from django_rmq_retry.management import terminal
from django_rmq_retry.telemetry.log_fields import bind

VERDICT: dict[str, Any] = {
    "event": "park",
    "queue": "payments",
    "handler": "payments.transfer",
    "message_id": "PAY-88121",
    "attempt": 5,
    "attempts": 5,
    "seconds": 30.04,
    "after": 0.0,
    "reason": "retries_exhausted",
    "error": "GatewayTimeout",
    "detail": "Gave up after 5 attempts: GatewayTimeout",
}


def record(message: str = "said", *, name: str = "django_rmq_retry", **changed: Any) -> logging.LogRecord:
    made = logging.makeLogRecord({"name": name, "msg": message, "levelname": "INFO", "levelno": 20, "created": 1.482})
    made.process = 42
    for key, value in changed.items():
        setattr(made, key, value)
    return made


def line(*, plain: bool = False, with_pid: bool = False, **changed: Any) -> str:
    """The line without its clock, which is the zone's own."""
    formatter = terminal.Lines(no_style(), plain=plain, with_pid=with_pid)
    return formatter.format(record(**changed)).partition(" ")[2]


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def ours() -> list[logging.Handler]:
    return [one for one in logging.getLogger().handlers if isinstance(one, terminal.Console)]


@pytest.fixture
def loggers(monkeypatch: pytest.MonkeyPatch) -> Iterator[logging.Logger]:
    """Our logger and the root without anything; as before afterwards."""
    log, root, pika = (logging.getLogger(name) for name in ("django_rmq_retry", None, "pika"))
    levels = log.level, pika.level
    monkeypatch.setattr(log, "handlers", [])
    monkeypatch.setattr(root, "handlers", [])
    yield root
    log.setLevel(levels[0])
    pika.setLevel(levels[1])


def install(stream: io.StringIO, *, verbosity: int = 1, json_logs: bool = False) -> bool:
    return terminal.install(stream, no_style(), verbosity=verbosity, json_logs=json_logs, with_pid=False)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"event": "ack", "detail": "", "seconds": 0.0004}, "✓ payments.transfer PAY-88121 attempt 5/5 0.4 ms"),
        ({"event": "retry", "detail": "E: x", "after": 1200.04}, "E: x → next attempt in 1200 s"),
        (
            {"event": "discard", "detail": "too old"},
            "○ payments.transfer PAY-88121 attempt 5/5 30.0 s → discarded: too old",
        ),
        (
            {"event": "halt", "detail": "E: x", "after": 0.25, "attempts": None},
            "attempt 5 30.0 s E: x → next attempt in 0.2 s",
        ),
        ({"handler": "-", "message_id": None}, "✕ payments attempt 5/5"),
    ],
)
def test_each_verdict_line_states_the_next_step_of_its_message(changed: dict[str, Any], said: str) -> None:
    assert said in line(**{**VERDICT, **changed})


def test_with_several_processes_each_line_has_its_pid() -> None:
    assert line(with_pid=True) == "[42] · said"


@pytest.mark.parametrize("hostile", ["\x1b[31m", "\r", "\n", "\u202e", "\udcff", "\x9b"])
def test_no_text_controls_the_terminal_or_breaks_the_line(hostile: str) -> None:
    made = record(**{**VERDICT, "detail": f"a{hostile}b", "message_id": f"c{hostile}d"})
    for formatter in (terminal.Lines(no_style(), plain=False, with_pid=False), terminal.Logfmt(), terminal.JsonLines()):
        said = formatter.format(made)

        assert hostile not in said
        assert said.splitlines() == [said]


def test_logfmt_has_the_fixed_keys_in_their_order() -> None:
    said = terminal.Logfmt().format(record(**VERDICT))

    assert said == (
        "ts=1970-01-01T00:00:01.482Z level=info event=park queue=payments handler=payments.transfer "
        "message_id=PAY-88121 attempt=5 attempts=5 seconds=30.04 "
        'reason=retries_exhausted error=GatewayTimeout detail="Gave up after 5 attempts: GatewayTimeout" pid=42'
    )


@pytest.mark.usefixtures("loggers")
def test_lines_of_the_project_carry_the_bound_fields_beside_their_text(settings: Any) -> None:
    settings.RMQ_RETRY = {**settings.RMQ_RETRY, "AROUND": [bind]}
    stream = io.StringIO()
    install(stream, json_logs=True)
    delivery = Delivery(queue="payments", body=b"", attempt=2)
    with bind(AroundAttempt(delivery=delivery, handler="payments.transfer")) or nullcontext():
        logging.getLogger("payments").warning("The limit is near")
    logging.getLogger("payments").warning("No attempt")

    during, outside = [json.loads(text) for text in stream.getvalue().splitlines()]
    bound = {"attempt": 2, "queue": "payments", "handler": "payments.transfer"}
    assert during["msg"] == "The limit is near"
    assert bound.items() <= during.items()
    assert (outside["msg"], bound.keys() & outside.keys()) == ("No attempt", set())


def test_an_event_of_the_project_named_like_a_verdict_is_an_ordinary_line() -> None:
    assert line(message="done", name="payments", event="park", attempt=1) == "· payments: done"


def test_a_value_cannot_forge_another_logfmt_field() -> None:
    said = terminal.Logfmt().format(record('x" level=critical', name="shop"))

    assert said == 'ts=1970-01-01T00:00:01.482Z level=info logger=shop msg="x\\" level=critical" pid=42'


def test_json_lines_hold_the_same_and_are_ascii() -> None:
    said = terminal.JsonLines().format(record(**{**VERDICT, "detail": "✕\n"}))
    read = json.loads(said)

    assert said.isascii()
    assert (read["event"], read["attempt"], read["detail"]) == ("park", 5, "✕\n")


def test_a_traceback_stays_within_its_record() -> None:
    error = ValueError("a\x1b[31m")
    made = record(exc_info=(ValueError, error, None))
    lines = terminal.Lines(no_style(), plain=False, with_pid=False).format(made).splitlines()

    assert lines[-1] == "    ValueError: a\\x1b[31m"
    assert json.loads(terminal.JsonLines().format(made))["trace"].splitlines()[-1] == "ValueError: a\x1b[31m"
    assert terminal.Logfmt().format(made).count("\n") == 0


@pytest.mark.usefixtures("loggers")
@pytest.mark.parametrize(
    ("stream", "json_logs", "formatter"),
    [
        (Terminal(), False, terminal.Lines),
        (Terminal(), True, terminal.JsonLines),
        (io.StringIO(), False, terminal.Logfmt),
    ],
)
def test_the_format_follows_the_stream(
    stream: io.StringIO, json_logs: bool, formatter: type[logging.Formatter]
) -> None:
    install(stream, json_logs=json_logs)

    assert [type(one.formatter) for one in ours()] == [formatter]


def test_the_console_logging_of_the_project_replaces_ours(loggers: logging.Logger) -> None:
    loggers.addHandler(logging.StreamHandler(sys.stdout))

    assert (install(io.StringIO()), ours()) == (False, [])


def test_json_logs_keep_our_lines_off_the_projects_console(
    loggers: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    loggers.addHandler(logging.StreamHandler(sys.stdout))
    stream = io.StringIO()
    install(stream, json_logs=True)
    logging.getLogger("django_rmq_retry").warning("ours")

    assert (json.loads(stream.getvalue())["msg"], capsys.readouterr().out) == ("ours", "")


@pytest.mark.usefixtures("loggers")
@pytest.mark.parametrize(("verbosity", "said"), [(0, ["w"]), (1, ["i", "w"]), (2, ["i", "w"]), (3, ["d", "i", "w"])])
def test_verbosity_selects_the_logged_events(verbosity: int, said: list[str]) -> None:
    stream = io.StringIO()
    install(stream, verbosity=verbosity)
    log = logging.getLogger("django_rmq_retry")
    log.debug("d")
    log.info("i")
    log.warning("w")

    assert [found.rpartition("msg=")[2][0] for found in stream.getvalue().splitlines()] == said


@pytest.mark.usefixtures("loggers")
def test_pika_log_lines_are_hidden_by_default() -> None:
    stream = io.StringIO()
    install(stream)
    logging.getLogger("pika.adapters").error("connection lost")

    assert stream.getvalue() == ""


@pytest.mark.usefixtures("loggers")
def test_a_second_command_in_one_process_doubles_no_log_line() -> None:
    install(io.StringIO())
    install(io.StringIO())

    assert len(ours()) == 1


@pytest.mark.usefixtures("loggers")
def test_a_broken_log_stream_does_not_fail_the_consumer(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    install(stream)
    stream.close()

    logging.getLogger("django_rmq_retry").warning("unheard")

    # Without its own handleError, logging would write a traceback for each line.
    assert capsys.readouterr().err == ""
