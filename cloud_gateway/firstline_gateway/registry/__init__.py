"""The registry: bundles' files by their SHA-256, and the signed metadata that says which of them devices may trust.

Modules
    registry        the registry: publishes, renews and shows signed metadata
    files           the files: uploaded once, downloaded in parts, within a limit
    bundles         the bundles that the current targets list
    catalogue       what targets metadata lists; no I/O
    aliases         names for versions
    bundle_use      asks whether devices still need a version; rollouts implement it
    maintenance     renews metadata, warns of what expires, deletes unlisted files
    metrics         the registry's metrics
    signing         verifies new metadata, and signs its snapshot and timestamp
    online          the key for those two, in the identity folder; its private half never leaves it
    records         metadata and aliases in the store, within a caller's transaction
    tables          the tables
    blobs           the port to where files are, and a local folder behind it
    s3              an S3-compatible store behind the same port; the only module that uses obstore
"""
