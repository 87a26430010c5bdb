"""Record what a scheduler was asked and decided, replay it without the model, explain a request."""

from pathlib import Path
from tempfile import TemporaryDirectory

from paceline import LLM, SamplingParams
from paceline.sched.replay.replayer import Replay


def main() -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "run.paceline"
        with LLM("smollm2", max_num_seqs=2, record=str(file)) as llm:
            prompts = ["One, two, three,", "Monday, Tuesday,", "A, B, C,"]
            outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=8))
        # The file can be copied to another machine: it has no weights and no text.
        replay = Replay(file)
        for plan in replay.plans(until=3):
            print(f"step {plan.step}: {plan.to_dict()['tokens']}")
        replay.run()
        print("every plan is the same:", replay.divergence is None)
        print(replay.scheduler.explain(outputs[-1].request_id))


if __name__ == "__main__":
    main()
