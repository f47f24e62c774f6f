"""HTTP, from the connection to the data plane.

A request takes one of two ways:

- For inference: its connection (`connection/inference_protocol.py`) finds it by its head. One like those before, for a
  small model, is answered on the fast path there; any other is carried by an `Exchange`, and `infer.answer` reads, asks
  and answers.
- Everything else: the connection hands it to uvicorn's ASGI cycle, and `app.py` to the framework's routes.

Under another ASGI server `infer.InferFirst` does what `Exchange` does here: it comes before the framework too. The
routes for inference within the framework are there to be described; no request reaches them.
"""
