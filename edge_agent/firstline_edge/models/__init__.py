"""The models of this device.

From folders of bundles to what answers a row
    loading     bundles opened, edge variants loaded
    profiles    what was measured of them on this machine before
    timing      measures them: a meaningless input, and the time that a row takes
    edge_model  one variant, ready to run, and the pace of its runs
    held        those that this device holds, by name and version
    copies      of bundles that worked, for when the files are damaged
    workers     threads for the runs that would hold up the event loop
    memory      the memory that this process takes by itself
    reloading   models come and go at an operator's word
"""
