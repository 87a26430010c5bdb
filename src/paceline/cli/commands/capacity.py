"""`paceline capacity`: the rate that a server holds, and how many servers a load needs."""

from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from paceline.cli.bench.options import OutputOption, writable, write_record
from paceline.cli.command import WrongOption
from paceline.cli.options import JsonFlag
from paceline.cli.simulation_options import (
    JobsOption,
    LoadOptions,
    RouterOption,
    ServerModelOptions,
    about,
    check_drafts,
    doubts,
    print_record,
)
from paceline.core.system.host import usable_cores
from paceline.simulator.capacity import (
    CapacityAnswer,
    LatencyLimits,
    Trial,
    highest_rate,
    replicas_needed,
)
from paceline.simulator.experiment import Experiment
from paceline.simulator.fleet import FleetModel
from paceline.simulator.loads import Workload
from paceline.simulator.results.cells import number

P99 = "_p99"
LIMITS = "limits, in seconds"
WHOLE = 1000  # requests/s, from which on a rate has no decimals


@dataclass(frozen=True, slots=True)
class LimitOptions:
    """99th percentiles that a server must keep.

    Attributes:
        ttft_p99 (S): Time to first token.
        itl_p99 (S): Gap between two tokens.
        tpot_p99 (S): Time per output token.
        e2e_p99 (S): End-to-end latency.
        attain: Share of the requests that must meet --ttft-target-ms and --itl-target-ms.
    """

    panel: ClassVar = LIMITS

    ttft_p99: float | None = None
    itl_p99: float | None = None
    tpot_p99: float | None = None
    e2e_p99: float | None = None
    attain: float = 0.95

    def limits(self, server: ServerModelOptions) -> LatencyLimits:
        given = {name: value for name, value in asdict(self).items() if name.endswith(P99)}
        p99_s = {
            name.removesuffix(P99): value for name, value in given.items() if value is not None
        }
        return LatencyLimits(p99_s, attained=self.attain if server.targets_ms else 0.0)


@dataclass(frozen=True, slots=True)
class CapacityOptions:
    """The load, the limits, and the report.

    Attributes:
        replicas: Also find how many replicas the load needs as it is.
    """

    load: LoadOptions = field(default_factory=LoadOptions)
    limits: LimitOptions = field(default_factory=LimitOptions)
    server: ServerModelOptions = field(default_factory=ServerModelOptions)
    replicas: bool = True
    router: RouterOption = None
    jobs: JobsOption = 0
    output: OutputOption = None
    json: JsonFlag = False


def run(options: CapacityOptions) -> int:
    """Find the rate that a server holds within limits, and how many a load needs.

    The load is made faster or slower until the limits are just kept, to 2 %. If bursts break them,
    the report also has the rate at which the same requests could come evenly. For the number of
    replicas, the router of `paceline serve --data-parallel-size` deals requests out, and all of
    them together must keep the limits. The exit status is 1 if no rate keeps them.
    """
    limits = options.limits.limits(options.server)
    if options.router is not None and not options.replicas:
        raise WrongOption("--router has no effect with --no-replicas")
    fleet = FleetModel(router=options.router or "prefix")
    writable(options.output)
    source = options.load.source
    model = options.server.model(source, options.load.clients.seed)
    check_drafts(model)
    experiment = Experiment(source, model)
    jobs = options.jobs or usable_cores()
    rate = highest_rate(experiment, limits, jobs)
    record: dict[str, Any] = {
        "kind": "capacity",
        **model.profile.label,
        "warnings": doubts(model),
        "limits": asdict(limits),
    }
    record |= {"rate": asdict(rate), "replicas": None, "router": None}
    replicas = None
    if options.replicas and not rate.fails_alone:
        replicas = replicas_needed(experiment, limits, jobs, fleet.router)
        record |= {"replicas": asdict(replicas), "router": fleet.router}
    write_record(record, options.output)
    if options.json:
        print_record(record)
    else:
        load = source.workload()
        print(*about(model, options.load.name, source), sep="\n")
        show(rate, replicas, load)
        if replicas is not None and (doubt := fleet.doubt(load)):
            print(doubt)
    return int(rate.best is None)


def show(rate: CapacityAnswer, replicas: CapacityAnswer | None, load: Workload) -> None:
    from rich.console import Console

    from paceline.simulator.results.tables import table

    out = Console()
    out.print(table("rates", COLUMNS, trial_rows(rate)))
    for sentence in sentences(rate, load):
        print(sentence)
    if replicas is not None:
        best, most = replicas.best, int(replicas.trials[-1].tried)
        answer = f"; even {count_of(most)} do not keep the limits"
        if best is not None:
            answer = f" and needs {count_of(int(best.tried))}"
        print(f"The load has {short(load.rate)} requests/s{answer}.")


def sentences(rate: CapacityAnswer, load: Workload) -> list[str]:
    """What the trials show about one replica."""
    best = rate.best
    if best is None:
        alone = ", also if requests run alone: more replicas do not help"
        found = [f"No rate keeps the limits{alone if rate.fails_alone else ''}."]
    elif not best.lasts:
        return [
            "The load is too short to tell which rate one replica holds: its limits are kept, but "
            f"{burst_of(best)} Take a longer load."
        ]
    else:
        tokens = number(best.figures.output_tokens_per_s)
        least = "at least " * rate.is_least
        found = [
            f"One replica holds {least}{short(best.tried)} requests/s, {tokens} output tokens/s."
        ]
    if rate.is_least:
        short_burst = min((one for one in rate.trials if not one.lasts), key=lambda one: one.tried)
        found.append(
            "The load is too short to tell how many more: if it comes faster, the limits are kept, "
            f"but {burst_of(short_burst)} Take a longer load."
        )
    if rate.evenly is not None and rate.evenly.best is not None:
        least = "at least " * rate.evenly.is_least
        found.append(
            f"Bursts are what breaks the limits: up to {load.most_within(1.0):,} requests come "
            "within a second of the load as it is. If the same requests came evenly, one replica "
            f"would hold {least}{short(rate.evenly.best.tried)} requests/s."
        )
    return found


def burst_of(trial: Trial) -> str:
    """Requests that came, but were not served, at a rate."""
    total, tried = trial.figures, trial.tried
    return (
        f"at {short(tried)} requests/s its {total.requests:,} requests come within "
        f"{total.requests / tried:.2g} s, and {short(total.requests_per_s)} per second are served."
    )


def short(rate: float) -> str:
    return f"{rate:.3g}" if rate < WHOLE else f"{rate:,.0f}"


def count_of(replicas: int) -> str:
    return f"{replicas:,} replica" if replicas == 1 else f"{replicas:,} replicas"


COLUMNS = (
    *("requests/s", "TTFT p99, ms", "ITL p99, ms", "tokens/s", "in target %"),
    "limit that breaks",
)


def trial_rows(answer: CapacityAnswer) -> list[list[str]]:
    rows: list[list[str]] = []
    for one in sorted(answer.trials, key=lambda one: one.tried):
        total = one.figures
        late = [number(spread and spread.p99) for spread in (total.ttft_ms, total.itl_ms)]
        tokens = number(total.output_tokens_per_s)
        kept = "-" if total.attained is None else f"{100 * total.attained:.1f}"
        rows.append([short(one.tried), *late, tokens, kept, one.broken or "-"])
    return rows
