"""What clients send, as pydantic models. A field of the OpenAI API that is not here is refused by name."""
