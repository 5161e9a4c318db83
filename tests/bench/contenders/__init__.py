"""The measured programs: each module runs in its own process and reports its progress."""
