"""Hold a conversation. Each turn repeats the ones before it; the prefix cache has them already."""

from paceline import LLM, SamplingParams

QUESTIONS = ["Name a river in Germany.", "Name another one.", "Which of the two is longer?"]

with LLM("smollm2") as llm:
    messages: list[dict[str, str]] = [{"role": "system", "content": "Answer in one sentence."}]
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        (output,) = llm.chat(messages, SamplingParams(temperature=0, max_tokens=32))
        answer = output.outputs[0].text
        messages.append({"role": "assistant", "content": answer})
        print(f"> {question}\n{answer}")
    counters = llm.get_metrics().counters
    print(f"{counters['prefix_cache_hits']} prompt tokens came from the prefix cache")
