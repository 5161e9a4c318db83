"""Typed messages: what a handler's annotation names, it gets; what does not fit, is not sent and not run."""

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Generic, NewType, NotRequired, TypedDict, TypeVar, assert_type
from uuid import UUID

import msgspec
import pydantic
import pytest

from django_rmq_retry import CeleryTask, Delivery, Handler, Json, OneShot, Raw, errors, handler
from django_rmq_retry.checks.settings import check_joining
from django_rmq_retry.handlers.call import signature_of
from django_rmq_retry.handlers.typed import codec_for
from django_rmq_retry.messages import Properties, Reason
from django_rmq_retry.messages.celery_tasks import CeleryCall
from django_rmq_retry.messages.codecs import BodyLimits, Described, Typed, decoded, untyped
from django_rmq_retry.messages.message import Message
from django_rmq_retry.testing import message_of
from tests.consumer.attempts import Bench
from tests.handlers.factories import delivery
from tests.messages.parked_copies import read_back

pytestmark = pytest.mark.usefixtures("no_handlers")


class Channel(Enum):
    CARD = "card"
    CASH = "cash"


@dataclass
class Item:
    price: Decimal


@dataclass
class Payment:
    id: int
    amount: Decimal
    channel: Channel = Channel.CARD
    at: datetime | None = None
    due: date | None = None
    order: UUID | None = None
    rate: float = 0.0
    items: list[Item] = field(default_factory=list)
    notes: dict[int, str] = field(default_factory=dict)


@dataclass
class DirectPayment:
    id: int
    amount: Decimal


class PaymentDict(TypedDict):
    id: int
    amount: NotRequired[Decimal]


class PaymentStruct(msgspec.Struct, forbid_unknown_fields=True):
    id: int
    amount: Decimal


class PaymentModel(pydantic.BaseModel):
    id: int
    amount: Decimal
    due: date | None = pydantic.Field(default=None, alias="dueOn")
    items: list[int] = []
    prices: dict[str, int] = {}


@dataclass
class Tree:
    children: "list[Tree]"


@dataclass
class Envelope:
    payment: PaymentModel


Amount = NewType("Amount", Decimal)


@dataclass
class Named:
    amount: Amount


Of = TypeVar("Of")


@dataclass
class Page(Generic[Of]):
    amount: Decimal
    items: "list[Of]" = field(default_factory=list)


@dataclass
class Fee:
    amount: Decimal = 0  # type: ignore[assignment]
    tax: Decimal = None  # type: ignore[assignment]


@dataclass
class Counted:
    counts: "list[int]"


@dataclass
class Priced:
    prices: "list[Decimal]"


@dataclass
class Wide:
    """Its parts are made one after the other, each in the memory of the one before it."""

    counted: Counted
    priced: Priced


class Rates(pydantic.BaseModel):
    rates: dict[Decimal, int]


class Unknown:
    """A class that neither library knows."""


FULL = Payment(
    id=7,
    amount=Decimal("9.90"),
    channel=Channel.CASH,
    at=datetime(2026, 11, 28, 13, 5, 0, 123456, tzinfo=UTC),
    due=date(2026, 12, 1),
    order=UUID("5b2a6a3e-2b2c-4a52-9d0e-0c7a3b7e4a11"),
    rate=0.1,
    items=[Item(Decimal("1.10")), Item(Decimal("1E+2"))],
    notes={1: "first"},
)


def function(annotation: object) -> Callable[[Any], None]:
    def charge(message: Any) -> None: ...

    charge.__annotations__ = {"message": annotation}
    return charge


def typed(kind: Any) -> Handler[None]:
    return handler("payments", name="payments.charge")(function(Delivery[kind]))


def codec_of(kind: Any) -> Typed:
    codec = codec_for(function(Delivery[kind]), Json(), "payments.charge")
    assert isinstance(codec, Typed)
    return codec


def sent(kind: Any, data: object) -> Message:
    return typed(kind).message(data)


def refused(kind: Any, data: object) -> errors.InvalidData:
    with pytest.raises(errors.InvalidData) as caught:
        sent(kind, data)
    return caught.value


def invalid(kind: Any, body: bytes) -> errors.Misfit:
    with pytest.raises(errors.InvalidBody) as caught:
        codec_of(kind).decode(body)
    return caught.value.misfit


class TestTheAnnotation:
    @pytest.mark.parametrize(
        "annotation", [None, Any, Delivery, Delivery[Any], Delivery[object], "Delivery", "Missing"]
    )
    def test_a_handler_that_names_no_type_keeps_its_codec(self, annotation: object) -> None:
        def charge(message: Any) -> None: ...

        charge.__annotations__ = {} if annotation is None else {"message": annotation}
        codec = Json()

        assert handler("payments", codec=codec)(charge).subscription.codec is codec

    def test_a_type_may_be_written_as_text_and_defined_below_the_handler(self) -> None:
        charge = function("Delivery[DefinedBelow]")
        charge.__annotations__["return"] = "OnlyForTypeCheckers"

        assert handler("payments")(charge).message({"id": 7}).body == b'{"id":7}'

    def test_a_type_that_cannot_be_found_is_a_configuration_error(self) -> None:
        one = handler("payments", name="payments.charge")(function("Delivery[Missing]"))

        with pytest.raises(errors.ConfigurationError) as caught:
            _ = one.subscription
        assert "Handler payments.charge: its annotation Delivery[Missing] cannot be resolved" in str(caught.value)
        assert "Import the type in the handler's module" in str(caught.value)

    def test_a_class_that_neither_library_knows_is_a_configuration_error(self) -> None:
        with pytest.raises(errors.ConfigurationError) as caught:
            _ = typed(list[Unknown]).subscription
        said = str(caught.value)
        assert "cannot be the type of its messages: type <class " in said
        assert "Unknown'> is not supported. Use a dataclass, " in said
        # Not msgspec's advice for its own callers, over four lines.
        assert ("schema_hook" in said, "\n" in said) == (False, False)

    @pytest.mark.parametrize("kind", [dict[Decimal, int], dict[Amount, int], list[Mapping[Decimal | int, str]]])
    def test_decimals_as_keys_are_a_configuration_error_of_one_sentence(self, kind: Any) -> None:
        with pytest.raises(errors.ConfigurationError, match=r"they cannot be Decimal\. Use a dataclass, "):
            _ = typed(kind).subscription

    def test_a_class_in_a_model_that_pydantic_does_not_know_is_one_sentence(self) -> None:
        @dataclass
        class Pair:
            payment: PaymentModel
            other: Unknown

        with pytest.raises(errors.ConfigurationError) as caught:
            _ = typed(Pair).subscription
        assert "Unknown" in str(caught.value)
        assert ("visit https" in str(caught.value), "\n" in str(caught.value)) == (False, False)
        assert "Use a dataclass, a TypedDict, a msgspec.Struct or a pydantic model" in str(caught.value)

    def test_raw_gives_bytes_and_no_other_type(self) -> None:
        raw = Raw()

        celery = CeleryTask()

        assert codec_for(function(Delivery[bytes]), raw, "payments.charge") is raw
        assert codec_for(function(Delivery[CeleryCall]), celery, "payments.charge") is celery
        with pytest.raises(errors.ConfigurationError) as caught:
            codec_for(function(Delivery[Payment]), raw, "payments.charge")
        assert "Write Delivery[bytes], or omit codec." in str(caught.value)
        with pytest.raises(errors.ConfigurationError) as caught:
            codec_for(function(Delivery[Payment]), celery, "payments.charge")
        assert "codec=CeleryTask() gives it CeleryCall. Write Delivery[CeleryCall], or" in str(caught.value)

    @pytest.mark.parametrize(("kind", "extra"), [(Payment, "msgspec"), (PaymentModel, "pydantic")])
    def test_a_check_says_which_extra_to_install(self, kind: type, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, extra, None)
        typed(kind)

        (found,) = check_joining(app_configs=None)

        assert (found.id, found.obj) == ("rmq_retry.E009", "payments.charge")
        assert f'pip install "django-rmq-retry[{extra}]"' in found.msg

    def test_a_type_checker_knows_the_data(self) -> None:
        @handler("payments", type="a")
        def charge(message: Delivery[DirectPayment]) -> Decimal:
            # The linters check what is asserted here.
            assert_type(message.data, DirectPayment)
            return message.data.amount

        @handler("payments", type="b")
        def book(message: Delivery) -> object:
            assert_type(message.data, Any)
            return message.data

        assert charge(message_of(DirectPayment(7, Decimal("9.90")), handler=charge)) == Decimal("9.90")
        assert book(message_of({"id": 7}, handler=book)) == {"id": 7}

    def test_an_object_of_a_parameterized_delivery_is_a_plain_delivery(self) -> None:
        assert type(Delivery[Payment](queue="payments", body=b"")) is Delivery


@dataclass
class DefinedBelow:
    id: int


class TestPublishing:
    def test_all_values_arrive_exactly_as_they_were_sent(self) -> None:
        assert codec_of(Payment).decode(sent(Payment, FULL).body) == FULL

    @pytest.mark.parametrize(
        ("kind", "data"),
        [
            (PaymentDict, {"id": 7, "amount": Decimal("9.90")}),
            (PaymentStruct, PaymentStruct(id=7, amount=Decimal("9.90"))),
            (PaymentModel, PaymentModel(id=7, amount=Decimal("9.90"), dueOn=date(2026, 12, 1))),
            (Envelope, Envelope(PaymentModel(id=7, amount=Decimal("9.90")))),
            (list[Payment], [FULL, FULL]),
            (dict[str, Payment], {"a": FULL}),
        ],
        ids=["TypedDict", "Struct", "model", "model in a dataclass", "list", "dict"],
    )
    def test_each_kind_of_type_arrives_as_it_was_sent(self, kind: Any, data: object) -> None:
        assert codec_of(kind).decode(sent(kind, data).body) == data

    def test_a_plain_dict_that_fits_is_sent(self) -> None:
        assert sent(Payment, {"id": 7, "amount": Decimal("9.90")}).body == b'{"id":7,"amount":"9.90"}'

    @pytest.mark.parametrize(
        ("kind", "data", "path"),
        [
            (Payment, Payment(id="7", amount=Decimal(1)), "$.id"),  # type: ignore[arg-type]
            (Payment, {"id": 7}, "$.amount"),
            (Payment, Payment(7, Decimal(1), items=[Item(None)]), "$.items[0].price"),  # type: ignore[arg-type]
            (Payment, Payment(7, Decimal("NaN")), "$.amount"),
            (Payment, Payment(7, Decimal("1e999999")), "$.amount"),
            (Payment, Payment(7, Decimal(1), items=[Item(Decimal(1)), Item(Decimal("NaN"))]), "$.items[1].price"),
            (dict[str, Payment], {"a": Payment(7, Decimal("Infinity"))}, "$.a.amount"),
            (PaymentDict, {"id": None}, "$.id"),
            (PaymentModel, {"id": 7, "amount": "x"}, "$.amount"),
            (PaymentModel, PaymentModel.model_construct(id="x", amount=Decimal(1)), "$.id"),
            (Payment, object(), "$"),
        ],
    )
    def test_wrong_data_are_an_error_at_the_caller_with_the_path(self, kind: Any, data: object, path: str) -> None:
        error = refused(kind, data)

        assert [where for where, _problem in error.misfit.problems] == [path]
        assert path in str(error)
        assert isinstance(error, errors.UnencodableData)

    def test_the_schema_of_a_type_is_that_of_its_library(self) -> None:
        for kind in (DirectPayment, PaymentDict, PaymentStruct, PaymentModel):
            assert '"amount"' in json.dumps(codec_of(kind).schema())
            assert isinstance(codec_of(kind), Described)

    def test_message_of_gives_a_handler_its_type(self) -> None:
        assert message_of({"id": 7, "amount": "9.90"}, handler=typed(Payment)).data == Payment(7, Decimal("9.90"))


HOSTILE: dict[str, tuple[bytes, str]] = {
    "text for a number": (b'{"id": "7", "amount": 1}', "$.id"),
    "nothing": (b"{}", "$.id"),
    "not an object": (b"[]", "$"),
    "null": (b"null", "$"),
    "NaN in a text": (b'{"id": 7, "amount": "NaN"}', "$.amount"),
    "sNaN in a text": (b'{"id": 7, "amount": "-sNaN12"}', "$.amount"),
    "infinity in a text": (b'{"id": 7, "amount": "Infinity"}', "$.amount"),
    "huge exponent in a text": (b'{"id": 7, "amount": "1e999999999"}', "$.amount"),
    "tiny exponent in a text": (b'{"id": 7, "amount": "1e-999999999"}', "$.amount"),
    "huge number for a float": (b'{"id": 7, "amount": 1, "rate": 1' + b"0" * 400 + b"}", "$.rate"),
    "unknown enum": (b'{"id": 7, "amount": 1, "channel": "secret"}', "$.channel"),
    "NaN in a number of an item": (b'{"id": 7, "amount": 1, "items": [{"price": "nan"}]}', "$.items[0].price"),
    "lone surrogate": (b'{"id": 7, "amount": 1, "at": "\\ud800"}', "$"),
    "key of a wrong type": (b'{"id": 7, "amount": 1, "notes": {"secret": "x"}}', "$.notes"),
    "deep in a list": (b'{"id": 7, "amount": 1, "items": [{"price": 1}, {"price": true}]}', "$.items[1].price"),
}

RISKY = [
    b'"NaN"',
    b'" NaN"',
    b'"N_aN"',
    b'"N\\u0061N"',
    b'"\\tinfinity"',
    b'"1e999999999"',
    b'" +1e999999999"',
    b'"\\u0031e999999999"',
    b'"1\\u0065999999999"',
    '"１e999999999"'.encode(),  # noqa: RUF001 - a digit of Unicode
    '"\N{NO-BREAK SPACE}1e999999999"'.encode(),
    b'"%s"' % (b"9" * 400),
    b'"0.%s1"' % (b"0" * 400),
]
"""Texts of JSON in which Decimal finds no number, or one without a limit."""


class TestConsuming:
    @pytest.mark.parametrize(("body", "path"), HOSTILE.values(), ids=HOSTILE)
    def test_a_body_that_does_not_fit_is_invalid_and_its_path_is_named(self, body: bytes, path: str) -> None:
        misfit = invalid(Payment, body)

        assert [where for where, _problem in misfit.problems] == [path]
        assert "secret" not in str(misfit)

    @pytest.mark.parametrize(
        "body",
        [
            b'{"children":' * 1000 + b"[]" + b"}" * 1000,
            b'{"id": NaN, "amount": 1}',
            b'{"id": 1, "id": 2, "amount": 1}',
            b'{"id": 1' + b"0" * 5000 + b', "amount": 1}',
            b'{"id": "\xff"}',
        ],
        ids=["1,000 levels", "NaN", "a key twice", "a huge number", "no UTF-8"],
    )
    def test_a_body_that_is_no_json_stays_undecodable(self, body: bytes) -> None:
        with pytest.raises(errors.UndecodableBody) as caught:
            decoded(delivery(body=body), codec_of(Tree if b"children" in body else Payment))
        assert not isinstance(caught.value, errors.InvalidBody)

    def test_a_model_names_all_fields_that_are_wrong(self) -> None:
        misfit = invalid(PaymentModel, b'{"amount": "x", "items": [1, "secret"], "prices": {"secret": "y"}}')

        paths = ["$.id", "$.amount", "$.items[1]", "$.prices.secret"]
        assert [path for path, _problem in misfit.problems] == paths
        assert misfit.fields == ("$.amount", "$.id", "$.items[]", "$.prices.…")

    def test_names_that_a_sender_invents_make_no_groups(self) -> None:
        bodies = [b'{"id": 1, "amount": 1, "%s": 1}' % name for name in (b"a", b"b` - at `$.id", b"x.id")]

        assert len({invalid(PaymentStruct, body).fields for body in bodies}) == 1

    @pytest.mark.parametrize("number", RISKY)
    def test_numbers_without_a_value_are_refused_by_each_library(self, number: bytes) -> None:
        """Decimal reads more than digits: a space in front of NaN made it arrive."""
        for kind in (DirectPayment, PaymentDict, PaymentStruct, PaymentModel):
            misfit = invalid(kind, b'{"id": 7, "amount": %s}' % number)
            assert [path for path, _problem in misfit.problems] == ["$.amount"]

    @pytest.mark.parametrize("kind", [Named, Page[int]], ids=["by another name", "in a generic class"])
    def test_a_number_without_a_value_is_refused_wherever_its_type_is_written(self, kind: Any) -> None:
        assert invalid(kind, b'{"amount": "NaN"}').fields == ("$.amount",)
        assert codec_of(kind).decode(b'{"amount": "1.5"}').amount == Decimal("1.5")  # type: ignore[attr-defined]

    def test_no_part_of_a_type_is_taken_for_one_that_is_gone(self) -> None:
        """A part was passed over if its id was that of a part before it."""
        body = b'{"counted": {"counts": []}, "priced": {"prices": ["1e999999999"]}}'

        assert [path for path, _problem in invalid(Wide, body).problems] == ["$.priced.prices[0]"]

    def test_the_default_of_a_field_may_be_of_another_type(self) -> None:
        assert codec_of(Fee).decode(b"{}") == Fee()
        assert invalid(Fee, b'{"amount": "NaN"}').fields == ("$.amount",)

    def test_long_texts_take_no_longer_than_short_ones_of_the_same_size(self) -> None:
        """Underscores took the square of their number: a body of one megabyte held the process for 15 seconds."""
        codec = codec_of(PaymentDict)

        def seconds(length: int) -> float:
            texts = ["_" * length] * (320_000 // length)
            body = json.dumps({"id": 7, "amount": "1", "notes": texts}).encode()
            took = []
            for _ in range(3):
                began = time.thread_time()
                codec.decode(body)
                took.append(time.thread_time() - began)
            return min(took)

        assert seconds(304) < 3 * seconds(19)

    def test_a_key_of_a_model_with_a_huge_exponent_is_refused(self) -> None:
        assert invalid(Rates, b'{"rates": {"1e999999999": 1}}').fields == ("$.rates.…",)
        assert codec_of(Rates).decode(b'{"rates": {"1.5": 1}}') == Rates(rates={Decimal("1.5"): 1})

    @pytest.mark.parametrize(
        "body", [b'{"id": 7, "amount": 1.5}', b'{"id": 7, "amount": "1.5"}', b'{"id": 7, "amount": "15e-1"}']
    )
    def test_decimals_may_be_numbers_or_texts(self, body: bytes) -> None:
        assert codec_of(Payment).decode(body) == Payment(7, Decimal("1.5"))

    def test_numbers_are_looked_at_whatever_the_codec_reads_them_from(self) -> None:
        """Another codec has no quotes around its texts, and none was found."""

        class Reversed(Json):
            def decode(self, body: bytes, properties: Properties | None = None) -> object:
                return super().decode(body[::-1], properties)

        codec = codec_for(function(Delivery[PaymentDict]), Reversed(), "payments.charge")
        with pytest.raises(errors.InvalidBody):
            codec.decode(b'{"id": 7, "amount": "1e999999999"}'[::-1])

    def test_limits_of_bodies_are_those_of_the_codec_inside(self) -> None:
        body = b'{"id": 7, "amount": 1, "items": [' + b",".join([b'{"price": 1}'] * 9000) + b"]}"

        with pytest.raises(errors.UndecodableBody, match="BODY_ELEMENTS"):
            decoded(delivery(body=body), codec_of(Payment), BodyLimits(most_elements=1000))

    def test_a_compressed_body_stays_undecodable(self) -> None:
        with pytest.raises(errors.UndecodableBody, match="content-encoding"):
            codec_of(Payment).decode(b"{}", Properties(content_encoding="gzip"))


class TestParking:
    def parked(self, body: bytes, **options: Any) -> tuple[Bench, Any]:
        bench = Bench(codec=codec_of(Payment), **options)
        copy = bench.settle(delivery(body=body)).copy
        assert copy is not None
        return bench, copy

    def test_an_invalid_message_is_parked_with_its_paths_and_no_attempt(self) -> None:
        bench, copy = self.parked(b'{"id": "7", "amount": 1}')
        parked = read_back(copy)

        assert (parked.reason, parked.error) == (Reason.INVALID, "InvalidBody")
        assert parked.error_text == "The body of 24 bytes does not fit Payment: $.id: Expected `int`, got `str`."
        assert (parked.stamp.attempts, bench.log) == (0, ["enter", "leave"])
        assert copy.body == b'{"id": "7", "amount": 1}'

    def test_each_wrong_field_is_a_group_of_its_own(self) -> None:
        def group(body: bytes) -> str:
            return str(read_back(self.parked(body)[1]).fingerprint)

        one, same = group(b'{"id": "7", "amount": 1}'), group(b'{"id": null, "amount": 2}')
        other = group(b'{"id": 7, "amount": "x"}')

        assert one == same
        assert one != other

    def test_answers_have_no_type(self) -> None:
        codec = codec_of(Payment)

        assert untyped(codec) is codec.inner
        bench = Bench(policy=OneShot(), act=lambda _message: "paid", codec=codec)
        arrival = delivery(body=b'{"id": 7, "amount": 1}', reply_to="amq.rabbitmq.reply-to.g1AAA", correlation_id="1")
        answer = bench.settle(arrival).answer

        assert answer is not None
        assert answer.body == b'"paid"'


def test_two_types_share_a_queue_by_the_property_type() -> None:
    @dataclass
    class Second:
        id: int
        currency: str

    seen: list[object] = []

    def taking(kind: Any) -> Callable[[Any], None]:
        def take(message: Any) -> None:
            seen.append(message.data)

        take.__annotations__["message"] = Delivery[kind]
        return take

    old = handler("payments", type="payment", name="old")(taking(DefinedBelow))
    new = handler("payments", type="payment.v2", name="new")(taking(Second))

    old(message_of({"id": 1}, handler=old))
    new(message_of({"id": 2, "currency": "EUR"}, handler=new))

    assert seen == [DefinedBelow(1), Second(2, "EUR")]
    assert (old.message(DefinedBelow(1)).properties.type, new.message(Second(2, "EUR")).properties.type) == (
        "payment",
        "payment.v2",
    )


def test_what_a_function_takes_is_known_without_its_annotations() -> None:
    # From Python 3.14 on no annotation is evaluated when the function is defined, also without the import.
    before = "" if sys.version_info >= (3, 14) else "from __future__ import annotations\n"
    namespace: dict[str, Any] = {}
    exec(f"{before}def charge(message: Unimported, *, amount: Unknown = 0) -> Unknown: ...", namespace)  # noqa: S102

    assert list(signature_of(namespace["charge"]).parameters) == ["message", "amount"]
