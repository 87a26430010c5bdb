"""The same runner on a card: fused kernels, state that stays there, steps as graphs."""
