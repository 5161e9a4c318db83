"""The project's benchmark: ratios to bare pika, taken within one run; `python -m tests.bench`, or `make bench`."""
