"""KV below the pool: where blocks of preempted requests wait."""
