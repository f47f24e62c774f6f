"""Full models as deployments of Ray Serve on other machines, called by Ray's own handles, not by its HTTP proxy."""
