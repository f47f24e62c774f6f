"""What anyone or anything decided about the fleet, for good: entries are added, and never changed or removed.

What is kept
    tables          where it is kept
    records         an entry added in the transaction that carries out what it tells; pages of it
    head            how far it goes, signed

What is asked
    trail           pages of it, and its signed head
"""
