"""The OpenAI-compatible server. Data flows one way: app (routes) -> protocol (what was asked) -> loop (the engine thread)
-> answers (what is sent back). Needs the extra `server`."""
