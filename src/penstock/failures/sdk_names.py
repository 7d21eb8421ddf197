"""Names from other libraries: what their exceptions mean, and which libraries call models."""

from collections.abc import Mapping

# Names of exceptions by the family of their package, and the kind of failure each stands for.
FAMILIES = {
    "httpx2": "httpx", "httpcore": "httpx", "httpcore2": "httpx",
    "anthropic": "openai", "groq": "openai", "litellm": "openai", "together": "openai",
    "simplejson": "json",
    "pydantic_core": "pydantic",
}  # fmt: skip
KINDS: dict[str, Mapping[str, str]] = {
    "httpx": {
        "ConnectError": "connect", "ConnectTimeout": "connect_timeout", "ProxyError": "connect",
        "ReadTimeout": "read_timeout", "WriteTimeout": "read_timeout", "PoolTimeout": "pool",
        "ReadError": "reset", "WriteError": "reset", "CloseError": "reset",
        "RemoteProtocolError": "incomplete", "DecodingError": "bad_json",
        "TooManyRedirects": "redirect",
    },
    "aiohttp": {
        "ClientConnectorDNSError": "dns", "ClientSSLError": "tls",
        "ServerFingerprintMismatch": "tls", "ClientConnectorError": "connect",
        "ConnectionTimeoutError": "connect_timeout",
        "ServerTimeoutError": "read_timeout", "ServerDisconnectedError": "reset",
        "ClientOSError": "reset", "ClientConnectionError": "reset",
        "ClientPayloadError": "incomplete", "TooManyRedirects": "redirect",
    },
    "requests": {
        "ConnectTimeout": "connect_timeout", "ReadTimeout": "read_timeout", "SSLError": "tls",
        "ProxyError": "connect", "ChunkedEncodingError": "incomplete",
        "ContentDecodingError": "bad_json", "TooManyRedirects": "redirect",
    },
    "urllib3": {
        "NameResolutionError": "dns", "NewConnectionError": "connect", "SSLError": "tls",
        "ConnectTimeoutError": "connect_timeout", "ReadTimeoutError": "read_timeout",
        "IncompleteRead": "incomplete", "InvalidChunkLength": "incomplete", "ProxyError": "connect",
        "EmptyPoolError": "pool",
    },
    "urllib": {"ContentTooShortError": "incomplete"},
    "http": {"IncompleteRead": "incomplete", "BadStatusLine": "reset"},
    "openai": {"APIResponseValidationError": "schema"},
    "pydantic": {"ValidationError": "schema"},
    "json": {"JSONDecodeError": "bad_json"},
}  # fmt: skip
# These wrap the actual failure: their cause decides, and they count only if there is none.
WRAPPERS: dict[str, Mapping[str, str]] = {
    "openai": {"APITimeoutError": "read_timeout", "APIConnectionError": "reset"},
    "requests": {"ConnectionError": "reset", "Timeout": "read_timeout"},
    "urllib3": {"ProtocolError": "reset", "MaxRetryError": "reset"},
}
STOPS = {"LengthFinishReasonError": "length", "ContentFilterFinishReasonError": "content_filter"}

# A store that a handler uses is not the model: its failures must not open the queue's circuit.
STORES = frozenset({
    "asyncpg", "psycopg", "psycopg2", "psycopg_pool", "pg8000", "sqlalchemy", "sqlite3",
    "aiosqlite", "pymysql", "aiomysql", "MySQLdb", "mysql", "oracledb", "pyodbc", "redis", "valkey",
    "pymongo", "motor", "peewee", "tortoise",
})  # fmt: skip
STORE_MODULES = ("penstock.db", "penstock.engine", "django.db")
# Clients of models: everything they call is a model.
MODEL_CLIENTS = (
    "openai", "anthropic", "ollama", "groq", "together", "litellm", "mistralai", "cohere",
    "google.genai", "google.generativeai", "google.ai", "vertexai", "google.cloud.aiplatform",
    "replicate", "cerebras", "fireworks", "voyageai", "ai21", "xai_sdk", "dashscope",
)  # fmt: skip
# Clients of any HTTP service: the address decides whether it is a model.
HTTP_CLIENTS = (
    "httpx", "httpx2", "httpcore", "httpcore2", "aiohttp", "requests", "urllib", "urllib3",
    "http.client", "huggingface_hub", "azure.core",
)  # fmt: skip
# Clients of models and stores, without an address: only the traceback can decide.
SHARED_CLIENTS = ("google.api_core",)
