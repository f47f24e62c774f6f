"""The full models in memory: loaded in the background, within a budget, and evicted when others need the memory.

    memory      the models in memory, their holders, and the free memory
    residency   holds a model for a request, and loads it if it is not in memory
    orders      loads and unloads models for an operator

The budget counts an estimate that is known before a model is loaded (`ServedModel.memory_bytes`). The process takes
more in total: for runs, requests and the interpreter.
"""
