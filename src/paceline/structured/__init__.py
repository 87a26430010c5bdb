"""Grammars that hold the shape of outputs: constraints, backends and their compiler."""
