"""Guess from an address whether it is a model's.

A handler calls other services than its model: a store of pictures, a chat for the staff, its own
backend. Their errors must not stop the model's queue.
"""

import re
from urllib.parse import urlsplit

from penstock.net import private_addresses

OLLAMA_PORT = 11434

# Hosts that serve only models, and their subdomains.
_HOSTS = (
    "api.openai.com", "api.anthropic.com", "generativelanguage.googleapis.com",
    "api.mistral.ai", "api.cohere.com", "api.cohere.ai", "api.groq.com", "api.together.xyz",
    "api.together.ai", "api.fireworks.ai", "api.deepseek.com", "api.x.ai", "api.perplexity.ai",
    "openrouter.ai", "api.replicate.com", "api.cerebras.ai", "api.sambanova.ai",
    "router.huggingface.co", "api-inference.huggingface.co", "openai.azure.com",
    "services.ai.azure.com", "inference.ai.azure.com", "models.github.ai", "ollama.com",
    "api.deepinfra.com", "api.novita.ai", "api.hyperbolic.xyz", "api.voyageai.com",
    "api.ai21.com", "api.stability.ai", "api.elevenlabs.io", "api.moonshot.ai", "api.moonshot.cn",
    "dashscope.aliyuncs.com", "dashscope-intl.aliyuncs.com", "api.scaleway.ai",
    "api.studio.nebius.com", "integrate.api.nvidia.com", "fal.run",
)  # fmt: skip
_CLOUDS = re.compile(
    r"(?:[a-z0-9-]+-)?aiplatform\.googleapis\.com|bedrock-runtime\.[a-z0-9-]+\.amazonaws\.com"
)
# Paths of the well-known APIs. Other APIs use `messages` and `responses`, too, so these count only
# below a version at the root, or at the root of a gateway.
_PATH = re.compile(
    r"/chat/completions"
    r"|(?:/(?:openai|anthropic|api|llm|ai))*/v\d\w*/"
    r"(?:completions|messages(?:/count_tokens|/batches)?|responses|embeddings|embed|rerank|"
    r"moderations|images/(?:generations|edits|variations)|"
    r"audio/(?:speech|transcriptions|translations))"
    r"|/api/(?:chat|generate|embed|embeddings)"
    r"|/openai/deployments/[^/]+/.+"
    r"|/model/[^/]+/(?:invoke|converse)[\w-]*"
    r"|/models/[^/:]+:(?:\w*[gG]enerateContent|\w*[eE]mbedContents?|countTokens|\w*[pP]redict)"
)
_ANYWHERE = re.compile(r"/chat/completions$|:\w*[gG]enerateContent$")
# Further paths of servers in private networks: llama.cpp, TGI, and self-written ones.
_OWN_PATH = re.compile(
    r"(?:^|/)(?:v1|chat|completions?|generate|generate_stream|generations|embeddings?|embed|"
    r"infill|rerank|invoke|predict|predictions|transcribe|transcriptions|inference|tokenize)$"
)


def of_a_model(url: object, *, answered: bool) -> bool | None:
    """Return whether an address is probably a model's; None: the address is unknown.

    `answered`: a server answered by HTTP. An unreachable address in a private network is more
    likely the model's machine, whatever the path. If there was an answer, the path decides.
    """
    try:
        parts = urlsplit(str(url))
        host, port = (parts.hostname or "").lower().rstrip("."), parts.port
    except Exception:  # noqa: BLE001  # whatever was given as an address
        return None
    if not host:
        return None
    if port == OLLAMA_PORT or _serves_models(host):
        return True
    path = parts.path.rstrip("/")
    if _PATH.fullmatch(path) or _ANYWHERE.search(path):
        return True
    if not private_addresses.is_own(host):
        return False
    return not answered or _OWN_PATH.search(path) is not None


def _serves_models(host: str) -> bool:
    if _CLOUDS.fullmatch(host):
        return True
    return any(host == known or host.endswith(f".{known}") for known in _HOSTS)
