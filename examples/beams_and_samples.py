"""Return several outputs of one prompt. They share the KV blocks of the prompt."""

from paceline import LLM, SamplingParams

PROMPT = "My favourite food is"

with LLM("smollm2") as llm:
    ways = {
        "4 samples": SamplingParams(n=4, temperature=1, seed=1, max_tokens=8, logprobs=0),
        "the 2 likeliest of 6 samples": SamplingParams(
            n=2, best_of=6, temperature=1, seed=1, max_tokens=8
        ),
        "the 2 best of 4 beams": SamplingParams(n=2, beam_width=4, temperature=0, max_tokens=8),
    }
    for name, params in ways.items():
        (output,) = llm.generate(PROMPT, params)
        print(name)
        for one in output.outputs:
            likelihood = one.cumulative_logprob
            scored = "" if likelihood is None else f"  (log-probability {likelihood:.2f})"
            print(f"  {one.index}: {one.text!r}{scored}")
