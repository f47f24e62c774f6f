"""The models of this device.

From folders of bundles to what answers a row
    loading     opens bundles, loads edge variants and measures them
    profiles    earlier measurements on this machine
    models      the models of this device by name and version, their variants, and the pace of their runs
    copies      copies of bundles that worked, for when the files are damaged
    workers     threads for the runs that would hold up the event loop
    reloading   loads and unloads models on an operator's request
"""
