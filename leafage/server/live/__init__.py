"""The live page: what the engine is doing now."""
