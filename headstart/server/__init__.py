"""The OpenAI-compatible server. Data flows one way: app (routes) -> shapes, options, prompts (what was asked) -> service, loop (one
request's way, the engine thread) -> answers (what is sent back). Needs the extra `server`."""
