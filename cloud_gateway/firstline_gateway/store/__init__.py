"""The gateway's store: one SQL database (an SQLite file, or PostgreSQL for replicas), its schema and migrations."""
