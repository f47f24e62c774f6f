"""The commands of `firstline-gateway`.

Modules
    base        the options of every command, and the form of what it prints
    init        `init`
    run         `run` and `check`
    serve       the life of the process
    status      `status`
    keys        `key create | list | revoke`
    authority   `ca init | get | prepare | switch | retire`
    backup      `backup` and `restore`
"""
