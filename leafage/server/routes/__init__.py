"""The endpoints, one file for each kind."""
