"""Serves a model under Ray Serve: `serve run paceline.fleet.ray:app model=smollm2`."""

from paceline.fleet.ray.application import app

__all__ = ["app"]
