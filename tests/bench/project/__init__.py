"""The smallest Django project around a handler that does next to nothing."""
