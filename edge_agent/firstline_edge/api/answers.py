"""Answers in words, answers by id, and both as streams of events."""

from __future__ import annotations

import contextlib

from firstline_core.errors import RequestError
from firstline_core.protocol import file_inference, http
from firstline_core.protocol.asgi import Request, Streamed
from firstline_core.protocol.events import last_event_id
from firstline_core.protocol.http import Reply
from firstline_core.protocol.oip import encode_response
from firstline_core.protocol.tensors import shown
from firstline_core.types import InferRequest, InferResponse
from firstline_edge.api.bodies import BodyBudget
from firstline_edge.api.data_plane import EdgeDataPlane
from firstline_edge.api.streams import Render, Streams, wants_events


class Answers:
    """The handlers of inference by file and of the answers' addresses.

    Args:
        agent: started.
        streams: those that are open.
        budget: for bodies.
    """

    def __init__(self, agent: EdgeDataPlane, streams: Streams, budget: BodyBudget) -> None:
        self._agent = agent
        self._streams = streams
        self._budget = budget

    async def infer_file(self, request: Request, principal: str) -> Reply | Streamed:
        """Inference by file; a caller who accepts an event stream gets every answer to this request in it."""
        agent, model = self._agent, request.parameters["model"]
        with contextlib.ExitStack() as held:
            with self._budget.taking() as take:
                body = await request.body(agent.limits, take)
                asked = await file_inference.read_request(
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
                if not wants_events(request.headers):
                    return self._in_words(await agent.infer(asked))
                # Only now: who sends slowly, or not at all, takes no stream from those who listen.
                stream = held.enter_context(self._streams.opened(self._in_words))
                ending = held.enter_context(agent.endings.watch(asked.request_id))
                response = await agent.infer(asked)
            return stream.response(response, ending, held)

    async def answer(self, request: Request, principal: str) -> Reply:
        """The latest answer under an id."""
        render = self._in_form(request)
        return render(await self._agent.answer(request.parameters["request_id"], principal))

    async def events(self, request: Request, principal: str) -> Reply | Streamed:
        """The answer under an id as it stands, and its last word when it comes."""
        request_id, seen = request.parameters["request_id"], last_event_id(request.headers)
        with contextlib.ExitStack() as held:
            stream = held.enter_context(self._streams.opened(self._in_form(request), seen))
            ending = held.enter_context(self._agent.endings.watch(request_id))
            return stream.response(await self._agent.answer(request_id, principal), ending, held)

    def _in_form(self, request: Request) -> Render:
        """How the caller wants an answer that it asks for by id.

        Raises:
            RequestError: not at all.
        """
        form = request.query.get("form", "short")
        if form not in ("short", "v2"):
            raise RequestError(f"Query parameter 'form' is {shown(form)}; use short or v2.")

        def tensors(response: InferResponse) -> Reply:
            encoded = encode_response(InferRequest(response.model, (), request.parameters["request_id"]), response)
            return Reply(200, http.headers_for(encoded), encoded.body)

        return tensors if form == "v2" else self._in_words

    def _in_words(self, response: InferResponse) -> Reply:
        return http.json_reply(
            file_inference.answer_json(response, self._agent.labels(response.model, response.version))
        )
