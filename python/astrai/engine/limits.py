"""`RequestLimits`: what a request has to keep to, as far as it can be told without the pool."""

from __future__ import annotations

from dataclasses import dataclass

from astrai.engine.errors import RequestError
from astrai.engine.request import GenerationRequest
from astrai.sampling import SamplingParams
from astrai.sampling.penalties import LogitEdits

__all__ = ["RequestLimits"]


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """room: tokens that could follow an empty prompt; a prompt takes its own off. end_ids: ids that
    end a text unless ignore_eos. max_edits: see `Sampler`."""

    vocab_size: int
    max_seq_len: int
    room: int
    end_ids: tuple[int, ...] = ()
    max_edits: int | None = None

    def check(self, request: GenerationRequest) -> int:
        """How many tokens are generated at most, at least 1. Raises RequestError for a request
        that can never be served."""
        params = request.params
        try:
            params.validate(self.vocab_size)
        except ValueError as error:
            raise RequestError(str(error), "invalid_value", str(error).split()[0]) from None
        _check_namespace(request.namespace)
        self._check_prompt(request.prompt_ids)
        n_prompt = len(request.prompt_ids)
        room = self.room - n_prompt
        if room < 1:
            raise RequestError(
                f"the prompt has {n_prompt} tokens; with room for one new token at most "
                f"{self.room - 1} fit (context {self.max_seq_len})",
                "context_length_exceeded",
                "prompt",
            )
        max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
        self._check_edits(params, n_prompt, max_tokens)
        return max_tokens

    def stop_ids(self, params: SamplingParams) -> tuple[int, ...]:
        """The ids that end this text, each once."""
        end_ids = () if params.ignore_eos else self.end_ids
        return tuple(dict.fromkeys((*params.stop_token_ids, *end_ids)))

    def _check_edits(self, params: SamplingParams, n_prompt: int, max_tokens: int) -> None:
        if self.max_edits is None:
            return
        n_masked = len(self.stop_ids(params)) if params.min_tokens else 0
        n_over = LogitEdits.most(params, n_prompt, n_masked, max_tokens) - self.max_edits
        if n_over <= 0:
            return
        # Penalties alone fit, so that it is the bias or the mask; whichever is larger is told.
        param, n = "logit_bias", len(params.logit_bias or ())
        name = param
        if n_masked > n:
            param, n = "stop_token_ids", n_masked
            name = "stop_token_ids, which min_tokens masks together with the model's own end ids,"
        raise RequestError(
            f"{name} has {n} tokens; this engine takes {max(0, n - n_over)} for a request of this "
            "length and these penalties",
            param=param,
        )

    def _check_prompt(self, prompt_ids: list[int]) -> None:
        if not prompt_ids:
            raise RequestError("prompt is empty; at least one token is needed", param="prompt")
        if not set(map(type, prompt_ids)) <= {int}:
            raise RequestError("prompt must be a list of token ids (integers)", param="prompt")
        lowest, highest = min(prompt_ids), max(prompt_ids)
        if lowest < 0 or highest >= self.vocab_size:
            wrong = lowest if lowest < 0 else highest
            raise RequestError(
                f"prompt holds token id {wrong}; ids of this model are 0 to {self.vocab_size - 1}",
                param="prompt",
            )


def _check_namespace(namespace: object) -> None:
    """Refuse what cannot cross into C++ as UTF-8: other types, lone surrogates."""
    try:
        if isinstance(namespace, str):
            namespace.encode()
            return
    except UnicodeEncodeError:
        pass
    raise RequestError(
        f"namespace must be a valid Unicode string, got {namespace!a}", param="namespace"
    )
