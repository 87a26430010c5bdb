"""The layer of HTTP: OpenAI's API and the operator's, over any engine."""
