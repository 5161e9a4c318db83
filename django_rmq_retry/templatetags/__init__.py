"""The template tags of the admin."""
