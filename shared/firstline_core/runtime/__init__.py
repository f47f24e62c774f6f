"""Model runtimes behind one small interface: one file per runtime, nothing else imports it."""
