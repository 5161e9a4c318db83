"""System checks: all that can be known of a project without its broker. Every id has its entry in docs/checks.md."""

from django_rmq_retry.checks import deploying, joining, outgoing, placing, repeating, saying, switching

__all__ = ["deploying", "joining", "outgoing", "placing", "repeating", "saying", "switching"]
