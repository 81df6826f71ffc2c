"""One model being served: its state, and how a request runs from a parsed body to an answer."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

import headstart
from headstart.core.outputs import RequestOutput
from headstart.core.params import SamplingParams
from headstart.server.answers import Form, Stream, whole
from headstart.server.errors import internal, invalid, timed_out, unavailable, unknown_model
from headstart.server.events import PING, EventStream, event, until_gone
from headstart.server.grammars import Grammars
from headstart.server.limits import check_lengths
from headstart.server.loop import EngineLoop, Ticket
from headstart.server.metrics import Metrics
from headstart.server.options import chat_sampling, completion_sampling, grammar_field
from headstart.server.prompts import Prompter, prompts_of
from headstart.server.settings import Settings
from headstart.server.shapes import Asked, ChatRequest, CompletionRequest, DetokenizeRequest, StreamOptions, TokenizeRequest
from headstart.server.tools import tool_names

if TYPE_CHECKING:
    from headstart.api import LLM

log = logging.getLogger("headstart.server")

Prepared = tuple[str | None, list[int]]


class Service:
    """Invariant: `loop` runs exactly in the states "ready" and "stopping"; only "ready" takes requests."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.state = "loading"
        self.created = int(time.time())
        self.loop: EngineLoop
        self.prompter: Prompter
        self.metrics: Metrics
        self.on_death: Callable[[], None] = lambda: None
        self._workers = ThreadPoolExecutor(2, "prepare")

    # -- the life of the server ------------------------------------------------------------------------------------

    def open(self, llm: LLM) -> None:
        """Take a loaded model and begin to answer."""
        engine = llm.engine
        self.context, self.vocab = engine.target.max_len, engine.target.vocab
        self.drafters = [member.name for member in engine.drafter.members]
        self.grammars = Grammars(engine.grammars, self.settings.limits.grammar_seconds)
        self.prompter = Prompter(llm.get_tokenizer(), self.settings.limits, self.context)
        self.metrics = Metrics(self.settings.served_name, self.settings.metrics_prefix, self.context)
        digest = hashlib.sha256(repr(replace(llm.config, hf_token=None)).encode()).hexdigest()[:8]
        self.fingerprint = f"headstart-{headstart.__version__}-{digest}"
        self.loop = EngineLoop(engine, self.metrics, self.settings.max_queue, self._died)
        self.loop.start()
        self.state = "ready"

    def _died(self) -> None:
        self.state = "broken"
        self.on_death()

    def stop(self) -> None:
        """Take no more requests; those that run go on."""
        if self.state in ("loading", "ready"):
            self.state = "stopping"

    async def drained(self) -> bool:
        """Wait until nothing runs, at most `drain_seconds`; whether that was reached."""
        end = time.monotonic() + self.settings.drain_seconds
        while hasattr(self, "loop") and self.loop.held and time.monotonic() < end:
            await asyncio.sleep(0.02)
        return not (hasattr(self, "loop") and self.loop.held)

    def close(self) -> None:
        """End the engine thread."""
        self.state = "stopping" if self.state != "broken" else self.state
        if hasattr(self, "loop"):
            self.loop.close()
        self._workers.shutdown(wait=False, cancel_futures=True)

    def refuse_unless_ready(self) -> None:
        """Raises ApiError 503 while loading, stopping or broken."""
        if self.state != "ready":
            raise unavailable(self.state)

    def check_model(self, name: str | None) -> None:
        """Raises ApiError 404 for a model that is not served; none named means the one there is."""
        if name and name != self.settings.served_name:
            raise unknown_model(name, self.settings.served_name)

    def refused(self, status: int) -> None:
        """Count an answer with an error status."""
        if hasattr(self, "metrics"):
            self.metrics.refused.labels(**self.metrics.labels, status=str(status)).inc()

    # -- requests --------------------------------------------------------------------------------------------------

    async def work(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run something slow off the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._workers, function, *arguments)

    async def chat(self, request: Request, asked: ChatRequest) -> Response:
        """`/v1/chat/completions`."""
        self.check_model(asked.model)
        params = chat_sampling(asked, self.settings.limits)
        tools = tool_names(asked, self.settings.limits)
        form = self._form(asked, params, chat=True)
        form.top_logprobs = (asked.top_logprobs or 0) if asked.logprobs else None
        form.tools = tools
        form.max_calls = 1 if asked.parallel_tool_calls is False else None

        def prepare() -> list[Prepared]:
            return [self.prompter.chat(asked)]

        return await self._run(request, asked, form, params, 1, prepare)

    async def complete(self, request: Request, asked: CompletionRequest) -> Response:
        """`/v1/completions`."""
        self.check_model(asked.model)
        params = completion_sampling(asked, self.settings.limits)
        prompts = prompts_of(asked, self.settings.limits)
        form = self._form(asked, params, chat=False)
        form.top_logprobs, form.silent = asked.logprobs, asked.max_tokens == 0

        def prepare() -> list[Prepared]:
            made: list[Prepared] = []
            cut = asked.truncate_prompt_tokens is not None
            for prompt in prompts:
                if isinstance(prompt, str):
                    made.append((prompt, self.prompter.prompt(prompt, asked.add_special_tokens, cut)))
                else:
                    made.append((None, prompt))
            if asked.echo:
                form.echo = [self._decode(ids) if text is None else text for text, ids in made]
            return made

        return await self._run(request, asked, form, params, len(prompts), prepare)

    def _form(self, asked: Asked, params: SamplingParams, chat: bool) -> Form:
        options = asked.stream_options or StreamOptions()
        return Form(
            model=self.settings.served_name,
            fingerprint=self.fingerprint,
            tokenizer=self.prompter.tokenizer,
            chat=chat,
            n=params.n,
            ids=bool(asked.return_token_ids),
            origins=bool(asked.return_token_origins or asked.trace_drafts),
            prompt_logprobs=asked.prompt_logprobs is not None,
            level=self.settings.request_metrics,
            usage=bool(options.include_usage),
            continuous=bool(options.continuous_usage_stats),
            id=asked.request_id or "",
        )

    async def _run(
        self,
        request: Request,
        asked: Asked,
        form: Form,
        params: SamplingParams,
        prompts: int,
        prepare: Callable[[], list[Prepared]],
    ) -> Response:
        """Reserve, prepare, submit, and answer whole or streamed. Whatever happens, what was begun is ended."""
        self.refuse_unless_ready()
        sequences = prompts * params.completions
        self.loop.reserve(sequences)
        tickets: list[Ticket] = []
        ended = False

        def cleanup() -> None:
            nonlocal ended
            if not ended:
                ended = True
                for ticket in tickets:
                    self.loop.abort(ticket)
                self.loop.give_back(sequences)

        ready, name = asyncio.Event(), uuid.uuid4().hex  # not the client's id: two clients may choose the same
        streams = bool(asked.stream)
        try:
            prepared = await self.work(prepare)
            grammar = None
            if params.structured_outputs is not None:
                grammar = await self.grammars.compile(params.structured_outputs, grammar_field(asked))  # type: ignore[arg-type]
            for text, ids in prepared:
                check_lengths(len(ids), params.max_tokens, self.context, params.truncate_prompt_tokens is not None)
                salt = self._salt(request, asked)
                ticket = Ticket(f"{name}-{len(tickets)}", text, ids, params, ready=ready, streams=streams, salt=salt, grammar=grammar)
                self.loop.submit(ticket)
                tickets.append(ticket)
            for ticket in tickets:
                await ticket.admitted()
            if streams:
                events = self._events(form, tickets, ready, request)
                return EventStream(events, cleanup, self.settings.request_timeout)
            outputs = await self._collect(request, tickets, ready)
            body = whole(form, outputs) if outputs is not None else None
        except BaseException:
            cleanup()
            raise
        cleanup()
        if outputs is None:
            return Response(status_code=499)  # nobody is there to read it
        self._say(request, outputs)
        return JSONResponse(body)

    @staticmethod
    def _salt(request: Request, asked: Asked) -> bytes:
        owner: bytes = getattr(request.state, "owner", b"")
        if not owner and not asked.cache_salt:
            return b""
        return hashlib.sha256(owner + (asked.cache_salt or "").encode()).digest()

    async def _collect(self, request: Request, tickets: list[Ticket], ready: asyncio.Event) -> list[RequestOutput] | None:
        """The finished outputs, or None when the client has gone."""

        async def finished() -> list[RequestOutput]:
            outputs: dict[int, RequestOutput] = {}
            while len(outputs) < len(tickets):
                await ready.wait()
                ready.clear()
                for i, ticket in enumerate(tickets):
                    output = ticket.take()
                    if output is not None and output.finished:
                        outputs[i] = _sound(output)
            return [outputs[i] for i in range(len(tickets))]

        task = asyncio.ensure_future(finished())
        gone = asyncio.ensure_future(until_gone(request.receive))
        limit = self.settings.request_timeout
        try:
            done, _ = await asyncio.wait({task, gone}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                raise timed_out(limit or 0)
            return task.result() if task in done else None
        finally:
            task.cancel()
            gone.cancel()
            await asyncio.gather(task, gone, return_exceptions=True)

    async def _events(self, form: Form, tickets: list[Ticket], ready: asyncio.Event, request: Request) -> AsyncIterator[bytes]:
        """The events of a stream, one or more per step, and a comment in silence."""
        stream = Stream(form, len(tickets))
        for chunk in stream.begin():
            yield event(chunk)
        pending = set(range(len(tickets)))
        while pending:
            try:
                async with asyncio.timeout(self.settings.keep_alive):
                    await ready.wait()
            except TimeoutError:
                yield PING
                continue
            ready.clear()
            for i in sorted(pending):
                output = tickets[i].take()
                if output is None:
                    continue
                for chunk in stream.update(i, _sound(output)):
                    yield event(chunk)
                if output.finished:
                    pending.discard(i)
        for chunk in stream.end():
            yield event(chunk)
        self._say(request, [o for o in stream.outputs if o is not None])

    def _decode(self, ids: list[int]) -> str:
        bad = next((t for t in ids if not 0 <= t < self.vocab), None)
        if bad is not None:
            raise invalid(f"token id {bad} is not an id of the vocabulary (0..{self.vocab - 1})", "prompt")
        return str(self.prompter.tokenizer.decode(ids))

    def _say(self, request: Request, outputs: list[RequestOutput]) -> None:
        """One line per request, with its accept figures; never a word of what was asked or answered."""
        made = sum(len(c.token_ids) for o in outputs for c in o.outputs)
        read = sum(len(o.prompt_token_ids) for o in outputs)
        passes = sum(o.metrics.num_passes for o in outputs)
        drafted = sum(o.metrics.speculative_decoding.num_draft_tokens for o in outputs)
        accepted = sum(o.metrics.speculative_decoding.num_accepted_draft_tokens for o in outputs)
        seconds = max(time.monotonic() - o.metrics.arrival_time for o in outputs)
        line = f"{request.state.request_id}: {read} + {made} tokens in {seconds:.2f} s"
        if drafted:
            line += f", {made / max(passes, 1):.2f} per pass, draft acceptance {accepted / drafted:.0%} ({accepted} of {drafted})"
        log.info(line)

    # -- the small routes ------------------------------------------------------------------------------------------

    async def tokenize(self, asked: TokenizeRequest) -> dict[str, Any]:
        """`/tokenize`."""
        self.refuse_unless_ready()
        self.check_model(asked.model)
        if (asked.prompt is None) == (asked.messages is None):
            raise invalid("tokenize needs either prompt or messages", "prompt")

        def ids() -> list[int]:
            if asked.prompt is not None:
                return self.prompter.encode(asked.prompt, asked.add_special_tokens)
            begins = asked.add_generation_prompt
            return self.prompter.chat(ChatRequest(messages=asked.messages or [], add_generation_prompt=begins))[1]

        tokens = await self.work(ids)
        body = {"count": len(tokens), "max_model_len": self.context, "tokens": tokens}
        if asked.return_token_strs:
            body["token_strs"] = self.prompter.tokenizer.convert_ids_to_tokens(tokens)
        return body

    async def detokenize(self, asked: DetokenizeRequest) -> dict[str, Any]:
        """`/detokenize`."""
        self.refuse_unless_ready()
        self.check_model(asked.model)
        bad = next((t for t in asked.tokens if not 0 <= t < self.vocab), None)
        if bad is not None:
            raise invalid(f"tokens: {bad} is not an id of the vocabulary (0..{self.vocab - 1})", "tokens")
        return {"prompt": await self.work(self.prompter.tokenizer.decode, asked.tokens)}

    def model(self) -> dict[str, Any]:
        """The entry of `/v1/models`."""
        more = {"max_model_len": self.context, "drafters": self.drafters} if self.state == "ready" else {}
        return {"id": self.settings.served_name, "object": "model", "created": self.created, "owned_by": "headstart", **more}


def _sound(output: RequestOutput) -> RequestOutput:
    """The output, unless the request failed on its own: then ApiError 500 with the engine's words."""
    if output.error is not None:
        raise internal(f"the request failed: {output.error}")
    return output
