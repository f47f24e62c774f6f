"""The registry: bundles' files by their SHA-256, and the signed metadata that says which of them devices may trust.

Modules
    registry        publishes, renews, maintains and shows signed metadata
    catalogue       the bundles and configurations that targets metadata lists
    aliases         names for versions
    signing         verifies new metadata; the online key, which signs snapshots and timestamps
    records         metadata and aliases in the store, within a caller's transaction
    files           the files: uploaded once, downloaded in parts, within a limit; in a local folder or elsewhere
    s3              files in an S3-compatible store; the only module that uses obstore
    bundle_use      asks whether devices still need a version; rollouts implement it
    metrics         the registry's metrics
"""
