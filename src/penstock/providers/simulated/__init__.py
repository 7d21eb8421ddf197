"""A model to develop and test against: it answers like Ollama and OpenAI, and fails to order.

async with simulated(slots=2, tokens_per_second=50) as model:
    model.order("status", code=503, times=3)
    ...  # calls to model.url
    assert model.most_at_once == 2
"""

from penstock.providers.simulated.calls import Call
from penstock.providers.simulated.model import Model, simulated
from penstock.providers.simulated.options import Options

__all__ = ["Call", "Model", "Options", "simulated"]
