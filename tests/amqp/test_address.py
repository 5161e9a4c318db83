"""Own URL parser: everything that is meant is read, everything else is refused, and nothing quotes the password."""

import traceback
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_rmq_retry.amqp import Access, Host, Secret, Tls
from django_rmq_retry.errors import ConfigurationError


def parsed(url: str) -> tuple[str, str, str, list[str]]:
    access = Access.parse(url)
    return access.user, access.password.reveal(), access.vhost, [str(host) for host in access.hosts]


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("amqp://app:pw@rabbit:5673/pay", ("app", "pw", "pay", ["rabbit:5673"])),
        ("amqp://app:pw@rabbit", ("app", "pw", "/", ["rabbit:5672"])),
        ("amqp://app:pw@rabbit/", ("app", "pw", "/", ["rabbit:5672"])),
        ("amqp://app:pw@rabbit/%2F", ("app", "pw", "/", ["rabbit:5672"])),
        ("amqp://rabbit", ("guest", "guest", "/", ["rabbit:5672"])),
        ("amqps://app:pw@rabbit", ("app", "pw", "/", ["rabbit:5671"])),
        ("amqp://app:pw@[::1]:5673,[fe80::2]/v", ("app", "pw", "v", ["[::1]:5673", "[fe80::2]:5672"])),
        ("amqp://app:pw@h1:5672,h2:5673/v", ("app", "pw", "v", ["h1:5672", "h2:5673"])),
        ("amqp://a%40b:p%23%2F%3F%40%3A%25%24w@h/t%2Fen", ("a@b", "p#/?@:%$w", "t/en", ["h:5672"])),
        ("amqp://app:p:w@h", ("app", "p:w", "/", ["h:5672"])),
        ("amqp://app:+w@h", ("app", "+w", "/", ["h:5672"])),
        ("amqp://app:@h", ("app", "", "/", ["h:5672"])),
        ("amqp://app:%C3%A9@h", ("app", "é", "/", ["h:5672"])),
        ("amqp://app:p;w@h", ("app", "p;w", "/", ["h:5672"])),
    ],
)
def test_a_url_is_read_part_by_part(url: str, parts: tuple[str, str, str, list[str]]) -> None:
    assert parsed(url) == parts


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("pyamqp://guest@localhost//", ("guest", "guest", "/", ["localhost:5672"])),
        ("pyamqp://app:pw@rabbit/shop", ("app", "pw", "shop", ["rabbit:5672"])),
        ("amqp://app:pw@rabbit:5673//", ("app", "pw", "/", ["rabbit:5673"])),
        ("amqp://app:pw@h1//;pyamqp://app:pw@h2:5673//", ("app", "pw", "/", ["h1:5672", "h2:5673"])),
        ("amqp://app:pw@h1/shop;amqp://app:pw@h2/shop", ("app", "pw", "shop", ["h1:5672", "h2:5672"])),
    ],
)
def test_the_url_that_celery_uses_is_read_as_celery_reads_it(url: str, parts: tuple[str, str, str, list[str]]) -> None:
    assert parsed(url) == parts


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("amqp://app:s3c#ret@h/v", "Percent-encode"),
        ("amqp://app:s3c/ret@h/v", "Percent-encode"),
        ("amqp://app:s3c?ret@h/v", "Percent-encode"),
        ("amqp://app:s3c@ret@h/v", "more than one '@'"),
        ("amqp://app:s3c%ret@h/v", "as %25"),
        ("amqp://app:s3c%FFret@h/v", "not UTF-8"),
        ("amqp://app:s3c ret@h/v", "a space or a line break"),
        ("amqp://app:s3cret@h/v\n", "a space or a line break"),
        ("amqp://app:s3cret@h:port/v", "no valid host"),
        ("amqp://app:s3cret@h:70000/v", "no valid host"),
        ("amqp://app:s3cret@h:0/v", "no valid host"),
        ("amqp://app:s3cret@/v", "no valid host"),
        ("amqp://app:s3cret@::1/v", "no valid host"),
        ("amqp://app:s3cret@h1,,h2/v", "no valid host"),
        ("amqp://app:s3cret", "no valid host"),
        ("amqp://app:s3cret@h//v", "write it as %2F"),
        ("amqp://app:s3cret@h1//;http://app:s3cret@h2//", "must begin with amqp://"),
        ("amqp://app:s3cret@h/a/b", "write it as %2F"),
        ("amqp://app:s3cret@h/v?heartbeet=5", "Did you mean 'heartbeat'?"),
        ("amqp://app:s3cret@h?s3cret", "keys of RMQ_RETRY"),
        ("amqp://app:s3cret@h/v?heartbeat=s3cret", "a whole number of seconds"),
        ("amqp://app:s3cret@h/v?heartbeat=0", "never noticed"),
        ("http://app:s3cret@h/v", "must begin with amqp://"),
        ("app:s3cret@h/v", "must begin with amqp://"),
        ("s3cret", "must begin with amqp://"),
        ("", "is empty. Write amqp://user:password@host:5672/vhost, or embedded:// for the broker without a server"),
        ("amqp://s3cret@h/v", "without a password"),
    ],
)
def test_a_wrong_url_states_what_to_write_and_quotes_nothing(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Access.parse(url)

    assert said in str(caught.value)
    assert "s3c" not in str(caught.value)


def test_no_frame_of_the_parser_holds_the_url() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Access.parse(Secret("amqp://app:s3c#ret@h/v"))

    frames = [frame for frame, _ in traceback.walk_tb(caught.value.__traceback__)][1:]
    assert frames
    assert not [frame for frame in frames if "s3c" in repr(frame.f_locals)]
    assert caught.value.__context__ is None


@given(password=st.text(min_size=1), user=st.text(min_size=1), vhost=st.text(min_size=1))
def test_percent_encoded_parts_are_decoded(password: str, user: str, vhost: str) -> None:
    try:
        url = f"amqp://{quote(user, safe='')}:{quote(password, safe='')}@h/{quote(vhost, safe='')}"
    except UnicodeEncodeError:
        return

    assert parsed(url) == (user, password, vhost, ["h:5672"])


@given(tail=st.text(max_size=30))
def test_any_text_is_parsed_or_raises_configuration_error(tail: str) -> None:
    try:
        Access.parse(f"amqp://{tail}")
    except ConfigurationError as error:
        refusal = str(error)
    else:
        refusal = ""

    assert refusal == "" or refusal.startswith(("The broker's", "The virtual host", "heartbeat", "blocked_timeout"))


def test_several_urls_are_hosts_of_one_cluster() -> None:
    access = Access.parse(["amqp://app:pw@h1/v", "amqp://app:pw@h2:5673/v", "amqp://app:pw@h1/v"])

    assert access.hosts == (Host("h1", 5672), Host("h2", 5673))


@pytest.mark.parametrize(
    ("other", "part"),
    [
        ("amqps://app:pw@h2/v", "scheme"),
        ("amqp://app:other@h2/v", "password"),
        ("amqp://app:pw@h2/w", "vhost"),
        ("amqp://bpp:pw@h2/v", "user"),
    ],
)
def test_urls_that_differ_are_refused_by_the_part_that_differs(other: str, part: str) -> None:
    with pytest.raises(ConfigurationError, match=f"differ in their {part}") as caught:
        Access.parse(["amqp://app:pw@h1/v", other])

    assert "other" not in str(caught.value)


def test_an_access_shows_everything_but_the_password() -> None:
    access = Access.parse("amqp://a%40b:s3cret@h1,h2:5673/t%2Fen")

    assert access.shown == "amqp://a%40b@h1:5672,h2:5673/t%2Fen"
    assert str(access) == access.shown
    assert "s3cret" not in repr(access)


def test_a_secret_shows_its_value_only_through_reveal() -> None:
    secret = Secret("s3cret")

    assert secret.reveal() == "s3cret"
    assert f"{secret} {secret!r}" == "<Secret> <Secret>"
    assert secret == Secret("s3cret")
    assert secret != "s3cret"


def test_options_of_the_url_win_over_the_settings() -> None:
    access = Access.parse("amqp://h?heartbeat=5&blocked_connection_timeout=7", heartbeat=30, connect_timeout=3)

    assert (access.heartbeat, access.blocked_timeout, access.connect_timeout) == (5, 7, 3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"heartbeat": 0}, "from 1 to 600"),
        ({"heartbeat": 1.5}, "whole seconds"),
        ({"connect_timeout": 0}, "connect_timeout takes seconds above 0"),
        ({"publish_timeout": float("inf")}, "publish_timeout takes seconds above 0"),
        ({"blocked_timeout": None}, "blocked_timeout takes seconds above 0"),
    ],
)
def test_invalid_times_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Access.parse("amqp://h", **options)


def test_amqps_is_verified_by_default() -> None:
    assert Access.parse("amqps://h").tls == Tls(verify=True)
    assert Access.parse("amqp://h").tls is None


def test_tls_settings_with_an_amqp_url_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="Write amqps://"):
        Access.parse("amqp://h", tls=Tls(ca_file="/ca.pem"))


def test_a_password_setting_needs_no_percent_encoding() -> None:
    assert Access.parse("amqp://app@h/v", password="p#/?@:%").password.reveal() == "p#/?@:%"


def test_a_password_in_url_and_settings_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="given twice"):
        Access.parse("amqp://app:pw@h/v", password="pw")


def test_a_function_is_asked_for_the_password_before_each_connect() -> None:
    passwords = iter(["first", "second", "third"])
    access = Access.parse("amqp://app@h/v", password=lambda: next(passwords))

    assert [access.password.reveal(), access.current().password.reveal()] == ["first", "second"]
    assert access.current().password.reveal() == "third"


def test_a_function_is_asked_for_the_whole_url_before_each_connect() -> None:
    urls = iter(["amqp://app1:pw1@h/v", "amqp://app2:pw2@h/v"])
    access = Access.parse(lambda: next(urls))

    assert access.user == "app1"
    assert access.current().user == "app2"


def test_the_embedded_url_selects_the_embedded_broker() -> None:
    access = Access.parse("embedded://")

    assert access.embedded
    assert access.shown == "embedded://"


def test_a_key_without_its_certificate_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="cert_file"):
        Tls(key_file="/key.pem")
