"""The helper for settings files: what the environment says arrives unchanged, misspelt names are refused."""

from pathlib import Path
from typing import Any

import environ  # type: ignore[import-untyped]  # it has neither stubs nor py.typed
import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings
from environ.fileaware_mapping import FileAwareMapping  # type: ignore[import-untyped]  # as above

from django_rmq_retry import conf
from django_rmq_retry.env import VARIABLES, Secret, rmq_settings


def env_of(**variables: str) -> Any:
    env = environ.Env()
    env.ENVIRON = variables
    return env


def test_an_empty_environment_leaves_the_defaults() -> None:
    assert rmq_settings(env_of()) == {}


def test_without_an_env_argument_the_process_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RMQ_PREFETCH", "7")

    assert rmq_settings()["PREFETCH"] == 7


def test_the_url_and_the_other_variables_are_read() -> None:
    found = rmq_settings(
        env_of(
            RMQ_URL="amqps://app:pw@h/v",
            RMQ_HEARTBEAT="20",
            RMQ_PUBLISH_TIMEOUT="2.5",
            RMQ_CRASH_LIMIT="none",
            RMQ_REPLY_TO="amq.gen-*,bank.answers",
            RMQ_TLS_CA_FILE="/ca.pem",
            RMQ_TLS_VERIFY="false",
        )
    )

    assert found == {
        "URL": Secret("amqps://app:pw@h/v"),
        "HEARTBEAT": 20,
        "PUBLISH_TIMEOUT": 2.5,
        "CRASH_LIMIT": None,
        "REPLY_TO": ["amq.gen-*", "bank.answers"],
        "TLS": {"CA_FILE": "/ca.pem", "VERIFY": False},
    }


def test_the_environment_overrides_the_settings_file() -> None:
    found = rmq_settings(env_of(RMQ_PREFETCH="7", RMQ_TLS_CA_FILE="/a"), PREFETCH=1, THREADS=2, TLS={"VERIFY": True})

    assert found == {"PREFETCH": 7, "THREADS": 2, "TLS": {"VERIFY": True, "CA_FILE": "/a"}}


def test_operator_settings_of_the_environment_are_merged_with_the_file() -> None:
    env = env_of(RMQ_OPERATORS_CONTACT="ann", RMQ_OPERATORS_RESOLVED_DAYS="7")
    found = rmq_settings(env, OPERATORS={"CONTACT": "bob", "ENVIRONMENT": "TEST"})

    assert found == {"OPERATORS": {"CONTACT": "ann", "ENVIRONMENT": "TEST", "RESOLVED_DAYS": 7}}


def test_a_password_that_begins_with_a_dollar_sign_is_kept() -> None:
    env = env_of(RMQ_PASSWORD="$ecret", RMQ_URL="amqp://app@h", ecret="somebody else's")

    assert env("RMQ_PASSWORD") == "somebody else's"
    assert rmq_settings(env)["PASSWORD"] == Secret("$ecret")


def test_percent_encoding_is_decoded_once() -> None:
    found = rmq_settings(env_of(RMQ_URL="amqp://a%40b:p%2525@h/t%2Fen"))

    with override_settings(RMQ_RETRY=found):
        access = conf.settings().access()

    assert (access.user, access.password.reveal(), access.vhost) == ("a@b", "p%25", "t/en")


def test_a_separate_password_is_not_percent_decoded() -> None:
    with override_settings(RMQ_RETRY=rmq_settings(env_of(RMQ_URL="amqp://app@h", RMQ_PASSWORD="p%40"))):
        access = conf.settings().access()

    assert access.password.reveal() == "p%40"


@pytest.mark.parametrize("kind", [environ.Env, environ.FileAwareEnv])
def test_a_secret_may_come_from_a_file(tmp_path: Path, kind: Any) -> None:
    file = tmp_path / "url"
    file.write_text("amqp://app:s3cret@h/v\n")
    env = kind()
    env.ENVIRON = {"RMQ_URL_FILE": str(file)}
    if kind is environ.FileAwareEnv:
        env.ENVIRON = FileAwareMapping(env.ENVIRON)

    assert rmq_settings(env) == {"URL": Secret("amqp://app:s3cret@h/v")}


def test_a_missing_secret_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ImproperlyConfigured, match=r"RMQ_URL_FILE names the file .*No such file"):
        rmq_settings(env_of(RMQ_URL_FILE=str(tmp_path / "url")))


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"RMQ_PREFECH": "5"}, "Did you mean RMQ_PREFETCH?"),
        ({"RMQ_PASWORD_FILE": "/p"}, "Did you mean RMQ_PASSWORD?"),
        ({"RMQ_MASK": "iban"}, "Unknown environment variable RMQ_MASK. Did you mean RMQ_OPERATORS_MASK?"),
        ({"RMQ_OPERATORS_CONTRACT": "ann"}, "Did you mean RMQ_OPERATORS_CONTACT?"),
        ({"RMQ_PREFETCH": "many"}, "RMQ_PREFETCH takes a whole number, not 'many'"),
        ({"RMQ_CRASH_LIMIT": "few"}, "RMQ_CRASH_LIMIT takes a whole number"),
        ({"RMQ_CONNECT_TIMEOUT": "soon"}, "RMQ_CONNECT_TIMEOUT takes a number"),
    ],
)
def test_an_invalid_variable_is_refused_with_a_hint(variables: dict[str, Any], said: str) -> None:
    with pytest.raises(ImproperlyConfigured) as caught:
        rmq_settings(env_of(**variables))

    assert said in str(caught.value)


def test_variables_of_other_programs_are_ignored() -> None:
    assert rmq_settings(env_of(RMQ_TEST_BROKERS="4.3", RMQ_HOME="/", AMQP_URL="x")) == {}


def test_an_empty_variable_counts_as_not_set() -> None:
    assert rmq_settings(env_of(RMQ_URL="", RMQ_PREFETCH="")) == {}


def test_every_setting_except_dicts_has_its_variable() -> None:
    nested = {name for name in VARIABLES if name.startswith(("TLS_", "OPERATORS_", "ALERTS_", "LINKS_", "FOUR_EYES_"))}
    of_operators = {name.removeprefix("OPERATORS_") for name in nested if name.startswith("OPERATORS_")}

    assert set(VARIABLES) - nested | {"TLS", "OPERATORS", "ALERTS", "LINKS", "FOUR_EYES"} == set(conf.KEYS)
    eyes = {name.removeprefix("FOUR_EYES_") for name in nested if name.startswith("FOUR_EYES_")}
    assert eyes == set(conf.FOUR_EYES_KEYS)
    assert {name.removeprefix("ALERTS_") for name in nested if name.startswith("ALERTS_")} == set(conf.ALERT_KEYS)
    assert {name.removeprefix("LINKS_") for name in nested if name.startswith("LINKS_")} == set(conf.LINK_KEYS)
    assert of_operators == set(conf.OPERATOR_KEYS) - {"EDITABLE", "ERROR_LABELS"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [("false", False), ("True", True), ("no", False), ("on", True), ("default, ledger", ["default", "ledger"])],
)
def test_the_outbox_variable_accepts_booleans_and_database_lists(text: str, expected: object) -> None:
    assert rmq_settings(env_of(RMQ_OUTBOX=text)) == {"OUTBOX": expected}


def test_each_variable_is_accepted_by_the_settings() -> None:
    told = rmq_settings(
        env_of(
            RMQ_URL="amqp://app:pw@rabbit/bank",
            RMQ_OPERATORS_MANAGEMENT_URL="http://app:pw@rabbit:15672",
            RMQ_PREFETCH="20",
            RMQ_QUEUE_TYPE="classic",
            RMQ_ALERTS_MAIL="ann@bank.example, bob@bank.example",
            RMQ_ALERTS_WEBHOOK="https://chat/hook",
            RMQ_ALERTS_SECRET="0123456789abcdef",
            RMQ_ALERTS_WINDOW="60",
        )
    )
    with override_settings(RMQ_RETRY=told):
        assert conf.settings().operators.management_url == Secret("http://app:pw@rabbit:15672")
        assert conf.settings().access().shown == "amqp://app@rabbit:5672/bank"
        assert conf.settings().alerts.mail == ("ann@bank.example", "bob@bank.example")
        assert conf.settings().alerts.secret == Secret("0123456789abcdef")
