"""What `benchmarks/compare.py` is made of: sides, runs, rows and how they are shown."""
