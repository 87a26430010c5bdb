"""Let a model call functions, with the client of OpenAI (`pip install openai`).

    paceline serve smollm2 --port 8000
    python examples/tool_loop.py

OPENAI_BASE_URL names another server. The embedded model is small: it calls functions with valid
arguments, since a grammar holds it to their schemas, but its choices are those of a small model.
"""

import json
import os
from typing import Any

from openai import OpenAI

MOST_TURNS = 4
PRICES = {"apple": 0.4, "bread": 3.2, "milk": 1.5}
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "price_of",
            "description": "The price of an article in euros",
            "parameters": {
                "type": "object",
                "properties": {"article": {"type": "string", "enum": sorted(PRICES)}},
                "required": ["article"],
                "additionalProperties": False,
            },
        },
    }
]


def price_of(article: str) -> str:
    return f"{PRICES[article]:.2f} euros"


def main() -> None:
    url = os.environ.get("OPENAI_BASE_URL", "http://localhost:8000/v1")
    client = OpenAI(base_url=url, api_key=os.environ.get("OPENAI_API_KEY", "none"))
    model = client.models.list().data[0].id
    messages: Any = [{"role": "user", "content": "What does bread cost?"}]
    for turn in range(MOST_TURNS):
        answer = client.chat.completions.create(
            model=model,
            messages=messages,
            tools=TOOLS,
            tool_choice="required" if turn == 0 else "none",  # "auto" lets the model decide
            temperature=0,
            max_tokens=60,
        )
        message: Any = answer.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            print("answer:", message.content)
            return
        for call in message.tool_calls:
            result = price_of(**json.loads(call.function.arguments))
            print(f"{call.function.name}({call.function.arguments}) -> {result}")
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


if __name__ == "__main__":
    main()
