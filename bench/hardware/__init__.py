"""What devices cost and what had best be done on them: the parts of `make -C bench hardware`."""
