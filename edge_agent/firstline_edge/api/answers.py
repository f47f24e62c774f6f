"""Handlers of inference by file, of answers by id, and of both as event streams."""

from __future__ import annotations

import contextlib

from firstline_core.errors import RequestError
from firstline_core.protocol import file_inference, http
from firstline_core.protocol.asgi import Request, Streamed
from firstline_core.protocol.http import BodyBudget, Reply, last_event_id
from firstline_core.protocol.oip import encode_response
from firstline_core.protocol.tensors import shown
from firstline_core.tasks import answer_json
from firstline_core.tasks.base import Task
from firstline_core.tasks.picture import wants_picture
from firstline_core.tasks.view import image_of, read_view
from firstline_core.types import InferRequest, InferResponse, Tensor
from firstline_edge.api.data_plane import EdgeDataPlane
from firstline_edge.api.streams import Render, Streams, wants_events
from firstline_edge.outbox.reopening import ReopeningOutbox


class Answers:
    """The handlers of inference by file and of the endpoints below `/firstline/v1/answers`.

    Args:
        agent: answers; it has started.
        outbox: has the answers that were promised a correction.
        streams: the open event streams.
        budget: of memory for request bodies.
    """

    def __init__(self, agent: EdgeDataPlane, outbox: ReopeningOutbox, streams: Streams, budget: BodyBudget) -> None:
        self._agent = agent
        self._outbox = outbox
        self._streams = streams
        self._budget = budget

    async def infer_file(self, request: Request, principal: str) -> Reply | Streamed:
        """Runs inference by file; a caller that accepts an event stream receives every answer to its request in it."""
        agent, model = self._agent, request.parameters["model"]
        task = agent.task(model)
        read_view(request.query, model, task)  # a wrong one is refused before the model runs
        with contextlib.ExitStack() as resources:
            with self._budget.share(principal) as take:
                body = await request.body(agent.limits, take)
                inference = await file_inference.read_request(
                    model,
                    agent.short_metadata(model),
                    request.headers,
                    request.query,
                    body,
                    principal=principal,
                    limits=agent.limits,
                    arrived_s=request.info.arrived_s,
                    trace=request.trace,
                )
                if wants_picture(request.headers):
                    return await self._picture(request, inference, task)
                render = self._short(request, image_of(inference.inputs))
                if not wants_events(request.headers):
                    return render(await agent.infer(inference))
                # Not before the body was read: a slow sender must not take a stream from other callers.
                stream = resources.enter_context(self._streams.opened(render))
                completion = resources.enter_context(self._outbox.completions.watch(inference.request_id))
                response = await agent.infer(inference)
            return stream.response(response, completion, resources)

    async def _picture(self, request: Request, inference: InferRequest, task: Task | None) -> Reply:
        """Runs inference and draws the answer."""
        sketch = self._agent.drawing.sketch(inference, task)
        response = await self._agent.infer(inference)
        task = self._agent.task(response.model, response.version)
        return await self._agent.drawing.reply(sketch, response, task, request.query)

    async def answer(self, request: Request, principal: str) -> Reply:
        """Returns the latest answer under an id."""
        render = self._renderer(request)
        return render(await self._outbox.answer(request.parameters["request_id"], principal))

    async def events(self, request: Request, principal: str) -> Reply | Streamed:
        """Streams the present answer under an id, and the final one when it arrives."""
        request_id, seen = request.parameters["request_id"], last_event_id(request.headers)
        with contextlib.ExitStack() as resources:
            stream = resources.enter_context(self._streams.opened(self._renderer(request), seen))
            completion = resources.enter_context(self._outbox.completions.watch(request_id))
            return stream.response(await self._outbox.answer(request_id, principal), completion, resources)

    def _renderer(self, request: Request) -> Render:
        """Returns the renderer for the form that the query asks for.

        Raises:
            RequestError: there is no such form.
        """
        form = request.query.get("form", "short")
        if form not in ("short", "v2"):
            raise RequestError(f"Query parameter 'form' is {shown(form)}; use short or v2.")

        def tensors(response: InferResponse) -> Reply:
            encoded = encode_response(InferRequest(response.model, (), request.parameters["request_id"]), response)
            return Reply(200, http.headers_for(encoded), encoded.body)

        return tensors if form == "v2" else self._short(request)

    def _short(self, request: Request, images: Tensor | None = None) -> Render:
        """Returns the renderer for people."""

        def render(response: InferResponse) -> Reply:
            task = self._agent.task(response.model, response.version)
            return http.json_reply(answer_json(response, task, request.query, images))

        return render
