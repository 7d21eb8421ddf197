"""A simulated model for development and tests: it answers like Ollama and OpenAI, or fails."""
