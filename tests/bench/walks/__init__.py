"""How much of the package runs for one more message: modules and functions, counted by a profiler on four walks."""
