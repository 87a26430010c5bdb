"""`paceline compare`: one load under several policies and settings."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import Annotated, Any

import typer

from paceline.bench.samples import targets_of
from paceline.cli.bench.options import OutputOption, writable, write_record
from paceline.cli.command import WrongOption
from paceline.cli.commands.play import setting
from paceline.cli.options import JsonFlag
from paceline.cli.simulation_options import (
    HtmlOption,
    JobsOption,
    LoadOptions,
    ServerModelOptions,
    TargetsOption,
    about,
    check_drafts,
    check_explained,
    doubts,
    print_record,
)
from paceline.core.system.host import usable_cores
from paceline.simulator.experiment import (
    COLUMNS,
    Experiment,
    RequestChange,
    Variant,
    VariantResult,
    comparison_page,
    explanations,
    largest_changes,
    rows_of,
    sentence,
    to_dict,
    variants_of,
)
from paceline.simulator.recorded import RecordedLoad
from paceline.simulator.results.cells import number

FAR_OFF = 2.0  # times: so far, a profile is of another device or model
LONGEST_NAME = 16  # of a variant, in a table of 80 columns
SHOWN = 5  # requests that gained most, and as many that lost most


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """The load, the variants, and the report.

    Attributes:
        policies (A,B): Policies, the first of which the others replace.
        variants (NAME=VALUE,...): Settings to try with each policy, such as max_num_seqs=64; may be
            repeated.
        explain (ID): Explain this request in each variant; may be repeated.
    """

    load: LoadOptions = field(default_factory=LoadOptions)
    policies: str = "fcfs,fair,shortest,deadline"
    variants: Annotated[list[str], typer.Option("--settings")] = field(default_factory=list[str])
    server: ServerModelOptions = field(default_factory=ServerModelOptions)
    goodput: TargetsOption = field(default_factory=list[str])
    explain: list[str] = field(default_factory=list[str])
    jobs: JobsOption = 0
    output: OutputOption = None
    html: HtmlOption = None
    json: JsonFlag = False


def run(options: CompareOptions) -> int:
    """Simulate one load under several policies and settings, and compare them.

    Every policy runs with every set of settings, in processes of their own. The report has a table,
    marks the variants that no other one beats in both throughput and latency, and says who gains
    and who loses. With a recording it also lists the requests that gain or lose most. The exit
    status is 1 if no request completed in any variant.
    """
    writable(options.output, options.html)
    targets = targets_of(options.goodput)
    source = options.load.source
    variants = variants_given(options)
    seed = options.load.clients.seed
    # Wrong settings are reported at once.
    check_drafts(*(options.server.model(source, seed, one.settings) for one in variants))
    check_explained(options.explain, source.workload(), options.load.name)
    model = options.server.model(source, seed)
    experiment = Experiment(source, model, targets, tuple(options.explain))
    results = experiment.run_all(variants, options.jobs or usable_cores())
    told = explanations(results)
    lines = about(model, options.load.name, source)
    record = {
        "kind": "compare",
        **model.profile.label,
        "warnings": doubts(model),
        **to_dict(results),
        "explained": told,
    }
    write_record(record, options.output)
    if options.html is not None:
        page = comparison_page(f"paceline compare: {options.load.name}", results, lines)
        options.html.write_text(page, encoding="utf-8")
    if options.json:
        print_record(record)
    else:
        print(*lines, sep="\n")
        show(results, source)
        for name, by_variant in told.items():
            for variant, text in by_variant.items():
                print(f"\n{name} under {variant}:\n{text or 'It did not end.'}")
    return int(not any(one.report.total.completed for one in results))


def variants_given(options: CompareOptions) -> list[Variant]:
    """Every policy with every set of settings; each of them once."""
    policies = [name.strip() for name in options.policies.split(",")]
    given = [dict(map(setting, text.split(","))) for text in options.variants]
    if any("policy" in one for one in (dict(options.server.settings), *given)):
        raise WrongOption("policy is no setting to compare with; name policies with --policies")
    found = variants_of(policies, given)
    names = [one.name for one in found]
    if twice := [name for name in names if names.count(name) > 1]:
        raise WrongOption(f"{twice[0]!r} is to be compared with itself; name it once")
    return found


def show(results: Sequence[VariantResult], source: Any) -> None:
    from rich.console import Console

    from paceline.simulator.results.tables import table

    out = Console()
    legend, rows = numbered(rows_of(results))
    print(*legend, sep="\n", end="\n" if legend else "")
    columns = ("#", *COLUMNS[1:]) if legend else COLUMNS
    out.print(table("milliseconds", columns, rows))
    print("* no other variant has both more throughput and a lower TTFT p99")
    for one in results[1:]:
        print(sentence(results[0], one))
    if not isinstance(source, RecordedLoad):
        return
    for line in recorded_times(results[0], source):
        print(line)
    for one in results[1:]:
        gained, lost = largest_changes(results[0], one, SHOWN)
        rows = [cells("gains", change) for change in gained]
        rows += [cells("loses", change) for change in lost]
        if rows:
            columns = ("request", "", "tenant", "prompt", results[0].name, one.name)
            out.print(table("seconds end to end", columns, rows))


def recorded_times(first: VariantResult, source: RecordedLoad) -> list[str]:
    """How long requests took then and in the simulation, in sentences."""
    recorded = [source.times[name].e2e_s for name in first.ids]
    pairs = zip(recorded, first.e2e_s.tolist(), strict=True)
    known = [(then, now) for then, now in pairs if then is not None and not isnan(now)]
    if not known:
        return []
    then, now = (sum(column) / len(known) for column in zip(*known, strict=True))
    lines = [
        f"recorded: {then:.3g} s end to end on average, over {len(known):,} requests that "
        f"completed; simulated as {first.name}: {now:.3g} s"
    ]
    if source.speed == 1 and not then / FAR_OFF <= now <= then * FAR_OFF:
        lines.append(
            "These are far apart: the profile is of another device or model, or the server had to "
            "share its machine. --profile names another, and `paceline calibrate` measures one."
        )
    return lines


def numbered(rows: Sequence[list[str]]) -> tuple[list[str], list[list[str]]]:
    """Rows with a number instead of a name if names are too long for a table, and what each
    number stands for."""
    if max(len(row[0]) for row in rows) <= LONGEST_NAME:
        return [], list(rows)
    legend = [f"{number:2}  {row[0]}" for number, row in enumerate(rows, 1)]
    return legend, [[f"{number}", *row[1:]] for number, row in enumerate(rows, 1)]


def cells(kind: str, one: RequestChange) -> list[str]:
    times = number(one.before_s), number(one.after_s)
    return [one.id, kind, one.tenant or "-", f"{one.prompt:,}", *times]
