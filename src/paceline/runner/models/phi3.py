"""Phi-3, Phi-3.5 and Phi-4, text: products of the same input are stored as one."""

from paceline.runner.models.traits import Traits

TRAITS = Traits(fused_products=True, global_every=0)
