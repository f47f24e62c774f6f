"""The registry: bundles' files by their sha256, and the signed metadata that says which of them devices may believe.

Rooms
    wiring          all of it put together from the settings
    files           sent once, fetched in parts, and no more of them than there is room for
    registry        signed metadata: published, renewed, shown
    bundles         what the current targets list
    catalogue       what targets list, as devices read it and the API shows it; no I/O
    aliases         names for versions
    keeper          renews snapshot and timestamp, warns of what ends, forgets files that nobody is signed for
    signing         is newly signed metadata to be believed? and the snapshot and timestamp of it
    online          the key for those two, in the identity folder; its private half never leaves it
    records         metadata and aliases in the store, within a caller's transaction
    tables          what they are kept in
    blobs           the port to where files are, and a local folder behind it
    s3              an S3-compatible store behind the same port; nothing else talks to obstore
"""
