"""Metrics, health, traces and log fields, for the tools that watch a system from outside."""
