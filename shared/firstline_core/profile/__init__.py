"""What a bundle's models cost on a machine: measured there, kept beside the bundle, asked before anything is decided.

profile         the document: points, their scenarios, what they were measured on; JSON
distribution    a sample of durations in two hundred numbers
course          in which order queries were slow
reading         from files: a named one, and the one that holds on a machine
measure         which points there are, and which are measured
keeping         the file that they are written into one by one, by several at the same time
need            what the machine has to have for a point
spawned         has one measured by a process of its own
child           one point, in that process: the scenarios, memory, energy, operators
own_process     memory and waiting of that process
scenarios       how queries come, after MLPerf
throttled       a machine that is held back: hot, or stopped for a share of the time
operators       what each kind of operator took, out of the runtime's trace
energy          of a query: measured, modelled or absent
predict         what a mixed load will take, simulated
front           which points are worth having: latency, accuracy, energy
words           a profile as text
"""
