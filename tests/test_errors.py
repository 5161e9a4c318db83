"""The public names of the errors."""

from django_rmq_retry import errors
from django_rmq_retry import errors as core


def test_every_error_of_the_product_has_a_public_name() -> None:
    own = {name for name, thing in vars(core).items() if isinstance(thing, type) and thing.__module__ == core.__name__}

    assert set(errors.__all__) == own
    assert all(getattr(errors, name) is getattr(core, name) for name in own)
