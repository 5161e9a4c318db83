"""The public names of the errors."""

from django_rmq_retry import errors


def test_every_error_of_the_product_has_a_public_name() -> None:
    own = {name for name, one in vars(errors).items() if isinstance(one, type) and one.__module__ == errors.__name__}

    assert set(errors.__all__) == own
