"""`paceline simulate`: a server under a load, on a virtual clock."""

from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Annotated

import typer

from paceline.bench.samples import targets_of
from paceline.cli.bench.options import OutputOption, writable, write_record
from paceline.cli.command import WrongOption
from paceline.cli.options import JsonFlag
from paceline.cli.simulation_options import (
    HtmlOption,
    LoadOptions,
    RouterOption,
    ServerModelOptions,
    TargetsOption,
    about,
    check_drafts,
    check_explained,
    doubts,
    print_record,
)
from paceline.simulator.fleet import MOST_REPLICAS, FleetModel, simulated
from paceline.simulator.results.figures import SimulationReport
from paceline.simulator.results.page import simulation_page


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    """The load, the server, and the report.

    Attributes:
        policy: Order of admission: fcfs, fair, shortest, deadline, priority, longest.
        replicas: Servers that share the load.
        explain (ID): Also explain this request; may be repeated.
    """

    load: LoadOptions = field(default_factory=LoadOptions)
    server: ServerModelOptions = field(default_factory=ServerModelOptions)
    policy: str | None = None
    replicas: Annotated[int, typer.Option(min=1, max=MOST_REPLICAS)] = 1
    router: RouterOption = None
    goodput: TargetsOption = field(default_factory=list[str])
    explain: list[str] = field(default_factory=list[str])
    output: OutputOption = None
    html: HtmlOption = None
    json: JsonFlag = False


def run(options: SimulateOptions) -> int:
    """Simulate a server under a trace, a recording or a synthetic load.

    The engine and the scheduler are those of `paceline serve`, with a clock and a runner that only
    know how long each step takes on the device of the profile. The report has latencies,
    throughput, goodput, preemptions, hit rates, and what is used over time, for each tenant and
    replica too. The exit status is 1 if no request completed.
    """
    targets = targets_of(options.goodput)
    writable(options.output, options.html)
    source = options.load.source
    settings = {"policy": options.policy} if options.policy else {}
    model = options.server.model(source, options.load.clients.seed, settings)
    check_drafts(model)
    fleet = fleet_of(options)
    load = source.workload()
    check_explained(options.explain, load, options.load.name)
    begun = perf_counter()
    done = simulated(model, fleet, load, options.explain)
    took = perf_counter() - begun
    report = SimulationReport.of(done, targets)
    record = {
        "kind": "simulate",
        **model.profile.label,
        "warnings": doubts(model),
        "settings": model.config.to_dict(),
        "drafting": None if model.drafting is None else asdict(model.drafting),
        "targets_ms": targets,
        "router": fleet.router if fleet.replicas > 1 else None,
        "wall_s": took,
        **report.to_dict(),
        "explained": dict(done.explained),
    }
    lines = about(model, options.load.name, source)
    if fleet.replicas > 1:
        lines.append(f"{fleet.replicas:,} replicas; the router is {fleet.router}.")
        lines += filter(None, [fleet.doubt(load)])
    write_record(record, options.output)
    if options.html is not None:
        title = f"paceline simulate: {options.load.name}"
        page = simulation_page(title, report, targets, lines)
        options.html.write_text(page, encoding="utf-8")
    if options.json:
        print_record(record)
    else:
        from paceline.simulator.results.tables import show

        print(*lines, sep="\n")
        show(report, targets)
        duration, requests = report.total.duration_s, report.total.requests
        print(f"simulated in {took:.2f} s: {duration / took:,.0f} s per second, ", end="")
        print(f"{requests / took:,.0f} requests per second")
        for text in done.explained.values():
            print("", text, sep="\n")
    return int(not report.total.completed)


def fleet_of(options: SimulateOptions) -> FleetModel:
    if options.router is None:
        return FleetModel(options.replicas)
    if options.replicas == 1:
        raise WrongOption("--router chooses among replicas, and there is one; give --replicas")
    return FleetModel(options.replicas, options.router)
