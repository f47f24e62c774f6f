"""Alembic runs this for each upgrade, on the caller's connection and within the caller's transaction."""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=context.config.attributes["tables"],
    transactional_ddl=True,  # both databases undo a failed migration whole
)
with context.begin_transaction():
    context.run_migrations()
