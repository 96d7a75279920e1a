"""The simulator: the engine's own scheduler and KV manager over a cost model and a virtual clock."""
