"""Images of prompts: decoded, resized, and put in place of their marks in a prompt."""
