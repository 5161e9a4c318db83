"""The smallest Django project around a handler with almost no work."""
