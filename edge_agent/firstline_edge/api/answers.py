"""Handlers of inference by file, of answers by id, and of both as event streams."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import partial

from firstline_core.errors import RequestError
from firstline_core.file_route import FileRoute, image_of, wants_picture
from firstline_core.protocol import http
from firstline_core.protocol.asgi import Request, Streamed
from firstline_core.protocol.http import BodyBudget, Reply, last_event_id
from firstline_core.protocol.oip import encode_response
from firstline_core.protocol.tensors import shown
from firstline_core.types import InferRequest, InferResponse
from firstline_edge.api.data_plane import EdgeDataPlane
from firstline_edge.api.streams import Render, Streams, wants_events
from firstline_edge.outbox.outbox import Outbox


@dataclass(eq=False)
class Answers:
    """The handlers of inference by file and of the endpoints below `/firstline/v1/answers`.

    Args:
        agent: answers; it has started.
        files: reads requests by file, and presents answers.
        outbox: has the answers that were promised a correction.
        streams: the open event streams.
        budget: of memory for request bodies.
    """

    agent: EdgeDataPlane
    files: FileRoute
    outbox: Outbox
    streams: Streams
    budget: BodyBudget

    async def infer_file(self, request: Request, principal: str) -> Reply | Streamed:
        """Runs inference by file; a caller that accepts an event stream receives every answer to its request in it."""
        agent, model = self.agent, request.parameters["model"]
        with contextlib.ExitStack() as resources:
            with self.budget.share(principal) as take:
                body = await request.body(agent.limits, take)
                inference = await self.files.read(model, agent.short_metadata(model), request, body, principal)
                if wants_picture(request.headers) or not wants_events(request.headers):
                    return await self.files.answer(inference, request)
                # Not before the body was read: a slow sender must not take a stream from other callers.
                images = image_of(inference.inputs)
                render = partial(self.files.json, query=request.query, images=images)
                stream = resources.enter_context(self.streams.opened(render))
                completion = resources.enter_context(self.outbox.completions.watch(inference.request_id))
                response = await agent.infer(inference)
            return stream.response(response, completion, resources)

    async def answer(self, request: Request, principal: str) -> Reply:
        """Returns the latest answer under an id."""
        render = self._renderer(request)
        return render(await self.outbox.answer(request.parameters["request_id"], principal))

    async def events(self, request: Request, principal: str) -> Reply | Streamed:
        """Streams the present answer under an id, and the final one when it arrives."""
        request_id, seen = request.parameters["request_id"], last_event_id(request.headers)
        with contextlib.ExitStack() as resources:
            stream = resources.enter_context(self.streams.opened(self._renderer(request), seen))
            completion = resources.enter_context(self.outbox.completions.watch(request_id))
            return stream.response(await self.outbox.answer(request_id, principal), completion, resources)

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

        return tensors if form == "v2" else partial(self.files.json, query=request.query)
