"""Masking hides confidential fields from operators without the permission, and changes nothing else."""

import json
import string
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_rmq_retry.conf import MASKED
from django_rmq_retry.messages.masking import hides, masked, without
from tests.tooling.pages import page

PATHS = ("card.pan", "*.iban", "*.token")
SECRET = "4111111111111111"


@pytest.mark.parametrize(
    ("text", "shown", "hidden"),
    [
        ('{"card": {"pan": "4111"}}', '{"card": {"pan": "•••"}}', ("card.pan",)),
        ('{"pan": "4111"}', '{"pan": "4111"}', ()),
        ('{"iban": "DE1"}', '{"iban": "•••"}', ("iban",)),
        ('{"a":{"b":[{"iban":  "DE1"}]}}', '{"a":{"b":[{"iban":  "•••"}]}}', ("a.b[0].iban",)),
        ('[{"iban": 1}, {"iban": null}]', '[{"iban": "•••"}, {"iban": "•••"}]', ("[0].iban", "[1].iban")),
        ('{"IBAN": "DE1"}', '{"IBAN": "•••"}', ("IBAN",)),
        (r'{"ib\u0061n": "DE1"}', r'{"ib\u0061n": "•••"}', ("iban",)),
        ('{"iban": "a", "iban": "b"}', '{"iban": "•••", "iban": "•••"}', ("iban",)),
        ('{"token": {"deep": [1, {"x": "}"}]}, "b": 2}', '{"token": "•••", "b": 2}', ("token",)),
        ('{"token": [], "n": 1}', '{"token": "•••", "n": 1}', ("token",)),
        ('{"a.b": {"iban": 1}}', '{"a.b": {"iban": "•••"}}', ('"a.b".iban',)),
        ('{"note": "\\"iban\\": 5", "iban": "x"}', '{"note": "\\"iban\\": 5", "iban": "•••"}', ("iban",)),
    ],
)
def test_only_the_hidden_value_changes(text: str, shown: str, hidden: tuple[str, ...]) -> None:
    assert masked(text, "application/json", PATHS) == (shown, hidden)


@pytest.mark.parametrize(
    ("path", "text", "shown", "hidden"),
    [
        ("*", '["DE1", {"a": 1}, [2]]', '["•••", {"a": "•••"}, ["•••"]]', ("[0]", "[1].a", "[2][0]")),
        ("card.*", '{"card": ["4111"], "b": ["c"]}', '{"card": ["•••"], "b": ["c"]}', ("card[0]",)),
        ("*.*", '{"a": [1]}', '{"a": "•••"}', ("a",)),
        ("*.iban", '["DE1", {"iban": "DE1"}]', '["DE1", {"iban": "•••"}]', ("[1].iban",)),
    ],
)
def test_a_star_hides_values_of_a_list_too_which_have_no_name(
    path: str, text: str, shown: str, hidden: tuple[str, ...]
) -> None:
    assert masked(text, "", [path]) == (shown, hidden)
    value = without({"body": json.loads(text)}, [], [f"body.{path}"])
    assert value["body"] == json.loads(shown)


def test_numbers_spaces_and_order_stay_as_they_came() -> None:
    text = '{ "amount":100.00,"id" : 12345678901234567890,\n "x":1E400, "iban":"DE1" ,"n":' + "9" * 5000 + "}"

    assert masked(text, "", PATHS)[0] == text.replace('"DE1"', '"•••"')


def test_revealing_one_field_keeps_its_neighbours_masked() -> None:
    text = '[{"iban": "DE1"}, {"iban": "DE2"}]'

    assert masked(text, "", PATHS, shown=["[1].iban"]) == (
        '[{"iban": "•••"}, {"iban": "DE2"}]',
        ("[0].iban", "[1].iban"),
    )


@pytest.mark.parametrize(
    "body",
    [b"iban=DE1", b'{"iban": "DE1"', b'"DE1"', b"12", b"", b"\xff\xfe\x00", b'{"iban": "\xff"}', b"[" * 100_000],
)
def test_a_body_that_is_not_json_is_hidden_completely(body: bytes) -> None:
    assert masked(body, "application/json", PATHS) == (None, ())


def test_too_deep_json_is_hidden_completely() -> None:
    assert masked('{"a":' * 100 + '"b"' + "}" * 100, "", PATHS)[0] is not None
    assert masked('{"a":' * 101 + '"b"' + "}" * 101, "", PATHS) == (None, ())


def test_masking_many_deep_fields_takes_linear_time() -> None:
    fields = ",".join(f'"f{number}":{number}' for number in range(20_000))
    text = '{"a":' * 90 + "{" + fields + "}" + "}" * 90
    begun = time.process_time()

    assert masked(text, "", [f"*.secret{number}" for number in range(20)]) == (text, ())
    assert time.process_time() - begun < 5


@pytest.mark.parametrize(
    ("encoding", "content_type"),
    [("utf-8", ""), ("utf-16", ""), ("latin-1", "application/json; charset=latin-1"), ("utf-8-sig", "")],
)
def test_a_body_is_read_in_its_encoding(encoding: str, content_type: str) -> None:
    body = '{"name": "Zoë", "iban": "DE1"}'.encode(encoding)

    assert masked(body, content_type, PATHS) == ('{"name": "Zoë", "iban": "•••"}', ("iban",))


def test_a_charset_that_does_not_exist_hides_the_body() -> None:
    assert masked(b'{"iban": "DE1"}', "text/plain; charset=made-up", PATHS) == (None, ())


@pytest.mark.parametrize(
    ("field", "path", "found"),
    [
        (("authorization",), "*.authorization", True),
        (("Authorization",), "*.authorization", True),
        (("a", "b", "pin"), "*.pin", True),
        (("pin", "a"), "*.pin", False),
        (("card", "pan"), "card.pan", True),
        (("x", "card", "pan"), "card.pan", False),
        (("x", "card", "y", "pan"), "*.card.*.pan", True),
        (("card", "cvv2"), "card.cvv*", True),
        (("card", "anything"), "card.*", True),
        (("card",), "card.*", False),
        (("cardNumber",), "*.card_number", True),
        (("card_number",), "*.cardNumber", True),
        (("CARD-NUMBER",), "*.card_number", True),
        (("card_number_hint",), "*.card_number", False),
        (("track2",), "*.track-[1-3]", True),
        (("track4",), "*.track-[1-3]", False),
    ],
)
def test_a_path_matches_fields_from_the_outermost(field: tuple[str, ...], path: str, found: bool) -> None:
    assert hides(field, [path]) is found


@pytest.mark.parametrize(
    "name",
    [
        *("pan", "cardNumber", "CardNumber", "card-number", "creditcard", "creditCardNumber", "cc", "cvc", "CVV2"),
        *("IBAN", "accessToken", "apiKey", "X-API-Key", "clientSecret"),
    ],
)
def test_names_that_are_usual_for_card_numbers_and_secrets_are_hidden_by_default(name: str) -> None:
    text = json.dumps({"a": {name: SECRET}})

    assert masked(text, "", MASKED)[0] == text.replace(SECRET, "•••")
    assert not hides(["a", "account"], MASKED)


def test_the_settings_page_prints_the_default() -> None:
    assert ", ".join(f"`{path}`" for path in MASKED) in " ".join(page("settings.md").read_text().split())


def test_a_header_table_is_masked_like_a_body() -> None:
    table = {"pan": "4111", "kind": "debit", "more": [{"IBAN": "DE1"}, 7]}

    assert without(table, ["card"], PATHS) == {"pan": "•••", "kind": "debit", "more": [{"IBAN": "•••"}, 7]}
    assert without("abc", ["token"], PATHS) == "•••"


def documents() -> st.SearchStrategy[object]:
    names = st.sampled_from(["iban", "card", "pan", "other", "Ünïcode", 'quo"te', "a.b"])
    leaves = st.none() | st.booleans() | st.integers() | st.text(alphabet=string.printable, max_size=8)
    return st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(names, inner), max_leaves=20)


@given(document=documents(), ascii_only=st.booleans(), indent=st.sampled_from([None, 2]))
def test_a_secret_in_any_document_never_comes_through(document: object, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps({"open": document, "iban": SECRET, "deep": [{"token": {"x": SECRET}}]}, ensure_ascii=ascii_only)

    shown, hidden = masked(json.dumps(json.loads(text), indent=indent, ensure_ascii=ascii_only), "", PATHS)

    assert shown is not None
    assert SECRET not in shown
    assert {"iban", "deep[0].token"} <= set(hidden)
    assert json.loads(shown)["iban"] == "•••"
    without = masked(text, "", ())
    assert without == (text, ())
