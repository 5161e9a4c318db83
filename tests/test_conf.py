"""RMQ_RETRY is read once, strictly, and shows no password."""

import re
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from django_rmq_retry import Exchange, Fixed, Queue, RetryThenPark, StopTheLine, conf
from django_rmq_retry.amqp import Secret, Tls
from django_rmq_retry.links import LinkTemplate
from tests.tooling.pages import page

POLICY = RetryThenPark(attempts=2, backoff=Fixed(1))
EVENTS = Exchange("events", "topic")
ARCHIVE = [Queue("archive", bindings=[EVENTS.bind("#")])]
ORDERED = StopTheLine()
NO_POLICY = "a text"


async def bare() -> AsyncIterator[None]:
    """A lifespan whose decorator is missing."""
    yield


@contextmanager
def plain() -> Iterator[None]:
    """A lifespan with the decorator of context managers that are not async."""
    yield


async def awaited() -> None:
    """A lifespan that is a coroutine."""


def permits(_user: object, _action: str, _message: object) -> bool:
    return False


def read(**keys: Any) -> conf.Settings:
    with override_settings(RMQ_RETRY=keys):
        return conf.settings()


def test_empty_settings_give_the_defaults() -> None:
    found = read()

    assert found == conf.Settings()
    assert found.address().embedded
    assert (found.prefetch, found.threads, found.shutdown_timeout, found.crash_limit) == (10, 4, 30, 5)
    assert found.reply_to == ("amq.rabbitmq.reply-to.*", "amq.gen-*")


def test_settings_keys_and_fields_correspond() -> None:
    assert {key.lower() for key in conf.KEYS} == set(conf.Settings.__dataclass_fields__)
    assert {key.lower() for key in conf.OPERATOR_KEYS} == set(conf.Operators.__dataclass_fields__)
    assert {key.lower() for key in conf.ALERT_KEYS} == set(conf.Alerts.__dataclass_fields__)


def test_every_key_is_in_the_docs() -> None:
    docs = page("settings.md").read_text()
    both = docs.partition("## The URL")[0]

    of_alerts, of_links = (docs.partition(f"## {name}")[2].partition("\n## ")[0] for name in ("Alerts", "Links"))

    assert re.findall(r"^- `([A-Z_]+)`", both, re.MULTILINE) == [*conf.KEYS, *conf.OPERATOR_KEYS]
    assert re.findall(r"^- `([A-Z_]+)`", of_alerts, re.MULTILINE) == [*conf.ALERT_KEYS]
    assert re.findall(r"^- `([A-Z_]+)`", of_links, re.MULTILINE) == [*conf.LINK_KEYS]


def test_the_settings_are_cached_until_they_change() -> None:
    with override_settings(RMQ_RETRY={"PREFETCH": 1}):
        first = conf.settings()
        again = conf.settings()
        with override_settings(RMQ_RETRY={"PREFETCH": 2}):
            changed = conf.settings()

    assert first is again
    assert (first.prefetch, changed.prefetch) == (1, 2)


def test_every_setting_can_be_set() -> None:
    found = read(
        URL=["amqps://app@h1/v", "amqps://app@h2/v"],
        PASSWORD="p#w",
        TLS={"CA_FILE": Path("/ca.pem"), "CERT_FILE": "/c.pem", "KEY_FILE": "/k.pem", "SERVER_NAME": "rabbit"},
        HEARTBEAT=5,
        CONNECT_TIMEOUT=2,
        BLOCKED_TIMEOUT=3.5,
        PUBLISH_TIMEOUT=4,
        CRASH_LIMIT=None,
        POLICY=ORDERED,
        QUEUE_TYPE="classic",
        REPLY_TO=["bank.*"],
        TOPOLOGY=[EVENTS, "tests.test_conf.ARCHIVE"],
        OPERATORS={
            "MANAGEMENT_URL": "https://h:15671",
            "RESOLVED_DAYS": 7,
            "PERMIT": "tests.test_conf.permits",
        },
        LINKS={"TRACE": "https://h/{trace_id}", "LOGS": "https://h/?q={message_id}&from={from_ms}"},
    )
    access = found.access()

    assert access.shown == "amqps://app@h1:5671,h2:5671/v"
    assert access.password.reveal() == "p#w"
    assert access.tls == Tls(ca_file="/ca.pem", cert_file="/c.pem", key_file="/k.pem", server_name="rabbit")
    assert (access.heartbeat, access.connect_timeout, access.blocked_timeout, access.publish_timeout) == (5, 2, 3.5, 4)
    assert found.topology == (EVENTS, *ARCHIVE)
    assert found.operators.management_url == Secret("https://h:15671")
    assert found.links.trace == LinkTemplate("https://h/{trace_id}")
    assert found.links.logs == LinkTemplate("https://h/?q={message_id}&from={from_ms}")
    assert found.operators.resolved_days == 7
    assert found.operators.permit is permits
    assert (found.policy, found.queue_type, found.reply_to, found.crash_limit) == (
        ORDERED,
        "classic",
        ("bank.*",),
        None,
    )


def test_a_policy_may_be_given_by_its_dotted_path() -> None:
    assert read(POLICY="tests.test_conf.POLICY").policy == POLICY


def test_a_url_function_is_called_only_when_a_connection_is_needed() -> None:
    asked: list[int] = []

    def url() -> str:
        asked.append(1)
        return "amqp://app:pw@h/v"

    found = read(URL=url)

    assert asked == []
    assert found.access().shown == "amqp://app@h:5672/v"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"PREFECH": 1}, "RMQ_RETRY has no key 'PREFECH'. Did you mean 'PREFETCH'?"),
        ({"url": "amqp://h"}, "Did you mean 'URL'?"),
        ({"ZZZ": 1}, "Valid keys: ALERTS, AROUND, ASYNC_HANDLERS, BLOCKED_PER_KEY, BLOCKED_TIMEOUT"),
        ({"CONTACT": "ann"}, "RMQ_RETRY['CONTACT'] belongs under RMQ_RETRY['OPERATORS']."),
        ({"OPERATORS": "ann"}, "RMQ_RETRY['OPERATORS'] takes a dict such as"),
        ({"OPERATORS": {"PERMITS": 1}}, "RMQ_RETRY['OPERATORS'] has no key 'PERMITS'. Did you mean 'PERMIT'?"),
        ({"OPERATORS": {"PREFETCH": 1}}, "RMQ_RETRY['OPERATORS'] has no key 'PREFETCH'."),
        ({"OPERATORS": {"PERMIT": 5}}, "RMQ_RETRY['OPERATORS']['PERMIT'] takes a function, or the dotted path to one"),
        ({"LINKS": {"TRACE": "jaeger/{trace_id}"}}, "RMQ_RETRY['LINKS']['TRACE'] takes an http:// or https:// URL"),
        ({"LINKS": {"TRACE": "https://h/trace"}}, "takes a URL with the place {trace_id}, not 'https://h/trace'."),
        ({"LINKS": {"TRACE": "https://h/{trace_id}/{key}"}}, "without the place {key}. It may have {trace_id}."),
        ({"LINKS": {"LOGS": None}}, "RMQ_RETRY['LINKS']['LOGS'] takes an http:// or https:// URL, not None."),
        ({"LINKS": {"LOGS": "javascript:alert('{key}')"}}, "takes an http:// or https:// URL such as"),
        ({"LINKS": {"LOGS": "https://h/a b?{key}"}}, "takes an http:// or https:// URL such as"),
        ({"LINKS": {"LOGS": "https://h/{mesage_id}"}}, "the place {mesage_id}. Did you mean {message_id}?"),
        ({"LINKS": {"LOGS": "https://h/{}"}}, "without the place {}. It may have {key}, {key2},"),
        ({"LINKS": {"LOGS": "https://h/{key"}}, "takes a URL with its braces in pairs, not 'https://h/{key'. Any"),
        ({"LINKS": {"LOGS": "https://{key}.bank/"}}, "takes a URL with a fixed host, not 'https://{key}.bank/'."),
        ({"LINKS": {"LOGS": "https://bank@{key}/"}}, "takes a URL with a fixed host, not"),
        ({"LINKS": {"LOG": "https://h"}}, "RMQ_RETRY['LINKS'] has no key 'LOG'. Did you mean 'LOGS'?"),
        ({"ALERTS": {"MAIL": "admins", "RUNBOOK": "https://h/{error}"}}, "It may have {code}, {subject}."),
        ({"ALERTS": {"LEVEL": "error"}}, "RMQ_RETRY['ALERTS'] takes 'MAIL', 'WEBHOOK' or both, not a dict without a"),
        ({"ALERTS": {"MAIL": []}}, "RMQ_RETRY['ALERTS']['MAIL'] takes 'admins' or a list of addresses, not []."),
        ({"ALERTS": {"MAIL": "ann@bank"}}, "takes 'admins' or a list of addresses, not 'ann@bank'."),
        ({"ALERTS": {"MAIL": ["ann"]}}, "takes 'admins' or a list of addresses, not ['ann']."),
        (
            {"ALERTS": {"WEBHOOK": "https://h/x"}},
            "takes a 'SECRET' with its 'WEBHOOK', not a webhook that nobody could",
        ),
        (
            {"ALERTS": {"WEBHOOK": "ftp://h/x"}},
            "takes an http:// or https:// URL, not a str without it. It is not shown",
        ),
        ({"ALERTS": {"WEBHOOK": "https://:1/x"}}, "takes an http:// or https:// URL, not a str without it."),
        ({"ALERTS": {"WEBHOOK": "https://h:x/"}}, "takes an http:// or https:// URL, not a str without it."),
        ({"ALERTS": {"WEBHOOK": "https://h/a b"}}, "takes a URL of ASCII characters without spaces, not this one."),
        ({"ALERTS": {"SECRET": "short"}}, "takes a string of at least 16 characters, not this str. Its value is not"),
        ({"ALERTS": {"WINDOW": 0}}, "RMQ_RETRY['ALERTS']['WINDOW'] takes seconds above 0, as a number, not 0."),
        ({"ALERTS": {"LEVEL": "info"}}, "RMQ_RETRY['ALERTS']['LEVEL'] takes 'warning' or 'error', not 'info'."),
        (
            {"ALERTS": {"ADMIN_URL": "/admin/"}},
            "takes an http:// or https:// URL such as 'https://bank.example/admin/'",
        ),
        ({"FOUR_EYES": True}, "RMQ_RETRY['FOUR_EYES'] takes a dict such as {'DISCARD': 10}, not True."),
        ({"FOUR_EYES": {"EXPIRE_AFTER": 60}}, "RMQ_RETRY['FOUR_EYES'] takes 'EDIT', 'DISCARD', 'REQUEUE' or"),
        ({"FOUR_EYES": {"DISCARD": None}}, "'CLOSE_BREAKER', not a dict without an act."),
        (
            {"FOUR_EYES": {"DISCARD": 0}},
            "['DISCARD'] takes a whole number from 1 to 1000000000, or None for never, not",
        ),
        ({"FOUR_EYES": {"EDIT": True}}, "RMQ_RETRY['FOUR_EYES']['EDIT'] takes a whole number from 1 to"),
        ({"FOUR_EYES": {"CLOSE_BREAKER": 1}}, "RMQ_RETRY['FOUR_EYES']['CLOSE_BREAKER'] takes True or False, not 1."),
        ({"FOUR_EYES": {"EDIT": 1, "EXPIRE_AFTER": 5}}, "takes a whole number from 60 to 2678400, not 5."),
        ({"FOUR_EYES": {"discard": 1}}, "RMQ_RETRY['FOUR_EYES'] has no key 'discard'. Did you mean 'DISCARD'?"),
        ({"PREFETCH": "10"}, "RMQ_RETRY['PREFETCH'] takes a whole number from 1 to 65535, not '10'."),
        ({"PREFETCH": 0}, "takes a whole number from 1 to 65535, not 0."),
        ({"PREFETCH": True}, "takes a whole number from 1 to 65535, not True."),
        ({"CRASH_LIMIT": 0}, "or None for no limit, not 0."),
        ({"HEARTBEAT": 0}, "takes a whole number from 1 to 600, not 0."),
        ({"PUBLISH_TIMEOUT": -1}, "takes seconds above 0, as a number, not -1."),
        ({"PUBLISH_TIMEOUT": float("nan")}, "takes seconds above 0, as a number, not nan."),
        ({"QUEUE_TYPE": "quorun"}, "takes 'quorum' or 'classic', not 'quorun'. Did you mean 'quorum'?"),
        ({"QUEUE_TYPE": ["quorum"]}, "takes 'quorum' or 'classic', not ['quorum']."),
        ({"REPLY_TO": "amq.gen-*"}, "takes a list of queue names"),
        ({"TLS": True}, "takes a dict such as"),
        ({"TLS": {"CAFILE": "/x"}}, "RMQ_RETRY['TLS'] has no key 'CAFILE'. Did you mean 'CA_FILE'?"),
        ({"TLS": {"VERIFY": "no"}}, "RMQ_RETRY['TLS']['VERIFY'] takes True or False, not 'no'."),
        ({"TLS": {"CA_FILE": ""}}, "takes the path of a file, not ''."),
        ({"TLS": {"KEY_FILE": "/k"}}, "key_file without its cert_file"),
        ({"URL": "amqp://h", "TLS": {}}, "Write amqps://."),
        ({"POLICY": "tests.test_conf.NO_POLICY"}, "takes a policy, such as RetryThenPark(), or the dotted path to one"),
        ({"POLICY": "tests.nowhere.POLICY"}, "'tests.nowhere.POLICY', which cannot be imported"),
        ({"POLICY": RetryThenPark}, "takes a policy, such as RetryThenPark()"),
        ({"TOPOLOGY": "events"}, "takes a list of Exchange and Queue objects"),
        ({"TOPOLOGY": ["tests.test_conf.NO_POLICY"]}, "not 'tests.test_conf.NO_POLICY'."),
        ({"TOPOLOGY": [5]}, "not 5."),
        ({"ASYNC_HANDLERS": 1001}, "takes a whole number from 1 to 1000, not 1001."),
        ({"LIFESPAN": "tests.test_conf.bare"}, "takes a function decorated with @asynccontextmanager, or the dotted"),
        ({"LIFESPAN": plain}, "takes a function decorated with @asynccontextmanager, or the dotted"),
        ({"LIFESPAN": awaited}, "takes a function decorated with @asynccontextmanager, or the dotted"),
        ({"LIFESPAN": Queue}, "takes a function decorated with @asynccontextmanager, or the dotted"),
        ({"LIFESPAN": 5}, "takes a function decorated with @asynccontextmanager, or the dotted"),
    ],
)
def test_an_invalid_setting_is_refused_with_the_fix(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ImproperlyConfigured) as caught:
        read(**keys)

    assert said in str(caught.value)


@pytest.mark.parametrize("value", [None, 5, "amqp://h"])
def test_the_settings_must_be_a_dict(value: object) -> None:
    with override_settings(RMQ_RETRY=value), pytest.raises(ImproperlyConfigured, match="takes a dict"):
        conf.settings()


@pytest.mark.parametrize(
    "keys",
    [
        {"URL": "amqp://app:s3c#ret@h"},
        {"URL": ["amqp://app:s3cret@h", "amqp://app:s3cr3t@h"]},
        {"URL": {"url": "amqp://app:s3cret@h"}},
        {"URL": "amqp://app:s3cret@h", "PASSWORD": "s3cret"},
        {"URL": "amqp://app@h", "PASSWORD": ["s3cret"]},
        {"URL": "amqp://app:s3cret@h", "OPERATORS": {"MANAGEMENT_URL": "app:s3cret@h"}},
        {"URL": "amqp://app:s3cret@h", "PREFETCH": 0},
        {"URL": "s3cret"},
    ],
)
def test_no_error_and_no_traceback_frame_contains_a_password(keys: dict[str, Any]) -> None:
    with override_settings(RMQ_RETRY=keys), pytest.raises(ImproperlyConfigured) as caught:
        conf.settings()

    ours = [
        frame
        for frame, _ in traceback.walk_tb(caught.value.__traceback__)
        if "django_rmq_retry" in frame.f_code.co_filename
    ]
    assert ours
    assert "s3c" not in "".join(traceback.format_exception(caught.value)).replace(repr(keys), "")
    assert not [frame for frame in ours if "s3c" in repr(frame.f_locals)]


def test_the_repr_of_the_settings_contains_no_password() -> None:
    found = read(URL="amqp://app@h", PASSWORD="s3cret", OPERATORS={"MANAGEMENT_URL": "http://app:s3cret@h:15672"})

    assert "s3cret" not in repr(found)
    assert "s3cret" not in repr(found.access())
