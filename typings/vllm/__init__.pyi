# The part of vLLM 0.13.0 that the plug-in uses.
