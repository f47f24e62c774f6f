"""The commands of `firstline`: one module each, put together in `app.py`. They parse, call and print."""
