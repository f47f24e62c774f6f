"""HTTP, from the connection to the data plane.

A request takes one of two ways:

- For inference: `http_protocol.py` (a connection) finds it by its head (`heads.py`; `unread.py` refuses from there).
  One like those before, for a small model, is answered on the `fast_path.py`; any other is carried by `exchange.py`,
  and `infer.answer` reads, asks and answers. Both are a `cycle.py` to their connection.
- Everything else: `http_protocol.py` hands it to uvicorn's ASGI cycle, and `app.py` to the framework's routes.

Under another ASGI server `infer.InferFirst` does what `exchange.py` does here: it comes before the framework too. The
routes for inference within the framework are there to be described; no request reaches them.
"""
