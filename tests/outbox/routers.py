"""Database routers for tests."""


class Refuse:
    """A router that allows no table of the package."""

    def allow_migrate(self, _db: str, app_label: str, **_hints: object) -> bool:
        return app_label != "rmq_retry"
