"""Get an object of a pydantic class: a grammar holds the model to the schema, token by token."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from paceline import LLM, SamplingParams


class City(BaseModel):
    name: Annotated[str, Field(max_length=20)]
    country: Annotated[str, Field(max_length=20)]
    size: Literal["small", "large"]
    inhabitants: Annotated[int, Field(ge=0, le=99_999_999)]


with LLM("smollm2") as llm:
    params = SamplingParams(
        temperature=0, max_tokens=100, structured_outputs={"json": City.model_json_schema()}
    )
    question = [{"role": "user", "content": "Describe Paris as JSON."}]
    (output,) = llm.chat(question, params)
    city = City.model_validate_json(output.outputs[0].text)
    print(city)
