"""The public names of the errors."""

from django_rmq_retry import errors


def test_every_error_of_the_product_has_a_public_name() -> None:
    own = {name for name, one in vars(errors).items() if isinstance(one, type) and one.__module__ == errors.__name__}

    assert set(errors.__all__) == own


def test_a_reason_that_is_a_sentence_leaves_no_full_stop_in_the_parentheses() -> None:
    error = errors.MessageUnsent("", "payments.charge", said="The broker refused the user name.")

    assert str(error) == (
        "The message to the default exchange with the routing key 'payments.charge' was not sent (The broker refused "
        "the user name). Nothing was stored: publish it again once the broker is reachable."
    )


def test_of_many_missing_queues_a_few_are_named_behind_their_number() -> None:
    """ "No consumer is alive: 1 ended (…" went on for six lines of names on the first page of an operator."""
    some, one = (
        errors.TopologyMissing([f"queue 'q{place}'" for place in range(9)]),
        errors.TopologyMissing(["queue 'q'"]),
    )

    assert str(some).startswith(
        "The broker lacks 9 queues or exchanges of the handlers: queue 'q0', queue 'q1', queue 'q2' and 6 more. No "
    )
    assert str(one).startswith("The broker lacks queue 'q'. No message was taken.")
