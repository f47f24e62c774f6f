"""What the gateway keeps: one SQL database, SQLite's file or PostgreSQL shared by replicas; its schema and upgrades."""
