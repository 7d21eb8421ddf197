"""The protocols that the simulated model speaks: Ollama's and OpenAI's."""
