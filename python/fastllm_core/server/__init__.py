"""The HTTP server: OpenAI- and Anthropic-compatible routes over one AsyncLLM. README.md beside this file is its map."""
