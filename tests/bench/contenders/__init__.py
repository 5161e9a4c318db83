"""What is measured: each module is run in a process of its own and says how far it is."""
