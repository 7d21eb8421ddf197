"""A model to develop and test against: it answers like Ollama and OpenAI, and fails to order."""
