"""`paceline serve` with the null device in the core's process.

For example `python -m benchmarks.null_server serve smollm2 --port 8000`.
"""

from benchmarks.null_device import FACTORY
from paceline.cli.main import main
from paceline.wiring.processes import serving

if __name__ == "__main__":
    serving.FACTORY = FACTORY
    raise SystemExit(main())
