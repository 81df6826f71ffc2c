"""LLM: what most users import. vLLM's call, our engine."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, Any, cast

from headstart.backends import open_backend
from headstart.core.config import build_config
from headstart.core.errors import ConfigError
from headstart.core.outputs import RequestOutput
from headstart.core.params import SamplingParams

if TYPE_CHECKING:
    from headstart.engine.step import Engine

Prompt = str | Seq[int] | Mapping[str, Any]
Message = Mapping[str, Any]


class LLM:
    """A target model, optionally with a drafter, ready to generate.

    model: directory, GGUF file or hub id. Keyword arguments are those of `EngineConfig`, plus `speculative_config` (a
    dictionary with vLLM's keys, or a SpeculativeConfig) and the spellings of older vLLM (`speculative_model=`,
    `num_speculative_tokens=`). Anything unknown or contradictory raises ConfigError; a model that cannot be used raises
    ModelError. `notes` holds the start-up lines. With backend="vllm" the same requests run on vLLM (docs/scale.md), whose own
    arguments go into `backend_options`; EngineError says when its process cannot be started or has gone.
    """

    def __init__(self, model: str, **arguments: Any) -> None:
        self.config, self.notes = build_config(str(model), arguments)
        self._say(self.notes)
        said = len(self.notes)
        # Everything here keeps to `Backend`. The bench and the server, which look deeper, load the native engine.
        self.engine = cast("Engine", open_backend(self.config, self.notes))
        self._say([note for note in self.notes[said:] if note.startswith("warning")])
        if self.config.chat_template is not None:
            self.get_tokenizer().chat_template = self.config.chat_template
        self._ids = itertools.count()

    @staticmethod
    def _say(lines: Seq[str]) -> None:
        for line in lines:
            print(f"headstart: {line}", file=sys.stderr)

    @property
    def speculation(self) -> bool:
        """Whether this LLM drafts."""
        return self.engine.drafts > 0

    def get_tokenizer(self) -> Any:
        """The target's tokenizer."""
        return self.engine.tokenizer

    def generate(
        self,
        prompts: Prompt | Seq[Prompt],
        sampling_params: SamplingParams | Seq[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Complete prompts; outputs in input order.

        prompts: a string, a list of token ids, {"prompt": ...}, {"prompt_token_ids": [...]}, or a list of any of these.
        sampling_params: one for all, or one per prompt. Raises ConfigError before anything runs if any cannot be served.
        """
        batch = self._batch(prompts)
        params = self._params(sampling_params, len(batch))
        return self._run([self._encode(p) for p in batch], params, use_tqdm)

    def chat(
        self,
        messages: Seq[Message] | Seq[Seq[Message]],
        sampling_params: SamplingParams | Seq[SamplingParams] | None = None,
        use_tqdm: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer a conversation, or several: lists of {"role", "content"} through the model's chat template."""
        many = [messages] if not messages or isinstance(messages[0], Mapping) else messages
        params = self._params(sampling_params, len(many))
        return self._run([self._render(m, chat_template_kwargs) for m in many], params, use_tqdm)  # type: ignore[arg-type]

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Iterator[RequestOutput]:
        """Yield the growing output of one prompt after every step. Closing the iterator aborts the request."""
        return self._stream(self._encode(prompt), sampling_params or SamplingParams())

    def stream_chat(
        self, messages: Seq[Message], sampling_params: SamplingParams | None = None, chat_template_kwargs: Mapping[str, Any] | None = None
    ) -> Iterator[RequestOutput]:
        """`stream` for a conversation."""
        return self._stream(self._render(messages, chat_template_kwargs), sampling_params or SamplingParams())

    def shutdown(self) -> None:
        """Abort what runs; another backend's process ends. Memory of the native engine goes when the object goes."""
        self.engine.close()

    # -- inside --------------------------------------------------------------------------------------------------

    def _run(self, encoded: list[tuple[str | None, list[int]]], params: list[SamplingParams], use_tqdm: bool) -> list[RequestOutput]:
        requests = []
        try:
            for (text, ids), p in zip(encoded, params, strict=True):
                requests.append(self.engine.add(str(next(self._ids)), text, ids, p))
            with _Progress(len(requests), use_tqdm) as progress:
                while not all(r.finished for r in requests):
                    progress.update(r for r in self.engine.step() if r.finished)
        finally:  # an interrupt or a bad prompt in the middle of a list leaves nothing behind
            for r in requests:
                self.engine.abort(r.id)
        return [r.output() for r in requests]

    def _stream(self, encoded: tuple[str | None, list[int]], params: SamplingParams) -> Iterator[RequestOutput]:
        if params.completions > params.n:
            raise ConfigError(f"best_of={params.best_of} cannot be streamed: which {params.n} are the likeliest is known at the end only")
        request = self.engine.add(str(next(self._ids)), *encoded, params)

        def outputs() -> Iterator[RequestOutput]:
            try:
                while not request.finished:
                    if request in self.engine.step():
                        yield request.output()
            finally:
                self.engine.abort(request.id)

        return outputs()

    @staticmethod
    def _batch(prompts: Any) -> list[Prompt]:
        if isinstance(prompts, (str, Mapping)):
            return [prompts]
        if not isinstance(prompts, Seq):
            raise ConfigError(f"prompts={prompts!r} must be a string, token ids, a dictionary, or a list of these")
        return [prompts] if prompts and all(isinstance(p, int) for p in prompts) else list(prompts)

    @staticmethod
    def _params(given: SamplingParams | Seq[SamplingParams] | None, count: int) -> list[SamplingParams]:
        if given is None or isinstance(given, SamplingParams):
            return [given or SamplingParams()] * count
        if len(given) != count or not all(isinstance(p, SamplingParams) for p in given):
            raise ConfigError(f"sampling_params must be one SamplingParams or a list of {count}, one per prompt")
        return list(given)

    def _encode(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        if isinstance(prompt, Mapping):
            if "prompt_token_ids" in prompt:
                return prompt.get("prompt"), list(prompt["prompt_token_ids"])
            if "prompt" not in prompt:
                raise ConfigError(f"a prompt dictionary needs 'prompt' or 'prompt_token_ids', it has {sorted(prompt)}")
            prompt = str(prompt["prompt"])
        if isinstance(prompt, str):
            return prompt, list(self.get_tokenizer()(prompt).input_ids)
        if isinstance(prompt, Seq):
            return None, list(prompt)  # type: ignore[arg-type]
        raise ConfigError(f"prompt={prompt!r} must be a string or a list of token ids")

    def _render(self, messages: Seq[Message], kwargs: Mapping[str, Any] | None) -> tuple[str, list[int]]:
        tokenizer = self.get_tokenizer()
        if not messages:
            raise ConfigError("messages is empty: give at least one {'role': 'user', 'content': ...}")
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigError("this model has no chat template: use generate(), or pass chat_template=...")
        try:
            text = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True, **(kwargs or {}))
        except Exception as e:  # templates raise whatever they like on messages they do not take
            raise ConfigError(f"the chat template refused the messages: {str(e).splitlines()[0]}") from None
        return text, list(tokenizer(text, add_special_tokens=False).input_ids)


class _Progress:
    """A progress bar on stderr, for more than one request and a terminal."""

    def __init__(self, total: int, wanted: bool) -> None:
        self.bar = None
        if wanted and total > 1:
            from tqdm import tqdm

            self.bar = tqdm(total=total, desc="prompts", unit="prompt", disable=None)

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: Any) -> None:
        if self.bar is not None:
            self.bar.close()

    def update(self, finished: Iterator[Any]) -> None:
        count = sum(1 for _ in finished)
        if self.bar is not None and count:
            self.bar.update(count)
