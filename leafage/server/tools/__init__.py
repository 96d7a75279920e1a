"""Tool calls and reasoning: how the model families write them, and how they become parts of a message."""
