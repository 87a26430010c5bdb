"""Run many random schedules: python -m tests.property FIRST LAST."""

import sys
from collections import Counter

from tests.property.schedules import drive

if __name__ == "__main__":
    first, last = (int(word) for word in sys.argv[1:3])
    seen: Counter[str] = Counter()
    for seed in range(first, last):
        try:
            seen += drive(seed)
        except Exception as error:
            print(f"seed {seed}: {type(error).__name__}: {error}")
            raise
    print(f"{last - first} schedules passed: {dict(seen)}")
