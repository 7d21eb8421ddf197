"""What requests may hold and answers look like, and the OpenAPI document made from it."""
