"""The fleet's REST API, under /fleet/v1: the only door for commands, applications, the console and devices.

What all routes share
    problems        refusals as RFC 9457 has them
    asking          who asks, bodies, pages, and answers with an ETag
    ranges          which bytes of a file are asked for

Routes
    twins           for devices: what to run, and what runs
    devices         for people: the devices, their tags, the brake
    rollouts        for people: how models come to the devices
    profiles        what models cost on machines
    audit           for people: who decided what
    blobs           files of bundles: sent, fetched, in parts
    registry        signed metadata, bundles, aliases, how the registry is
    configurations  those that are signed for
"""
