"""What layers on a GPU read of more than one position."""
