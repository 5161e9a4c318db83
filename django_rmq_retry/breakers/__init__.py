"""Breakers, pauses and rates, shared by all processes."""
