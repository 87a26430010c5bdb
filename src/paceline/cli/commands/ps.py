"""`paceline ps`: the servers that run on this machine."""

import json
from dataclasses import asdict, dataclass
from datetime import datetime

from paceline.cli.options import JsonFlag

HEADS = ("NAME", "ADDRESS", "PID", "SINCE", "MODEL")


@dataclass(frozen=True, slots=True)
class PsOptions:
    """How to print."""

    json: JsonFlag = False


def run(options: PsOptions) -> int:
    """List the servers that run on this machine.

    These are the servers that the same user started with `paceline serve`.
    """
    from paceline.server.listen import running_servers

    servers = running_servers()
    if options.json:
        print(json.dumps([asdict(server) for server in servers], indent=2))
        return 0
    if not servers:
        print("no servers on this machine; `paceline serve` starts one")
        return 0
    rows: list[tuple[str, ...]] = [HEADS]
    for one in servers:
        since = datetime.fromtimestamp(one.since).strftime("%Y-%m-%d %H:%M:%S")
        rows.append((one.name, one.url, str(one.pid), since, one.model))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
    return 0
