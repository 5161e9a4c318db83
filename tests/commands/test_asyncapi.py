"""``rmq_topology --format asyncapi``: valid by the official JSON Schema, and rendered by AsyncAPI's own component."""

import gzip
import importlib
import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from django_rmq_retry import (
    Broadcast,
    Delivery,
    Exchange,
    Fixed,
    OneShot,
    Queue,
    RetryThenPark,
    Schedule,
    StopTheLine,
    handler,
)
from django_rmq_retry.messages.codecs import Json
from tests.commands.running import Exit, run
from tests.tooling.browser import FLAGS, browser, no_browser
from tests.tooling.services import Unavailable, go_without

SCHEMA = Path(__file__).with_name("asyncapi") / "schema-3.0.0.json.gz"
RENDERER = "@asyncapi/react-component@3.2.1"


@dataclass
class Line:
    price: Decimal


@dataclass
class Order:
    lines: list[Line]


class Declined(Exception):
    """The bank said no."""


class Payments(Json):
    """A codec that knows its data."""

    def schema(self) -> Mapping[str, object]:
        money = {"type": "object", "properties": {"amount": {"type": "string"}}, "required": ["amount"]}
        paid = {"anyOf": [{"$ref": "#/$defs/Money"}, {"type": "null"}]}
        return {"type": "object", "properties": {"id": {"type": "integer"}, "paid": paid}, "$defs": {"Money": money}}


class Wrong(Json):
    """A codec whose schema is none."""

    def __init__(self, value: object) -> None:
        self.value = value

    def schema(self) -> Any:
        return self.value


class Unrelated(Json):
    """A codec with an attribute of the same name."""

    schema = Decimal(1)


class Patient(RetryThenPark):
    """A policy of a project that is no dataclass of its own."""


@dataclass(frozen=True)
class Guarded(StopTheLine):
    """A policy of a project with a field that it hides."""

    token: str = field(default="t0ken", repr=False)


def written(*words: str) -> dict[str, Any]:
    """Return the document, which is valid and whose references all lead somewhere."""
    ran = run("rmq_topology", "--format", "asyncapi", *words)
    assert ran.code == Exit.DONE, ran.err
    document: dict[str, Any] = ran.data
    assert problems(document) == []
    assert [one for one in references(document) if not leads(document, one)] == []
    return document


def problems(document: object) -> list[str]:
    """Return what the official schema has against a document."""
    return [f"{error.json_path}: {error.message}" for error in validator().iter_errors(document)]


@cache
def validator() -> Draft7Validator:
    """Return the validator of AsyncAPI 3.0.0, read once."""
    return Draft7Validator(json.loads(gzip.decompress(SCHEMA.read_bytes())))


def references(part: object) -> Iterator[str]:
    """Return every reference of a document."""
    if isinstance(part, dict):
        for name, value in part.items():
            if name == "$ref" and isinstance(value, str):
                yield value
            else:
                yield from references(value)
    elif isinstance(part, list):
        for value in part:
            yield from references(value)


def leads(document: Any, reference: str) -> bool:
    """True if a reference names a part of the document."""
    for name in reference.removeprefix("#/").split("/"):
        if name not in document:
            return False
        document = document[name]
    return True


@pytest.fixture(autouse=True)
def no_broker(settings: Any) -> None:
    settings.RMQ_RETRY = {"URL": "amqp://app:secret@rabbit.internal:1/pay", "VERSION": "7.3"}


@pytest.fixture
def shop() -> None:
    """A project with each kind of exchange, queue, handler and policy."""
    inner = Exchange("inner", "topic", internal=True, bindings=[Exchange("outer", "fanout").bind()])
    orders = Exchange("orders", "topic")
    files = Exchange("files", "headers")
    shared = Queue("orders.all", bindings=[orders.bind("order.#"), inner.bind("order.*"), files.bind(headers={"n": 1})])
    slow = RetryThenPark(schedules={Declined: Schedule(9, Fixed(5))}, retry_if=bool)

    @handler(shared, type="order.v1", policy=slow)
    def first(message: Delivery) -> None: ...

    @handler(shared, headers={"format": "pdf"}, routing_key="order.*")
    async def second(message: Delivery) -> None: ...

    @handler(Queue("orders.copy", bindings=[orders.bind("order.#")]), policy=Guarded())
    def third(message: Delivery) -> None: ...

    @handler("rates.quote", policy=OneShot())
    def quote(message: Delivery) -> str:  # noqa: ARG001
        """Answer with a rate.

        The rate is of this minute.
        """
        return "1"

    @handler(Broadcast("prices", bindings=[Exchange("prices", "x-consistent-hash").bind("1")]))
    def prices(message: Delivery) -> None: ...

    @handler("news", ack="auto")
    def news(message: Delivery) -> None: ...

    @handler("größe/€ {x}", name="shop größe/€", policy=Patient())
    def odd(message: Delivery) -> None: ...

    @handler("gr__e_ _x_", name="shop gr__e__")
    def like_odd(message: Delivery) -> None: ...

    @handler("payments", codec=Payments(), name="pay")
    def pay(message: Delivery) -> None: ...


@pytest.mark.usefixtures("charge")
def test_the_validator_finds_a_mistake() -> None:
    document = written()
    [channel] = [one for one in document["channels"].values() if one["bindings"]["amqp"]["is"] == "queue"]
    channel["bindings"]["amqp"]["is"] = "topic"

    assert len(problems(document)) == 1


@pytest.mark.usefixtures("charge")
def test_a_handler_is_an_operation_on_its_queue_with_its_policy() -> None:
    document = written()
    [(name, operation)] = document["operations"].items()
    queue = document["channels"]["payments.charge"]

    assert (operation["action"], operation["summary"]) == ("receive", "Nothing.")
    assert operation["channel"] == {"$ref": "#/channels/payments.charge"}
    assert operation["messages"] == [{"$ref": f"#/channels/payments.charge/messages/{name}"}]
    policy = operation["x-retry-policy"]
    assert (policy["is"], policy["attempts"], policy["waits"]) == ("RetryThenPark", 3, [10, 30])
    assert policy["backoff"] == {"is": "Exponential", "first": 10, "factor": 3, "cap": None, "jitter": 0}
    assert policy["parked"] == "payments.charge.parked"
    assert queue["bindings"]["amqp"]["queue"] == {
        "name": "payments.charge",
        "durable": True,
        "exclusive": False,
        "autoDelete": False,
        "vhost": "pay",
    }
    assert document["components"]["messages"][name]["contentType"] == "application/json"


@pytest.mark.usefixtures("shop")
def test_a_binding_is_a_channel_with_the_messages_that_it_carries() -> None:
    document = written()
    channels = document["channels"]
    named = {title: sorted(one["messages"]) for title, one in ((c["title"], c) for c in channels.values())}
    own = [name for name in document["operations"] if name.endswith(("first", "second"))]
    third = next(name for name in document["operations"] if name.endswith("third"))

    # Two queues are bound alike to one exchange. An internal exchange is no address, the one in front of it is.
    assert named["orders: order.#"] == sorted([*own, third])
    assert named["outer: fanout"] == named["files: headers"] == sorted(own)
    assert not [title for title in named if title.startswith("inner")]
    assert channels["orders.all"]["description"] == (
        "Publish to exchange 'orders' with a routing key that matches 'order.#', or to exchange 'files' with all "
        "of the headers n=1, or to exchange 'outer' with any routing key, or to the default exchange with the routing "
        "key 'orders.all'."
    )


@pytest.mark.usefixtures("shop")
def test_a_queue_named_by_the_broker_has_no_address() -> None:
    channels = written()["channels"]

    assert channels["prices"]["address"] is None
    assert channels["prices"]["bindings"]["amqp"]["queue"]["exclusive"] is True
    assert channels["prices-1"]["bindings"]["amqp"]["exchange"]["x-type"] == "x-consistent-hash"


@pytest.mark.usefixtures("shop")
def test_each_condition_of_a_handler_is_in_its_message() -> None:
    document = written()
    messages = {name.rpartition(".")[2]: one for name, one in document["components"]["messages"].items()}
    operations = {name.rpartition(".")[2]: one for name, one in document["operations"].items()}

    assert messages["first"]["name"] == messages["first"]["bindings"]["amqp"]["messageType"] == "order.v1"
    assert messages["second"]["headers"] == {
        "type": "object",
        "properties": {"format": {"const": "pdf"}},
        "required": ["format"],
    }
    assert operations["second"]["x-routing-key"] == "order.*"


@pytest.mark.usefixtures("shop")
def test_an_answer_and_the_broker_s_own_ack_are_shown() -> None:
    operations = {name.rpartition(".")[2]: one for name, one in written()["operations"].items()}

    assert operations["quote"]["reply"] == {"address": {"location": "$message.header#/reply_to"}}
    assert operations["quote"]["description"] == "The rate is of this minute."
    assert "reply" not in operations["first"]
    assert operations["first"]["bindings"]["amqp"]["ack"] is True
    assert operations["news"]["bindings"]["amqp"]["ack"] is False


@pytest.mark.usefixtures("shop")
def test_a_policy_of_any_kind_is_shown_without_what_it_hides() -> None:
    operations = {one["title"].rpartition(".")[2]: one["x-retry-policy"] for one in written()["operations"].values()}

    assert operations["first"]["schedules"]["Declined"]["backoff"]["seconds"] == 5
    assert operations["first"]["retry_if"] == "bool"
    assert operations["third"]["is"] == "Guarded"
    assert "token" not in operations["third"]
    assert operations["shop größe/€"]["is"] == "Patient"


@pytest.mark.usefixtures("shop")
def test_names_with_any_characters_are_kept_apart() -> None:
    document = written()
    odd = [one["address"] for one in document["channels"].values() if str(one["address"]).startswith("gr")]

    assert sorted(odd) == ["gr__e_ _x_", "größe/€ {x}"]
    assert all(re.fullmatch(r"[\w.-]+", name, re.ASCII) for name in [*document["channels"], *document["operations"]])


@pytest.mark.usefixtures("shop")
def test_the_schema_of_a_codec_is_the_payload_of_its_message() -> None:
    components = written()["components"]

    assert components["messages"]["pay"]["payload"] == {"$ref": "#/components/schemas/pay"}
    assert list(components["schemas"]) == ["pay"]
    paid = components["schemas"]["pay"]["properties"]["paid"]
    assert paid["anyOf"][0] == {"$ref": "#/components/schemas/pay/$defs/Money"}


def test_the_type_of_a_handler_is_the_payload_of_its_message() -> None:
    @handler("typed", name="typed")
    def typed(message: Delivery[Order]) -> None: ...

    components = written()["components"]
    assert components["messages"]["typed"]["payload"] == {"$ref": "#/components/schemas/typed"}
    schema = components["schemas"]["typed"]
    assert schema["$ref"] == "#/components/schemas/typed/$defs/Order"
    assert schema["$defs"]["Order"]["required"] == ["lines"]


@pytest.mark.usefixtures("shop")
def test_the_document_is_read_by_a_yaml_parser_as_well() -> None:
    """The escapes of an emoji, one character in JSON, are two characters in YAML."""

    @handler("grüße.🙂", name="greet 🙂")
    def greet(message: Delivery) -> None:
        """Say: "hello" # 🙂

        - yes: no, null, 1e3, 0o7, ~
        """

    ran = run("rmq_topology", "--format", "asyncapi", "--title", "Payments: 🙂 'é'\t#1")
    assert yaml.safe_load(ran.out) == ran.data


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (
            ["id"],
            "Handler mute: Wrong.schema() returns a JSON Schema as a dict, such as {'type': 'object'}, not a list.",
        ),
        ({"default": Decimal(1)}, "Handler mute: Wrong.schema() must return JSON, and raised TypeError: "),
        ({"default": float("nan")}, "Handler mute: Wrong.schema() must return JSON, and raised ValueError: "),
    ],
)
def test_a_schema_of_the_wrong_kind_is_one_sentence(value: object, sentence: str) -> None:
    @handler("mute", codec=Wrong(value), name="mute")
    def mute(message: Delivery) -> None: ...

    ran = run("rmq_topology", "--format", "asyncapi")

    assert ran.code == Exit.ERROR
    assert sentence in ran.err


def test_an_attribute_named_schema_is_no_schema() -> None:
    @handler("mute", codec=Unrelated(), name="mute")
    def mute(message: Delivery) -> None: ...

    assert "payload" not in written()["components"]["messages"]["mute"]


@pytest.mark.usefixtures("shop")
def test_the_document_names_no_broker_and_no_password() -> None:
    ran = run("rmq_topology", "--format", "asyncapi")

    assert not [word for word in ("secret", "rabbit.internal", "app:", "t0ken") if word in ran.out]


@pytest.mark.usefixtures("charge")
def test_title_and_version_come_from_the_project(settings: Any) -> None:
    assert written()["info"] == {"title": "tests", "version": "7.3"}
    assert written("--title", "Payments of the bank")["info"]["title"] == "Payments of the bank"

    settings.RMQ_RETRY = {"URL": "embedded://"}

    assert written()["info"]["version"] == "0"


@pytest.mark.usefixtures("charge")
def test_a_title_without_the_format_is_refused() -> None:
    ran = run("rmq_topology", "--title", "Payments")

    assert ran.code == Exit.USAGE
    assert "--title is for --format asyncapi." in ran.err


def test_a_project_without_handlers_has_a_valid_document() -> None:
    assert written()["channels"] == {}


@pytest.fixture(scope="session")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script with which AsyncAPI's own component draws a document in a browser, from npm."""
    if lack := no_browser():
        go_without(Unavailable(None, lack))
    if shutil.which("npm") is None:
        go_without(Unavailable(None, f"npm is not here, which gets {RENDERER}."))
    place = tmp_path_factory.mktemp("renderer")
    words = ["npm", "pack", "--silent", "--ignore-scripts", RENDERER]
    done = subprocess.run(words, cwd=place, capture_output=True, text=True, check=False)
    packed = sorted(place.glob("*.tgz"))
    if done.returncode or not packed:
        go_without(Unavailable(None, f"npm could not get {RENDERER}: {(done.stderr or done.stdout)[-300:]}"))
    shutil.unpack_archive(packed[0], place, filter="data")
    return place / "package" / "browser" / "standalone" / "index.js"


@pytest.mark.usefixtures("shop")
@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.browser
def test_asyncapi_s_own_component_renders_the_document(renderer: Path, tmp_path: Path) -> None:
    document = written()
    shown = tmp_path / "shown.html"
    given = json.dumps({"schema": document, "config": {"show": {"errors": True}}}).replace("<", "\\u003c")
    shown.write_text(
        f"<!doctype html><meta charset=utf-8><main id=shown></main><script src='{renderer.as_uri()}'></script>"
        f"<script>AsyncApiStandalone.render({given}, document.getElementById('shown'))</script>"
    )
    with importlib.import_module("playwright.sync_api").sync_playwright() as started:
        launched = started.chromium.launch(executable_path=browser(), args=list(FLAGS))
        try:
            page = launched.new_page()
            page.goto(shown.as_uri())
            page.wait_for_selector("text=Operations")
            text = page.inner_text("#shown")
        finally:
            launched.close()

    assert [
        one["address"] for one in document["channels"].values() if one["address"] and one["address"] not in text
    ] == []
    assert "Error" not in text
