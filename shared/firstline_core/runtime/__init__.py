"""Runtimes of models, the times of their batches, and the process that runs them.

Modules
    select          the table of runtimes, and their options
    base            the interface of all runtimes, and the checks of inputs
    onnx            ONNX Runtime
    litert          TFLite models
    onnx_file       reads ONNX files without the package `onnx`
    row_operators   finds operators that mix rows, for messages
    batch_times     learned durations of batches
    threads         calls that may never return, and calls that can be stopped
    child           Python in a process of its own
    memory          when glibc returns freed memory
    priority        low priorities for work next to live traffic
"""
