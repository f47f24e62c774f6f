"""The gateway's store: one SQL database (an SQLite file, or PostgreSQL for replicas), its schema and migrations.

Modules
    store             threads that read for the event loop, and one thread that writes in groups
    database          transactions on either database, with errors translated
    schema            the `MetaData` on which the packages declare their tables
    migrate           migrates a database to the schema of this version
    service_clock     the clock by which records age
    write_ahead_log   finds damage in SQLite's log that SQLite takes for its end
"""
