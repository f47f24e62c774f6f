"""The cost of a bundle's models on a machine, measured there, stored with the bundle, used by plans and predictions.

    profile         the document: points, distributions, and what they were measured on
    files           reads profiles, finds the one of a machine, updates it
    measure         measures the missing points of a profile, for the agent and the command lines
    measure_point   the process that measures one point: scenarios, memory, energy
    scenarios       arrival of queries, after MLPerf
    meters          energy, peak memory, waiting time
    predict         response times of a mixed load, simulated
    summary         a profile as text, and its Pareto front

Measuring needs a runtime; everything else needs numpy only.
"""
