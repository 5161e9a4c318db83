"""Tests that no handler costs another message by what it does to its process or its database."""
