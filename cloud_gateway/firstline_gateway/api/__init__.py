"""HTTP: thin adapters from the web framework to the data plane."""
