"""Parked messages in the database, and everything that operators do with them."""
