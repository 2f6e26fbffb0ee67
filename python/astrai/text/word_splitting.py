"""How byte-level BPE tokenizers cut text into words, by the names that GGUF files give it.

A GGUF file does not hold the rules of its `tokenizer.ggml.pre`, only a name that llama.cpp's
src/llama-vocab.cpp knows. The rules here are those of the tokenizer.json files that the models'
authors publish, which llama.cpp follows too. Pure data and functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

__all__ = ["WORD_SPLITTINGS", "WordSplitting"]


@dataclass(frozen=True, slots=True)
class WordSplitting:
    """The rules behind one name."""

    make: Callable[[], pre_tokenizers.PreTokenizer]
    nfc: bool = False  # text is brought into Unicode's composed form first
    takes_words_whole: bool = False  # one that is in the vocabulary, whatever merges lead to
    adds_bos: bool = False  # where the file does not say


def _patterns(*patterns: str) -> Callable[[], pre_tokenizers.PreTokenizer]:
    """Each pattern cuts further what the ones before it have left."""

    def make() -> pre_tokenizers.PreTokenizer:
        splits = [pre_tokenizers.Split(Regex(p), behavior="isolated") for p in patterns]
        spelled = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*splits, spelled])

    return make


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _single_digits() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _falcon() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Punctuation("contiguous"),
            _gpt2(),
            pre_tokenizers.Digits(individual_digits=False),
            pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), behavior="isolated"),
        ]
    )


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WHITESPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _WHITESPACE
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_QWEN35 = (
    _CONTRACTIONS
    + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|"
    + _WHITESPACE
)
_SEED_CODER = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|" + _WHITESPACE
)
_BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_JAIS2 = _LLAMA3.removesuffix(r"\s+(?!\S)|\s+") + (
    "|".join(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4))
    + r"|\s{1,2}(?!\S)|\s{1}"
)

# A word in small letters with at most a beginning in capitals, or one in capitals.
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_WORDS = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s"
)
_AFTER_WORDS = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _WHITESPACE
_TEKKEN = _CASED_WORDS % ("", "") + r"|\p{N}" + _AFTER_WORDS
_O200K = _CASED_WORDS % (_CONTRACTIONS + "?", _CONTRACTIONS + "?") + r"|\p{N}{1,3}" + _AFTER_WORDS

_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK_LLM = (
    r"[\r\n]",
    r"\s?[\p{Lu}\p{Ll}\p{Lt}]+",  # the file lists them, by an older Unicode
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    _CJK,
    r"\p{N}",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|" + _WHITESPACE,
)

_LLAMA3_WORDS = WordSplitting(_patterns(_LLAMA3), takes_words_whole=True, adds_bos=True)


def _named(splitting: WordSplitting, *names: str) -> dict[str, WordSplitting]:
    return dict.fromkeys(names, splitting)


# What a file without a name gets, as in llama.cpp.
_DEFAULT = WordSplitting(_falcon)

WORD_SPLITTINGS: dict[str, WordSplitting] = {
    **_named(
        WordSplitting(_gpt2),
        *("gpt-2", "phi-2", "jais", "gigachat", "a.x-4.0", "mellum", "exaone4", "trillion"),
        "granite-docling",
    ),
    **_named(WordSplitting(_gpt2, nfc=True), "mpt", "olmo"),
    **_named(
        WordSplitting(_single_digits),
        *("smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"),
    ),
    **_named(WordSplitting(_single_digits, nfc=True), "command-r"),
    **_named(_DEFAULT, "default", "falcon"),
    **_named(
        _LLAMA3_WORDS,
        *("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
    ),
    **_named(WordSplitting(_patterns(_LLAMA3), takes_words_whole=True), "minicpm5"),
    **_named(WordSplitting(_patterns(_LLAMA3)), "dbrx", "smaug-bpe", "chatglm-bpe", "glm4"),
    **_named(
        WordSplitting(_patterns(_QWEN2), nfc=True), "qwen2", "deepseek-r1-qwen", "megrez", "kormo"
    ),
    **_named(WordSplitting(_patterns(_QWEN35), nfc=True), "qwen35"),
    **_named(WordSplitting(_patterns(_QWEN2)), "stablelm2", "hunyuan", "solar-open", "grok-2"),
    **_named(WordSplitting(_patterns(*_DEEPSEEK_LLM)), "deepseek-llm"),
    **_named(WordSplitting(_patterns(*_DEEPSEEK_CODER)), "deepseek-coder"),
    **_named(WordSplitting(_patterns(*_DEEPSEEK_V3)), "deepseek-v3", "hunyuan-dense", "joyai-llm"),
    **_named(WordSplitting(_patterns(_BLOOM)), "bloom", "poro-chat", "gpt3-finnish"),
    **_named(WordSplitting(_patterns(_BLOOM, r"\p{N}")), "viking"),
    **_named(WordSplitting(_patterns(_TEKKEN), takes_words_whole=True, adds_bos=True), "tekken"),
    **_named(WordSplitting(_patterns(_O200K)), "gpt-4o", "llama4", "kanana2", "minimax-m2"),
    **_named(WordSplitting(_patterns(_JAIS2)), "jais-2"),
    **_named(WordSplitting(_patterns(_SEED_CODER)), "seed-coder"),
    **_named(WordSplitting(_patterns(_BAILING)), "bailingmoe", "bailingmoe2", "llada-moe"),
}
