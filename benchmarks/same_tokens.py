"""The tokenizer that headstart builds from a GGUF file against transformers' own conversion of the file, text by text.

    python benchmarks/same_tokens.py [MODEL.gguf]

Chinese, Japanese and Korean, code, numerals, emoji, control characters, special tokens, and source files of headstart. transformers takes
a minute or two for Gemma's 262,144 tokens, which is the default here. Exit code 1 on any difference.

Left out is a text with "▁▁" itself beside a space: the file declares it a token of its own (user-defined), and the conversion does not
take it for one.
"""

from __future__ import annotations

import sys
from pathlib import Path

import headstart
from headstart.core.folders import cache_folder
from headstart.models.gguf import GGUFFile

TEXTS = [
    "The cat sat on the mat. It's a test; isn't it?  Two  spaces.",
    "敏捷的棕色狐狸跳过了懒狗。日本語とハングル 한국어 臺灣 𠮷野家",
    "def f(x):\n    return x ** 2  # squared\n\n\tif x:\n\t\tpass\n",
    "3.14159 1234567890 2024-01-31 0x1F ١٢٣ ½ x² 第五 Ⅷ 12½",
    "emoji 😀👩‍👩‍👧 🇩🇪 👍🏽 é é naïve Ünïcode",
    "   leading, trailing   \n\n\n\n\t\t  \r\n",
    "<start_of_turn>user\nhi<end_of_turn>\n<start_of_turn>model\n<bos>a<eos><pad> <unk>b",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<|endoftext|>",
    "<h1>Title</h1>\n<table><tr><td>▁ a</td></tr></table>",
    "\u200b\ufeff\x00\x07 control",
    "",
    " ",
]


def main() -> int:
    from transformers import AutoTokenizer

    path = Path(sys.argv[1]) if len(sys.argv) > 1 else cache_folder() / "gemma-3-270m-q4_k_m.gguf"
    if not path.exists():
        print(f"{path} is not there: docs/models.md says where it is had", file=sys.stderr)
        return 2
    ours, theirs = GGUFFile(path).tokenizer(), AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    sources = [p.read_text(encoding="utf-8") for p in sorted(Path(headstart.__file__).parent.rglob("*.py"))]
    wrong = tokens = 0
    for text in [*TEXTS, *sources]:
        ids = ours.encode(text)
        tokens += len(ids)
        if ids != theirs.encode(text) or ours.decode(ids) != theirs.decode(ids):
            wrong += 1
            print(f"differs: {text[:60]!r}\n    ours {ids[:20]}\n    theirs {theirs.encode(text)[:20]}")
    same = ours.get_vocab() == theirs.get_vocab()
    told = f"{len(TEXTS) + len(sources)} texts, {tokens} tokens, {wrong} differ; {'the same' if same else 'ANOTHER'} vocabulary"
    print(f"{path.name}: {told}")
    return 1 if wrong or not same else 0


if __name__ == "__main__":
    sys.exit(main())
