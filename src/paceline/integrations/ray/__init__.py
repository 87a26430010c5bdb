"""Serves a model under Ray Serve: `serve run paceline.integrations.ray:app model=smollm2`."""

from paceline.integrations.ray.application import app

__all__ = ["app"]
