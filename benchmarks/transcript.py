"""Writes docs/transcript.md: every feature of the server, asked by the openai client, with the answer that came.

python benchmarks/transcript.py                # the demo model with ngram
"""

from __future__ import annotations

import contextlib
import io
import sys
import textwrap
from pathlib import Path
from typing import Any

import openai

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.served import DEMO, ROOT, served

# Each: what it shows, and the code that shows it, which is run as it is printed.
STEPS = [
    (
        "A chat",
        """
        answer = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "What is the capital of France?"}], max_tokens=20, temperature=0)
        print(answer.choices[0].message.content)
        print(answer.choices[0].finish_reason, answer.usage.prompt_tokens, answer.usage.completion_tokens)
        """,
    ),
    (
        "A stream, with usage and statistics in its last chunk",
        """
        stream = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Count from 1 to 20, with commas."}], max_tokens=60, temperature=0,
            stream=True, stream_options={"include_usage": True})
        chunks = list(stream)
        print("".join(c.choices[0].delta.content or "" for c in chunks if c.choices))
        print(chunks[-1].usage.completion_tokens_details.model_extra)
        print(chunks[-1].metrics["speculative_decoding"]["acceptance_histogram"], chunks[-1].timings["draft_n_accepted"])
        """,
    ),
    (
        "A completion with log probabilities, several choices, a seed and a stop string",
        """
        answer = client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=12, n=2, seed=7, logprobs=1, stop=["."])
        for choice in answer.choices:
            print(choice.index, repr(choice.text), choice.finish_reason, [round(x, 2) for x in choice.logprobs.token_logprobs[:3]])
        """,
    ),
    (
        "A prompt scored, nothing written",
        """
        answer = client.completions.create(model=MODEL, prompt="The sun is hot", max_tokens=0, echo=True, logprobs=0)
        scored = answer.choices[0].logprobs
        print(answer.usage.completion_tokens, [(t, p and round(p, 2)) for t, p in zip(scored.tokens, scored.token_logprobs)])
        """,
    ),
    (
        "Structured output",
        """
        class City(pydantic.BaseModel):
            name: str
            inhabitants: int

        answer = client.chat.completions.parse(
            model=MODEL, messages=[{"role": "user", "content": "Describe Paris."}], response_format=City, max_tokens=80, temperature=0)
        print(repr(answer.choices[0].message.parsed))
        answer = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Is water wet?"}], temperature=0,
            extra_body={"guided_choice": ["yes", "no"]})
        print(answer.choices[0].message.content)
        """,
    ),
    (
        "A prediction: the text that is expected, edited by the model",
        """
        code = "def add(a, b):\\n    return a + b\\n\\ndef double(a):\\n    return add(a, a)\\n"
        answer = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Repeat this code:\\n" + code}], max_tokens=60, temperature=0,
            prediction={"type": "content", "content": code})
        details = answer.usage.completion_tokens_details
        print(details.accepted_prediction_tokens, details.rejected_prediction_tokens, answer.metrics["num_passes"])
        """,
    ),
    (
        "The same request without drafts, by another rule and by one drafter: the same text",
        """
        def ask(**extra):
            return client.completions.create(
                model=MODEL, prompt="one two three one two three one", max_tokens=24, temperature=0, extra_body=extra)

        plain, fast, named = ask(num_speculative_tokens=0), ask(verify="match"), ask(drafter="ngram")
        print(plain.choices[0].text == fast.choices[0].text == named.choices[0].text)
        print([a.usage.completion_tokens_details.accepted_draft_tokens for a in (plain, fast, named)])
        """,
    ),
    (
        "Where each token came from, and how it was judged",
        """
        answer = client.completions.create(
            model=MODEL, prompt="one two three one two three one", max_tokens=8, seed=1,
            extra_body={"trace_drafts": True, "verify": "rejection"})
        for token in answer.choices[0].model_extra["token_origins"]:
            print(f"{token['text']!r:12} {token['origin']:12} p={token['p']:.3f} rejected={[d['text'] for d in token['rejected']]}")
        """,
    ),
    (
        "Errors name the field, or both numbers",
        """
        ask = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
        for wrong in (
            {"temperature": -1}, {"max_tokens": 10**6}, {"extra_body": {"drafter": "/etc/passwd"}}, {"extra_body": {"guided_regex": "("}}
        ):
            try:
                client.chat.completions.create(**ask, **wrong)
            except openai.BadRequestError as e:
                print(e.status_code, e.param, "|", e.message[-110:])
        """,
    ),
    (
        "Models, tokens, health, metrics",
        """
        print(client.models.list().data[0].model_extra)
        print(httpx.post(URL + "/tokenize", json={"prompt": "Hello world"}).json())
        print(httpx.post(URL + "/detokenize", json={"tokens": [19556, 905]}).json(), httpx.get(URL + "/health").json())
        print(*[l for l in httpx.get(URL + "/metrics").text.splitlines() if "num_accepted_tokens_total" in l and l[0] != "#"])
        """,
    ),
]


def main() -> None:
    """Run every step against a server and write the document."""
    import httpx
    import pydantic

    model = str(Path(DEMO).expanduser())
    parts = [
        "# A transcript\n\nWritten by `python benchmarks/transcript.py`: the `openai` client against `headstart serve` with SmolLM2-135M\n"
        "(Q4_1) and `--draft ngram`. The code is what ran, the text below it what it printed. A model of this size knows little; what\n"
        "is shown is the server.\n"
    ]
    with served(model, "--draft", "ngram", "--max-model-len", "2048", "--no-adaptive", "--served-model-name", "smollm2") as url:
        names: dict[str, Any] = {"client": openai.OpenAI(base_url=url + "/v1", api_key="any", max_retries=0), "MODEL": "smollm2"}
        names |= {"URL": url, "httpx": httpx, "openai": openai, "pydantic": pydantic}
        for title, code in STEPS:
            code = textwrap.dedent(code).strip()
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                exec(compile(code, title, "exec"), names)
            parts.append(f"## {title}\n\n```python\n{code}\n```\n\n```\n{said.getvalue().rstrip()}\n```\n")
            print(title, "\n", said.getvalue(), file=sys.stderr)
    (ROOT / "docs" / "transcript.md").write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
