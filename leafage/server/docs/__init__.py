"""The page at /docs: it draws the OpenAPI document, and sends requests."""
