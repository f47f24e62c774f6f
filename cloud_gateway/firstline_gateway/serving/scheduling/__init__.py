"""Who runs when.

A request, from its coming to its answer
    admission       may it come in?
    shares          how much of the room one client, and one level of priority, may take
    margin          time kept free for what no prediction knows of
    waiting         what was let in, in the order in which it is to run
    course          when it will be done, in lanes of which one may be quicker than another
    batches         what runs next: which first, and which others with it
    feeding         batches for an engine whose slots are all alike: each begins once one is free
    ahead           the next one, given to the threads before one is free
    late            batches for several executors, bound to one once it is free
    running         what runs, and which models run as often as they may
    inline          small models: what came in one turn of the event loop runs at its end, without a queue
    batcher         comings and goings: lets in, hands out answers
"""
