"""Search a few texts by meaning. A model that generates makes rough vectors; for real work load a
model that was trained for embeddings."""

import numpy as np

from paceline import LLM

TEXTS = [
    "The cat slept on the sofa all afternoon.",
    "Interest rates rose again this quarter.",
    "A goal in the last minute decided the match.",
    "Bake the bread for forty minutes.",
]
QUESTIONS = ["How long does the loaf stay in the oven?", "Who won the game of football?"]

with LLM("smollm2", pooling="mean") as llm:
    outputs = llm.embed([*TEXTS, *QUESTIONS])
    vectors = np.array([output.outputs.embedding for output in outputs])  # each has length 1
    texts, questions = vectors[: len(TEXTS)], vectors[len(TEXTS) :]
    for question, scores in zip(QUESTIONS, questions @ texts.T, strict=True):
        print(question)
        for index in np.argsort(-scores):
            print(f"  {scores[index]:.3f}  {TEXTS[index]}")
