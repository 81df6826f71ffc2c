"""The options that commands share, each written once: groups of options as dataclasses, and what they are turned into.

`takes` lets a command name a group as one parameter. Nothing here knows how an option was spelled (see aliases.py) or
whether it came from a file (see configfile.py).
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Annotated, Any, get_type_hints

from typer import Option

from headstart.core.errors import ConfigError, first_line, nearest
from headstart.core.methods import METHODS, drafter_of, split_bits
from headstart.core.params import SamplingParams
from headstart.core.plugins import foreign_method, foreign_names


@dataclass
class ModelOptions:
    """What is loaded, and where it runs."""

    model: Annotated[str | None, Option("--model", "-m", help="Target model: directory, GGUF file or hub id (org/name).", metavar="M")] = (
        None
    )
    tokenizer: Annotated[str | None, Option(help="Tokenizer, when not the model's own.", metavar="PATH|ID")] = None
    revision: Annotated[str | None, Option(help="Revision of the model on the hub.")] = None
    dtype: Annotated[str, Option(help="auto, bfloat16, float16, float32 or float64.", metavar="TYPE")] = "auto"
    quantization: Annotated[str | None, Option(help="int8 or int4: quantise the target's weights at load.", metavar="TYPE")] = None
    device: Annotated[str, Option(help="auto, cpu, cuda or cuda:N.", metavar="DEVICE")] = "auto"
    max_model_len: Annotated[int | None, Option(help="Context limit in tokens. Default: the model's own.", metavar="N")] = None
    max_num_seqs: Annotated[int | None, Option(help="Sequences that run at once.", metavar="N")] = None
    max_num_batched_tokens: Annotated[int | None, Option(help="Rows of one pass, prefill and drafts included.", metavar="N")] = None
    block_size: Annotated[int | None, Option(help="Tokens per KV block.", metavar="N")] = None
    kv_cache_memory: Annotated[str | None, Option(help="Memory for KV, such as 2GiB.", metavar="SIZE")] = None
    gpu_memory_utilization: Annotated[
        float | None, Option(help="Instead: share of the device's memory for weights and KV.", metavar="SHARE")
    ] = None
    prefix_caching: Annotated[bool, Option("--prefix-caching/--no-prefix-caching", help="Share the KV of equal beginnings.")] = True
    backend: Annotated[str, Option("--backend", help="native, or vllm: several devices and nodes (docs/scale.md).", metavar="NAME")] = (
        "native"
    )
    tensor_parallel_size: Annotated[int | None, Option(help="vllm: devices that share each layer.", metavar="N")] = None
    pipeline_parallel_size: Annotated[int | None, Option(help="vllm: groups of devices that share the layers.", metavar="N")] = None
    data_parallel_size: Annotated[int | None, Option(help="vllm: copies of the model.", metavar="N")] = None
    backend_option: Annotated[
        list[str], Option("--backend-option", help="vllm: any of its own arguments, such as nnodes=2. Repeat it.", metavar="NAME=VALUE")
    ] = field(default_factory=list)
    vllm_python: Annotated[str | None, Option(help="vllm: the Python that has it. Also HEADSTART_VLLM_PYTHON.", metavar="PATH")] = None
    config: Annotated[str | None, Option(help="TOML file with any of these options; the command line wins.", metavar="FILE")] = None

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of LLM: only what was given."""
        limits = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size", "kv_cache_memory", "gpu_memory_utilization")
        elsewhere = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "vllm_python")
        names = ("tokenizer", "revision", "quantization", *limits, *elsewhere)
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if self.backend_option:
            given["backend_options"] = dict(_option(text) for text in self.backend_option)
        if not self.prefix_caching:
            given["enable_prefix_caching"] = False
        return {**given, "dtype": self.dtype, "device": self.device, "backend": self.backend}


@dataclass
class SpeculationOptions:
    """How drafts are made and judged."""

    draft: Annotated[
        str | None,
        Option(
            "--draft",
            "-d",
            help="A method (none, ngram, suffix, prediction, corpus:INDEX, quantised:int8), a drafter of others (package.module:Name), "
            "a draft model or head (directory, GGUF file or hub id; MODEL:int8 or :int4 quantises it), several, the best in each step: "
            "suffix,MODEL, or a speculative_config as JSON.",
            metavar="D",
        ),
    ] = None
    num_speculative_tokens: Annotated[int | None, Option("--num-speculative-tokens", "-k", help="Drafts per step.", metavar="K")] = None
    verify: Annotated[
        str | None, Option(help="rejection, block or match, all lossless. Default: match with --seed, else rejection.", metavar="RULE")
    ] = None
    adaptive: Annotated[
        bool | None, Option("--adaptive/--no-adaptive", help="Draft only as much as pays (default), or always K tokens.")
    ] = None
    draft_temperature: Annotated[float | None, Option(help="Temperature of the draft model. Default: the target's.", metavar="T")] = None
    prompt_lookup_max: Annotated[int | None, Option(help="Longest match that ngram looks for.", metavar="N")] = None
    prompt_lookup_min: Annotated[int | None, Option(help="Shortest match that ngram accepts.", metavar="N")] = None
    speculative_config: Annotated[
        str | None,
        Option(
            "--speculative-config", help="vLLM's speculative_config as JSON; or one key: --speculative-config.KEY VALUE.", metavar="JSON"
        ),
    ] = None

    def config(self) -> dict[str, Any] | None:
        """The `speculative_config` of LLM, or None when nothing was asked for. Raises ConfigError."""
        out = parse_json(self.speculative_config) if self.speculative_config else {}
        said = dict.fromkeys(out, "--speculative-config")

        def put(key: str, value: Any, flag: str) -> None:
            if value is None:
                return
            if key in out and out[key] != value:
                raise ConfigError(f"{flag} {value} contradicts {said[key]} ({key}={out[key]!r}): leave one of them out")
            out[key] = value
            said[key] = flag

        if self.draft is not None:
            for key, value in split_draft(self.draft, out).items():
                put(key, value, "--draft")
        put("num_speculative_tokens", self.num_speculative_tokens, "--num-speculative-tokens")
        put("verify", self.verify, "--verify")
        put("adaptive", self.adaptive, "--adaptive" if self.adaptive else "--no-adaptive")
        put("draft_temperature", self.draft_temperature, "--draft-temperature")
        put("prompt_lookup_max", self.prompt_lookup_max, "--prompt-lookup-max")
        put("prompt_lookup_min", self.prompt_lookup_min, "--prompt-lookup-min")
        flags = [flag for flag in said.values() if flag != "--speculative-config"]
        if flags and not out.keys() & {"method", "model", "corpus", "drafters", "prompt_lookup_max", "prompt_lookup_min"}:
            raise ConfigError(f"{flags[0]} has no effect without a draft: add --draft ngram or --draft MODEL")
        return out or None


@dataclass
class SamplingOptions:
    """What is sampled, and when it ends."""

    max_tokens: Annotated[int, Option("--max-tokens", help="Longest answer, in tokens.", metavar="N")] = 256
    temperature: Annotated[
        float | None, Option("--temperature", "-t", help="0 is greedy. Default: 0 (generate), so that a run can be repeated; 0.7 (chat).")
    ] = None
    top_p: Annotated[float, Option(help="Smallest set of tokens with this probability.", metavar="P")] = 1.0
    top_k: Annotated[int, Option(help="The K likeliest tokens; 0 is off.", metavar="K")] = 0
    min_p: Annotated[float, Option(help="Tokens at least this likely relative to the likeliest.", metavar="P")] = 0.0
    presence_penalty: Annotated[float, Option(help="Less (or with a minus more) of what was written before.", metavar="X")] = 0.0
    frequency_penalty: Annotated[float, Option(help="The same, times how often it was written.", metavar="X")] = 0.0
    repetition_penalty: Annotated[float, Option(help="Above 1: less of what the prompt or the answer holds.", metavar="X")] = 1.0
    logit_bias: Annotated[list[str], Option(help="Add X to the logit of a token id. May be repeated.", metavar="ID=X")] = field(
        default_factory=list
    )
    bad_word: Annotated[list[str], Option(help="Never write this. May be repeated.", metavar="TEXT")] = field(default_factory=list)
    json_schema: Annotated[str | None, Option(help="The answer is JSON of this schema.", metavar="FILE|JSON")] = None
    regex: Annotated[str | None, Option(help="The answer matches this expression.", metavar="RE")] = None
    choice: Annotated[list[str], Option(help="The answer is one of these. Repeat it.", metavar="TEXT")] = field(default_factory=list)
    grammar: Annotated[str | None, Option(help="The answer follows this grammar (Lark form).", metavar="FILE|TEXT")] = None
    seed: Annotated[int | None, Option(help="Makes sampling repeatable. Default: a fresh one.", metavar="N")] = None
    n: Annotated[int, Option("--n", help="Completions per prompt.", metavar="N")] = 1
    min_tokens: Annotated[int, Option(help="Do not end before this many tokens.", metavar="N")] = 0
    stop: Annotated[list[str], Option(help="End at this text. May be repeated.", metavar="TEXT")] = field(default_factory=list)
    ignore_eos: Annotated[bool, Option("--ignore-eos", help="Go on after the end-of-text token.")] = False

    def params(self, temperature: float) -> SamplingParams:
        """SamplingParams; `temperature` is the command's default. Raises ConfigError."""
        return SamplingParams(
            n=self.n,
            temperature=temperature if self.temperature is None else self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=dict(_pair(text) for text in self.logit_bias),
            bad_words=self.bad_word,
            structured_outputs=self._structured(),
            min_tokens=self.min_tokens,
            seed=self.seed,
            stop=self.stop or None,
            ignore_eos=self.ignore_eos,
            max_tokens=self.max_tokens,
        )

    def _structured(self) -> dict[str, Any] | None:
        asked = {
            "json": None if self.json_schema is None else _text_or_file("--json-schema", self.json_schema, "{"),
            "regex": self.regex,
            "choice": self.choice or None,
            "grammar": None if self.grammar is None else _text_or_file("--grammar", self.grammar, ":"),
        }
        given = {name: value for name, value in asked.items() if value is not None}
        return given or None


def _option(text: str) -> tuple[str, Any]:
    """`NAME=VALUE`, the value as JSON where it is JSON, else as text. Raises ConfigError."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"--backend-option {text} must be a name and a value: write --backend-option nnodes=2")
    try:
        return name.strip(), json.loads(value)
    except ValueError:
        return name.strip(), value


def _pair(text: str) -> tuple[int, float]:
    """`ID=X`. Raises ConfigError."""
    token, equals, bias = text.partition("=")
    try:
        if equals and token.strip().isdecimal():
            return int(token), float(bias)
    except ValueError:
        pass
    raise ConfigError(f"--logit-bias {text} must be a token id and a number: write --logit-bias 42=-100")


def _text_or_file(flag: str, value: str, sign: str) -> str:
    """What was written, if it has the sign of what is expected; else the content of the file it names. Raises ConfigError."""
    from pathlib import Path

    if sign in value:
        return value
    try:
        return Path(value).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{flag} {value} is neither the thing itself nor a text file that can be read ({first_line(e)})") from None


def split_draft(value: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """What one `--draft` means beside the rest of a speculative_config: method, corpus, model or several. Raises ConfigError."""
    from pathlib import Path

    if value.lstrip().startswith("{"):
        return parse_json(value, "--draft")
    if "," in value and not Path(value).expanduser().exists():
        return {"method": "hybrid", "drafters": [split_draft(each.strip(), config) for each in value.split(",") if each.strip()]}
    if value.startswith(("corpus:", "quantised", "quantized")):
        return drafter_of(value)
    model, bits = split_bits(value)
    if bits and not Path(value).exists():
        return {**split_draft(model, config), "quantization": bits}
    if foreign_method(value):
        return drafter_of(value)
    name = value.strip().strip("[]").replace("-", "_").lower()
    if name == "corpus" and "corpus" not in config:
        raise ConfigError(f"--draft {value} needs an index: write --draft corpus:PATH (headstart index build makes one)")
    if name == "draft_model" and "model" not in config:
        raise ConfigError(f"--draft {value} needs a checkpoint: write --draft MODEL (a directory, a GGUF file or a hub id)")
    if name == "hybrid" and "drafters" not in config:
        raise ConfigError(f"--draft {value} needs a list: write --draft suffix,MODEL")
    if name in METHODS:
        return {"method": name}
    if value.strip().isdigit() and not Path(value).exists():
        raise ConfigError(f"--draft {value} looks like a draft length: write --num-speculative-tokens {value} (--draft names what drafts)")
    if not value.strip():
        raise ConfigError("--draft is empty: write ngram, none, or a draft model")
    if "/" not in value and not Path(value).expanduser().exists():
        raise ConfigError(f"--draft {value} is no method, no file and no hub id (org/name): {nearest(name, (*METHODS, *foreign_names()))}")
    return {"model": value}


def draft_alone(value: str, options: Seq[str]) -> dict[str, Any]:
    """One `--draft` of a command whose own `options` hold for every draft, so that JSON must leave them out. Raises ConfigError."""
    config = split_draft(value, {})
    for name in options:
        if name in config:
            raise ConfigError(f"--draft {value}: {name} holds for every draft here, leave it out and set --{name.replace('_', '-')}")
    return config


def parse_json(text: str, flag: str = "--speculative-config") -> dict[str, Any]:
    """What follows `flag`, as a dictionary with `_` in its keys. Raises ConfigError."""
    example = '\'{"model": "SMALLER", "quantization": "int8"}\''
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise ConfigError(f"{flag} {text} is not JSON ({first_line(e)}): write {example}") from None
    if not isinstance(given, dict):
        raise ConfigError(f"{flag} must be a JSON object: write {example}")
    return {str(k).replace("-", "_"): v for k, v in given.items()}


def takes(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command name option groups as parameters: typer sees the fields, the command gets the dataclasses."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        kind = hints[name]
        if not dataclasses.is_dataclass(kind):
            parameters.append(parameter.replace(annotation=kind, kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        groups[name] = kind
        types = get_type_hints(kind, include_extras=True)
        for f in dataclasses.fields(kind):
            default = f.default if f.default_factory is dataclasses.MISSING else f.default_factory()
            parameters.append(inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=types[f.name]))

    def wrapper(**values: Any) -> None:
        made = {name: kind(**{f.name: values.pop(f.name) for f in dataclasses.fields(kind)}) for name, kind in groups.items()}
        command(**made, **values)

    wrapper.__name__, wrapper.__doc__ = command.__name__, command.__doc__
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapper
