"""What operators do: one function for each act, the same for admin, commands and code."""
