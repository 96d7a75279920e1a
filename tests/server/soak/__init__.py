"""What is too long for CI: load, faults and fuzz against a server process. Stages of scripts/soak."""
