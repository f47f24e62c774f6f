"""Which full models are in memory: loaded in the background, within a budget, and given up when others need the room.

    memory      the models in memory, those who hold them, and the room there is
    residency   what a request asks: a model that it can hold
    orders      what an operator asks: load it anew, unload it

The budget counts what models are known to take before they are loaded (`ServedModel.memory_bytes`). What the process
takes in total is more: runs, requests, the interpreter.
"""
