"""The commands that people type: the one place above everything else."""
