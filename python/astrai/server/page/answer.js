// One answer being streamed: its text so far and its numbers.
//
// numbers: {prompt, cached, output, firstTokenS, tokensPerS}; null where not known (yet). The
// server's usage has the last word; until it comes the token ids of the chunks are counted.

import { streamChat } from "./api.js";

const MIN_SPAN_S = 0.05; // a shorter stretch tells more about the network than about the speed

// Streams into `message`, calling `changed` after each chunk. Returns when the answer has ended;
// what went wrong stands in the message.
export async function streamAnswer(message, body, signal, changed) {
  const clock = new Clock();
  message.numbers = clock.numbers;
  const request = { ...body, stream_options: { include_usage: true }, return_token_ids: true };
  try {
    for await (const chunk of streamChat(request, signal)) {
      take(message, chunk, clock);
      changed();
    }
    message.end ??= "stop";
  } catch (error) {
    message.end = error.name === "AbortError" ? "stopped" : "error";
    if (message.end === "error") message.error = error.message;
    return error;
  }
  return null;
}

function take(message, chunk, clock) {
  const choice = chunk.choices?.[0];
  if (choice) {
    const { content, reasoning_content: reasoning } = choice.delta ?? {};
    if (content) message.text += content;
    if (reasoning) message.reasoning += reasoning;
    if (choice.prompt_token_ids) clock.numbers.prompt = choice.prompt_token_ids.length;
    clock.count(choice.token_ids?.length ?? (content || reasoning ? 1 : 0));
    if (choice.finish_reason) message.end = choice.finish_reason;
  }
  if (chunk.usage) clock.settle(chunk.usage);
}

class Clock {
  constructor() {
    this.began = performance.now();
    this.first = null;
    this.numbers = { prompt: null, cached: null, output: 0, firstTokenS: null, tokensPerS: null };
    this.nFirst = 0; // tokens of the first chunk that had some
  }

  count(nTokens) {
    if (!nTokens) return;
    const now = performance.now();
    this.numbers.output += nTokens;
    if (this.first === null) {
      this.first = now;
      this.nFirst = nTokens;
      this.numbers.firstTokenS = (now - this.began) / 1000;
    } else {
      // Tokens after the first, over the time since: prefill is told by firstTokenS alone.
      const seconds = (now - this.first) / 1000;
      if (seconds > MIN_SPAN_S) this.numbers.tokensPerS = (this.numbers.output - this.nFirst) / seconds;
    }
  }

  settle(usage) {
    this.numbers.prompt = usage.prompt_tokens;
    this.numbers.output = usage.completion_tokens;
    this.numbers.cached = usage.prompt_tokens_details?.cached_tokens ?? null;
  }
}
