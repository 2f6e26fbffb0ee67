"""AstrAI: LLM inference engine and server."""
