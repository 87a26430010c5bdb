"""Generate from many prompts at once, and ask why a request took as long as it did."""

from paceline import LLM, SamplingParams

PROMPTS = [
    "The capital of France is",
    "Water boils at",
    "The first president of the United States was",
    "The opposite of cold is",
]

with LLM("smollm2", max_num_seqs=2) as llm:
    outputs = llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=12))
    for output in outputs:  # in the order of the prompts
        print(repr(output.prompt), "->", repr(output.outputs[0].text))
    # Two requests run at a time, so the others waited: explain() says how long and why.
    print(llm.explain(outputs[-1].request_id))
