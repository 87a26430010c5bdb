"""What was decided and why: the journal, and how it is read."""
