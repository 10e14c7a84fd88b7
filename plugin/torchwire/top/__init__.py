"""`python -m torchwire top`: the workers of a group, or of this host, live."""
