"""Stream two answers side by side. A stream that is left before its end aborts its request."""

import asyncio

from paceline import AsyncLLM, SamplingParams

PARAMS = SamplingParams(temperature=0, max_tokens=24)


async def whole(llm: AsyncLLM, prompt: str) -> str:
    """Print pieces as they arrive, and return the whole text."""
    text = ""
    async for delta in llm.generate(prompt, PARAMS):
        print(f"[{prompt}] {delta.text!r}")
        text += delta.text
    return text


async def beginning(llm: AsyncLLM, prompt: str, characters: int) -> str:
    """Stop as soon as there is enough text."""
    text = ""
    async for delta in llm.generate(prompt, PARAMS):
        text += delta.text
        if len(text) >= characters:
            break
    return text


async def main() -> None:
    async with AsyncLLM("smollm2") as llm:
        texts = await asyncio.gather(
            whole(llm, "Once upon a time"), beginning(llm, "The sea is", characters=10)
        )
        print("whole:", texts[0])
        print("beginning:", texts[1])


if __name__ == "__main__":
    asyncio.run(main())
