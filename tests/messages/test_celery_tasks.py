"""Messages that Celery 5.7 published are read as calls of tasks, and none of another serializer is loaded."""

import pickle
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from django_rmq_retry import CeleryTask, RetryThenPark, handler, publish
from django_rmq_retry.errors import UndecodableBody, UnencodableData
from django_rmq_retry.messages import Headers, Properties
from django_rmq_retry.testing import RmqTest, message_of
from tests.messages.celery_calls import CALL, CALLS, MOMENT, recorded

CODEC = CeleryTask()
pytestmark = pytest.mark.usefixtures("no_handlers")


def problem(body: bytes, properties: Properties | None = None) -> str:
    with pytest.raises(UndecodableBody) as caught:
        CODEC.decode(body, properties)
    return caught.value.problem


def by_header(body: str, **headers: Any) -> tuple[bytes, Properties]:
    """A message of protocol 2."""
    return body.encode(), Properties(headers=Headers.of({"task": "t", "id": "1", **headers}), content_encoding="utf-8")


@pytest.mark.parametrize("protocol", [1, 2])
@pytest.mark.parametrize("name", CALLS)
def test_a_recorded_message_is_the_call_that_celery_sent(protocol: int, name: str) -> None:
    assert CODEC.decode(*recorded(protocol, name)) == CALLS[name]


@pytest.mark.parametrize("protocol", [1, 2])
def test_countdown_and_expires_are_moments_and_the_broker_expires_it(protocol: int) -> None:
    body, properties = recorded(protocol, "expires")
    call = CODEC.decode(body, properties)

    assert call.eta is not None
    assert call.expires is not None
    assert (call.expires - call.eta).total_seconds() == pytest.approx(540, abs=5)
    assert properties.expiration == "600000"


@pytest.mark.parametrize("protocol", [1, 2])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("pickle", "it is 'application/x-python-serialize', and CeleryTask reads JSON only"),
        ("yaml", "it is 'application/x-yaml', and CeleryTask reads JSON only"),
        ("compressed", "it is compressed ('application/x-gzip'), and CeleryTask reads plain bodies only"),
    ],
)
def test_a_recorded_message_of_another_form_is_refused(protocol: int, name: str, said: str) -> None:
    assert problem(*recorded(protocol, name)).startswith(said)


class Loaded:
    """An object whose pickle would call a function."""

    called: list[str] = []  # noqa: RUF012 - the test reads it

    def __reduce__(self) -> Any:
        return self.called.append, ("loaded",)


@pytest.mark.parametrize("kind", ["application/x-python-serialize", "application/json", None])
def test_a_pickle_is_never_loaded_whatever_it_says_it_is(kind: str | None) -> None:
    body = pickle.dumps([Loaded(), {}, {}])
    for headers in ({}, {"task": "t", "id": "1"}):
        problem(body, Properties(content_type=kind, content_encoding="utf-8", headers=Headers.of(headers)))
    problem(body)

    assert Loaded.called == []


@pytest.mark.parametrize(
    ("body", "headers", "said"),
    [
        ("[]", {}, "it is not [args, kwargs, embed], as Celery's protocol 2 has it"),
        ('{"task": "t", "id": "1"}', {}, "it is not [args, kwargs, embed], as Celery's protocol 2 has it"),
        ("[{}, {}, {}]", {}, "the 'args' of the Celery message is dict, not list"),
        ("[[], [], {}]", {}, "the 'kwargs' of the Celery message is list, not dict"),
        ("[[], {}, []]", {}, "the embedded part of the Celery message is list, not dict"),
        ("[[], {}, {}]", {"task": 7}, "the 'task' of the Celery message is int, not str"),
        ("[[], {}, {}]", {"task": ""}, "the 'task' of the Celery message is empty"),
        ("[[], {}, {}]", {"id": None}, "the 'id' of the Celery message is missing, not str"),
        ("[[], {}, {}]", {"retries": True}, "the 'retries' of the Celery message is bool, not int"),
        ("[[], {}, {}]", {"eta": "soon"}, "the 'eta' of the Celery message is no time in ISO 8601"),
        ("[[NaN], {}, {}]", {}, "it is not JSON: NaN is not a number in JSON"),
        ('[[], {"a": 1, "a": 2}, {}]', {}, "it is not JSON: a key occurs twice in one object"),
        (f"[{'[' * 1000}{']' * 1000}, {{}}, {{}}]", {}, "it is nested more than 64 levels deep"),
    ],
)
def test_a_message_that_is_no_call_is_refused_with_a_sentence(body: str, headers: dict[str, Any], said: str) -> None:
    assert problem(*by_header(body, **headers)) == said


def test_a_list_without_the_header_of_protocol_2_is_no_message_of_celery() -> None:
    assert problem(b"[[], {}, {}]").startswith("it is no message of Celery: protocol 2 has the header 'task'")


@pytest.mark.parametrize(
    "value",
    [
        '{"__type__": "os.system", "__value__": "ls"}',
        '{"__type__": ["decimal"], "__value__": "1"}',
        '{"__type__": "decimal", "__value__": "NaN"}',
        '{"__type__": "decimal", "__value__": "1E+999999999"}',
        '{"__type__": "decimal", "__value__": null}',
        '{"__type__": "datetime", "__value__": 7}',
        '{"__type__": "uuid", "__value__": {"int": 7}}',
        '{"__type__": "uuid", "__value__": "7"}',
        '{"__type__": "base64", "__value__": "a"}',
        '{"__type__": "bytes", "__value__": "\\ud800"}',
    ],
)
def test_a_value_of_an_unknown_or_broken_type_is_refused(value: str) -> None:
    said = problem(*by_header(f"[[{value}], {{}}, {{}}]"))

    assert said.endswith("that cannot be read")
    assert "os.system" not in said


@pytest.mark.parametrize("name", CALLS)
def test_an_encoded_call_is_read_again_as_the_same_call(name: str) -> None:
    assert CODEC.decode(CODEC.encode(CALLS[name])) == CALLS[name]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"task": "t"}, "the CeleryTask codec takes a CeleryCall, not dict"),
        (replace(CALL, task=""), "the 'task' of the Celery message is empty"),
        (replace(CALL, id=7), "the 'id' of the Celery message is int, not str"),  # type: ignore[arg-type]
        (replace(CALL, args="7"), "the 'args' of the Celery message is str, not list"),  # type: ignore[arg-type]
        (replace(CALL, args=(object(),)), "an object of type object has no form in Celery's JSON (JSON)"),
        (replace(CALL, args=(float("nan"),)), "Out of range float values are not JSON compliant"),
        (replace(CALL, args=(Decimal("NaN"),)), "it has a value of Celery's type 'decimal' that cannot be read"),
        (replace(CALL, eta=MOMENT.replace(tzinfo=None)), "eta is a datetime with a time zone, such as timezone.now()"),
    ],
)
def test_data_that_is_no_call_is_refused_at_the_publisher(data: object, said: str) -> None:
    with pytest.raises(UnencodableData) as caught:
        CODEC.encode(data)

    assert caught.value.problem.startswith(said)


def test_a_failed_task_is_parked_with_its_call_and_logged_by_its_name(
    rmq: RmqTest, caplog: pytest.LogCaptureFixture
) -> None:
    @handler("celery", codec=CODEC, policy=RetryThenPark(attempts=1))
    def charge(message: Any) -> None:
        raise ValueError(message.data.task)

    publish(CALL, routing_key="celery", codec=CODEC)
    rmq.drain()

    parked = rmq.parked(charge)
    assert parked.message.data == CALL
    assert "key='payments.tasks.charge'" in caplog.text
    keys = charge.subscription.keys
    assert keys is not None
    assert keys(parked.message) == ["payments.tasks.charge", "task-1"]


def test_keys_of_the_handler_replace_those_of_the_codec() -> None:
    @handler("celery", codec=CODEC, keys=lambda message: str(message.data.args[0]))
    def charge(message: Any) -> None: ...

    keys = charge.subscription.keys
    assert keys is not None
    assert keys(message_of(CALL, handler=charge)) == "7"
