"""Processing of inputs and outputs: the declared steps, and the functions that carry them out."""
