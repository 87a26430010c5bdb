"""The commands that people type. No other package imports this one."""
