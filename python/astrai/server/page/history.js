// The engine's steps as time series: one bucket a second, kept as long as the page may show.

const KEPT_S = 900;
const N_LAST_STEPS = 96;

export class History {
  constructor() {
    this.clear();
  }

  clear() {
    this.lastStep = 0;
    this.buckets = new Map(); // whole second -> {tokens, step, itl, ttft: lists of ms}
    this.lastSteps = [];
  }

  // Takes the new steps of one look at the engine. False when the server has started anew: what was
  // known is forgotten then, and the look must be asked for again from step 0.
  add(look) {
    if (look.last_step < this.lastStep) {
      this.clear();
      return false;
    }
    for (const step of look.steps) {
      const second = Math.floor(step.ended_s);
      let bucket = this.buckets.get(second);
      if (!bucket) {
        bucket = { tokens: 0, step: [], itl: [], ttft: [] };
        this.buckets.set(second, bucket);
      }
      bucket.tokens += step.sampled_tokens;
      bucket.step.push(step.duration_s * 1000);
      if (step.itl_s !== null) bucket.itl.push(step.itl_s * 1000);
      bucket.ttft.push(...step.ttft_s.map((seconds) => seconds * 1000));
    }
    this.lastStep = look.last_step;
    this.lastSteps = [...this.lastSteps, ...look.steps].slice(-N_LAST_STEPS);
    for (const second of this.buckets.keys()) {
      if (second < look.now_s - KEPT_S - 1) this.buckets.delete(second);
    }
    return true;
  }

  // `n` points over the last `spanS` whole seconds, oldest first: {middle, top} of the series in each
  // part, null where it has no value. "tokens" is a rate; the others are medians and maxima in ms.
  series(name, nowS, spanS, n) {
    const end = Math.floor(nowS);
    const width = spanS / n;
    return Array.from({ length: n }, (_, i) => {
      const from = end - spanS + i * width;
      const found = [];
      for (let second = Math.ceil(from); second < from + width; second++) {
        const bucket = this.buckets.get(second);
        if (bucket) found.push(bucket);
      }
      if (name === "tokens") {
        const rate = found.reduce((sum, bucket) => sum + bucket.tokens, 0) / width;
        return { middle: rate, top: rate };
      }
      const values = found.flatMap((bucket) => bucket[name]);
      return values.length ? { middle: median(values), top: Math.max(...values) } : null;
    });
  }

  // Median of a series over the last seconds; for "tokens" the rate. null without values.
  recent(name, nowS, spanS = 10) {
    return this.series(name, nowS, spanS, 1)[0]?.middle ?? null;
  }
}

function median(values) {
  const ordered = values.toSorted((a, b) => a - b);
  return ordered[Math.floor((ordered.length - 1) / 2)];
}
