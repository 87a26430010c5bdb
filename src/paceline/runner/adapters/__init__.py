"""LoRA adapters: reading them, keeping them, and their linears beside those of the model."""
