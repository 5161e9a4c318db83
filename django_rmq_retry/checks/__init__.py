"""System checks: the problems of a project that are visible without its broker."""

from django_rmq_retry.checks import once, settings, topology

__all__ = ["once", "settings", "topology"]
