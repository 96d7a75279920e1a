"""The real executor: batches in, sampled tokens out."""
