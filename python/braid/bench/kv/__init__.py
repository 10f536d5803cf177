"""Pages of a KV cache between two processes: pushed, pulled, beside the engine alone and NIXL."""
