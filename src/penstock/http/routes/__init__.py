"""The routes, one module per noun, and the OpenAPI document generated from them."""
