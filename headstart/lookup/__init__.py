"""Search structures over token ids: no torch, no requests, no policy of when to draft."""
