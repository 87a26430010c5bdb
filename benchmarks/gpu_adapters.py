"""Decode steps and prompts with adapters on a GPU, against the same without; prints JSON lines.

    python -m benchmarks.gpu_adapters qwen3-0.6b 64 8 16     rows, adapters, and their rank

Weights of the model and of the adapters are random: the speed is the same. All linear layers are
adapted, and rows use the adapters in turn. It needs numpy, torch, triton and safetensors.
"""

import sys
from functools import partial
from time import perf_counter

import torch

from benchmarks.gpu import Bench, drawn
from paceline import Request, Scheduler
from paceline.core.plan import Plan
from paceline.core.sampling import Sampling
from paceline.runner.adapters.targets import AdapterTargets, Site
from paceline.runner.adapters.weights import AdapterWeights, PartWeights
from paceline.runner.cuda.adapters import AdapterSizes, pinned

USUAL = ["qwen3-0.6b", "64", "8", "16"]
ROUNDS, STEPS, PROMPT = 5, 128, 1024
CONTEXTS = (64, 512)  # tokens of a prompt before it decodes


def random_adapter(targets: AdapterTargets, rank: int) -> AdapterWeights:
    parts: dict[Site, tuple[PartWeights, ...]] = {}
    for module in targets.modules.values():
        a = torch.randn(module.inputs, rank).mul_(module.inputs**-0.5).to(targets.dtype)
        b = torch.randn(rank, module.outputs).mul_(0.01).to(targets.dtype)
        part = PartWeights(module.first, module.first + module.outputs, a, b)
        parts[module.site] = (*parts.get(module.site, ()), part)
    return pinned(AdapterWeights("random", rank, parts))


def asked(bench: Bench, rows: int, length: int, outputs: int, names: list[str]) -> Scheduler:
    """A scheduler with requests whose adapters are these, in turn."""
    scheduler = bench.scheduler(enable_prefix_caching=False, max_loras=len(names))
    for number, prompt in enumerate(drawn(rows, length)):
        adapter = names[number % len(names)]
        sampling = Sampling(temperature=0.0)
        request = Request(
            f"r{number}", prompt, outputs, adapter=adapter, ignore_eos=True, sampling=sampling
        )
        scheduler.submit(request, now=perf_counter())
    return scheduler


def decode_ms(context: int, bench: Bench, rows: int, names: list[str]) -> float:
    """Milliseconds of a decode step."""
    scheduler = asked(bench, rows, context, STEPS + 8, names)
    bench.drive(scheduler, lambda plan: len(plan.rows) == rows == plan.total)
    begin = perf_counter()
    times = bench.drive(scheduler)
    return 1e3 * (perf_counter() - begin) / times.steps


def prompts_ms(bench: Bench, prompts: int, names: list[str]) -> float:
    """Milliseconds of a step that computes so many prompts."""
    scheduler = asked(bench, prompts, PROMPT, 2, names)
    begin = perf_counter()

    def is_first(_: Plan) -> bool:
        return True

    bench.drive(scheduler, is_first)
    taken = 1e3 * (perf_counter() - begin)
    bench.drive(scheduler)
    return taken


def main() -> None:
    name, *numbers = sys.argv[1:] + USUAL[len(sys.argv) - 1 :]
    rows, adapters, rank = map(int, numbers)
    bench = Bench(name, "triton", room=AdapterSizes(adapters, rank), warms=False)
    host = bench.runner.host_adapters
    assert host is not None
    assert bench.model.adapters is not None
    names = [f"adapter {number}" for number in range(adapters)]
    for one in names:
        host.keep(one, random_adapter(bench.model.adapters.targets, rank))
    cases = {"without": [""], "with": names, "with one": names[:1]}
    works = [(f"decode at {context}", rows, partial(decode_ms, context)) for context in CONTEXTS]
    for work, number, measure in (*works, ("prompts", adapters, prompts_ms)):
        taken: dict[str, list[float]] = {case: [] for case in cases}
        for turn in range(1 + ROUNDS):
            for case, given in cases.items():
                found = measure(bench, number, given)
                taken[case] += [found] if turn else []  # the first one captures graphs
        least = {case: min(each) for case, each in taken.items()}
        ratios = {case: round(each / least["without"], 3) for case, each in least.items()}
        figures = {case: [round(each, 3) for each in taken[case]] for case in cases}
        sizes = {"rows": number, "adapters": adapters, "rank": rank}
        bench.say(case=f"adapters, {work}", **sizes, ratio=ratios, ms=figures)


if __name__ == "__main__":
    main()
