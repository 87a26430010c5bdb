"""LoRA adapters: reading them, keeping them, and their products beside those of the model."""
