"""The step loop, and the thread or process that runs it."""
