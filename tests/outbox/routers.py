"""Routers that tests put into the project."""


class Refuse:
    """Wants none of our tables."""

    def allow_migrate(self, _db: str, app_label: str, **_hints: object) -> bool:
        return app_label != "rmq_retry"
