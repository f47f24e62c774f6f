"""The full models that the fleet's bundles were certified against: there before devices move, gone when none is left.

A device that escalates names its bundle's version and its full model's digest, and is answered by that very model or
not at all. So while a fleet moves from one full model to another a gateway has to serve both.

    needs           which versions the fleet needs
    shelf           bundles fetched from the registry, with the files of their full models alone
    keeper          what is needed is fetched and served, what no device needs any more is retired
"""
