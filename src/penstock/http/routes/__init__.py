"""The routes, one module per noun, and the OpenAPI document made from them."""
