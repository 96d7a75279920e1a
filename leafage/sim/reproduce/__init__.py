"""`leafage sim reproduce`: every table and demo of the lecture behind this project, computed again.

A `demo.Demo` gives tables (ours beside what the lecture and the papers say) and checks, each with a verdict.
`registry.DEMOS` lists them all; `runner` runs them in processes; `page` writes them down.
"""
