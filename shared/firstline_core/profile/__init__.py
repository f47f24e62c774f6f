"""The cost of a bundle's models on a machine, measured there, stored with the bundle, used by plans and predictions.

profile         the document: points and what they were measured on
distribution    a sample of durations as quantiles
course          the order in which queries were slow
files           reads profiles, finds the one of a machine, updates it
measure         the points of a profile and which of them are left to measure
need            memory and cores that a point needs
point_process   measures a point in a process of its own
measure_point   that process: scenarios, memory, energy, operators
scenarios       arrival of queries, after MLPerf
heating         full load until temperature and clocks settle
trace           time by operator, from ONNX Runtime's trace
energy          of a query: measured, modelled or absent
predict         response times of a mixed load, simulated
pareto          the points on the Pareto front of latency, accuracy and energy
table           a profile as text
"""
