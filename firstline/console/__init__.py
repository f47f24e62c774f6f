"""The fleet in a browser: a small service of its own that knows nothing but a gateway's REST API.

What is shown, pure functions from what the gateway answers
    cells           words and tones that tables are made of
    devices_view    devices, and one of them
    rollouts_view   rollouts, the stages of one, the looks at it
    tiers_view      who answered, over time
    profiles_view   what models cost on machines, and who is asked to measure that

What asks and serves
    watching        what the gateway said last, asked again at a bounded pace
    access          who may look: hosts, origins, the password
    attempts        how often anybody may try one
    settings        where it listens and what it asks
    service         the process

Pages
    frame           what every page has: the way around, and whether what it shows is fresh
    table           rows of cells, which keep their place while they change
    listing         the ways from a page of a long list to the next
    devices         devices, and one of them
    rollouts        rollouts
    rollout         one rollout, with what can be done to it
    commanding      the dialog that says what a command will do
    tiers           the chart
    profiles        profiles, and one of them
"""
