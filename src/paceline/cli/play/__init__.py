"""`paceline play`: the real scheduler on a small workload, drawn step by step."""
