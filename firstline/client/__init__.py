"""The Python client of the REST API: `Client`, `AsyncClient`, and the requests and answers that they share."""
